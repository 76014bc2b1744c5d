//! What keeps this machine from full speed, with remedies.
//!
//! The doctor reads and measures; it changes nothing. Probes that need a ring or a thread pool
//! (disk speed, io_uring) belong to the crates that own those, and are added as extra findings.

mod compute;
mod disk;
mod memory;

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::bandwidth::Bandwidth;
use crate::cpu_features::CpuFeatures;
use crate::kernel_files::KernelFiles;
use crate::limits::MemoryLimits;
use crate::storage::Storage;
use crate::topology::Topology;

/// How a finding bears on speed or on running at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Good,
    /// Costs speed or comfort.
    Warn,
    /// Prevents something from working.
    Bad,
}

impl Status {
    fn mark(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warn => "warn",
            Self::Bad => "BAD",
        }
    }
}

/// One fact about the machine and what it means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The part of the machine: `cores`, `memory`, `model disk`. Findings of one area are shown together.
    pub area: String,
    /// What was examined.
    pub what: String,
    /// What was found, with its unit.
    pub value: String,
    /// What that means.
    pub status: Status,
    /// What to do about it, if something can be done.
    pub remedy: Option<String>,
}

impl Finding {
    fn new(area: &str, what: &str, value: impl Into<String>, status: Status) -> Self {
        Self {
            area: area.to_owned(),
            what: what.to_owned(),
            value: value.into(),
            status,
            remedy: None,
        }
    }

    /// A fact that is as it should be.
    pub fn good(area: &str, what: &str, value: impl Into<String>) -> Self {
        Self::new(area, what, value, Status::Good)
    }

    /// A fact that costs speed or comfort.
    pub fn warn(area: &str, what: &str, value: impl Into<String>) -> Self {
        Self::new(area, what, value, Status::Warn)
    }

    /// A fact that prevents something from working.
    pub fn bad(area: &str, what: &str, value: impl Into<String>) -> Self {
        Self::new(area, what, value, Status::Bad)
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// What to examine.
#[derive(Debug, Clone, Default)]
pub struct ExamineOptions {
    /// The model to be run: the disk of its folder is examined, and there has to be space for the packed copy.
    pub model: Option<PathBuf>,
    /// Bytes that packing it has still to write. If that is not known, a little more than its files have.
    pub packing_bytes: Option<u64>,
    /// The folder for packed models instead of the one that the environment names.
    pub cache_dir: Option<PathBuf>,
    /// Compute threads instead of the default.
    pub threads: Option<usize>,
    /// Samples per measurement of memory bandwidth; 0 skips the measurement, which takes 60 ms per
    /// sample.
    pub bandwidth_rounds: usize,
    /// Findings of other probes, shown after these.
    pub extra: Vec<Finding>,
}

/// All findings, and the facts behind them for programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Doctor {
    /// The findings, area by area.
    pub findings: Vec<Finding>,
    /// Instruction features.
    pub isa: CpuFeatures,
    /// Cores; `None` if they could not be read (a finding tells why).
    pub topology: Option<Topology>,
    /// Memory and limits; `None` if they could not be read (a finding tells why).
    pub memory: Option<MemoryLimits>,
    /// Measured memory read bandwidth with 1 and all compute threads.
    pub bandwidth: Vec<Bandwidth>,
    /// The storage of the cache folder and of the model's folder.
    pub storage: Vec<Storage>,
}

impl Doctor {
    /// Examines the running machine. What cannot be examined is a finding too.
    pub fn examine(options: &ExamineOptions) -> Self {
        Self::examine_kernel(&KernelFiles::live(), options)
    }

    /// Examines a machine whose `/sys` and `/proc` are elsewhere. Measurements are still of this one.
    pub fn examine_kernel(kernel: &KernelFiles, options: &ExamineOptions) -> Self {
        let mut doctor = Self {
            findings: Vec::new(),
            isa: CpuFeatures::detect(),
            topology: None,
            memory: None,
            bandwidth: Vec::new(),
            storage: Vec::new(),
        };
        let cores = compute::examine(&mut doctor, kernel, options.threads);
        memory::examine(&mut doctor, kernel);
        if options.bandwidth_rounds > 0 && !cores.is_empty() {
            memory::measure(&mut doctor, &cores, options.bandwidth_rounds);
        }
        disk::examine(&mut doctor, kernel, options);
        doctor.findings.extend(options.extra.iter().cloned());
        doctor
    }

    fn count(&self, status: Status) -> usize {
        let findings = self.findings.iter();
        findings.filter(|finding| finding.status == status).count()
    }
}

/// A table by area; remedies are below their findings.
impl fmt::Display for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self
            .findings
            .iter()
            .map(|finding| finding.what.chars().count());
        let width = names.max().unwrap_or(0);
        for area in self.findings.chunk_by(|a, b| a.area == b.area) {
            if let Some(first) = area.first() {
                writeln!(f, "{}", first.area)?;
            }
            for Finding {
                what,
                value,
                status,
                remedy,
                ..
            } in area
            {
                writeln!(f, "  {:4}  {what:width$}  {value}", status.mark())?;
                if let Some(remedy) = remedy {
                    writeln!(f, "        {:width$}  -> {remedy}", "")?;
                }
            }
        }
        writeln!(
            f,
            "\n{} good, {} to improve, {} bad",
            self.count(Status::Good),
            self.count(Status::Warn),
            self.count(Status::Bad)
        )
    }
}

#[cfg(test)]
mod tests;
