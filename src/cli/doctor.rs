//! `forebay doctor`

use std::path::PathBuf;

use clap::Args;
use forebay::packed::{Found, open_or_outline};
use forebay::{Engine, survey};
use forebay_actors::io::probe::uring_available;
use forebay_models::bundle::PackOptions;
use forebay_plans::cache_dir;
use forebay_plans::doctor::{Doctor as Examination, ExamineOptions, Finding};
use forebay_plans::machine::{DiskProfile, MachineProfile};
use forebay_plans::size::format_size;
use serde::Serialize;

use super::output::{print_json, print_text};
use super::progress::thousandths;

#[derive(Debug, Args)]
pub struct Doctor {
    /// A model: the disk of its folder is examined too; a packed model is used to measure the disk.
    model: Option<PathBuf>,
    /// Number of compute threads instead of the default.
    #[arg(long, short, value_name = "N")]
    threads: Option<usize>,
    /// Skip measurements.
    #[arg(long)]
    quick: bool,
    /// Measure again what was measured and saved before.
    #[arg(long, conflicts_with = "quick")]
    measure: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What is printed with `--json`.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    examination: Examination,
    #[cfg(feature = "gpu")]
    devices: Vec<forebay::devices::DeviceReport>,
}

impl Doctor {
    pub fn execute(self) -> anyhow::Result<()> {
        self.check()?;
        let packing_bytes = self.packing_bytes()?;
        let mut extra = vec![uring()];
        if !self.quick {
            extra.extend(self.profile());
        }
        #[cfg(feature = "gpu")]
        let devices = forebay::devices::survey(!self.quick);
        #[cfg(feature = "gpu")]
        extra.extend(super::doctor_devices::findings(&devices));
        #[cfg(feature = "gpu")]
        if let Ok(folder) = cache_dir::prepare(None) {
            forebay::devices::remember(&devices, &folder);
        }
        let examination = Examination::examine(&ExamineOptions {
            model: self.model.clone(),
            packing_bytes,
            cache_dir: None,
            threads: self.threads,
            bandwidth_rounds: if self.quick { 0 } else { 7 },
            extra,
        });
        if self.json {
            return print_json(&Report {
                examination,
                #[cfg(feature = "gpu")]
                devices,
            });
        }
        print_text(&format!("{examination}\n"))
    }

    /// Checks that the model is there, and the number of threads.
    fn check(&self) -> Result<(), forebay::Error> {
        let mut builder = Engine::builder();
        if let Some(model) = &self.model {
            builder = builder.model(model);
        }
        if let Some(n) = self.threads {
            builder = builder.threads(n);
        }
        builder.check()
    }

    /// Bytes that the model's packed copy will take, 0 if it is there; `None` if that cannot be told.
    ///
    /// # Errors
    /// The file is no model that can be run.
    fn packing_bytes(&self) -> Result<Option<u64>, forebay::Error> {
        let Some(model) = self.model.as_deref() else {
            return Ok(None);
        };
        match open_or_outline(model, None, &PackOptions::default()) {
            Ok((_, Found::Packed)) => Ok(Some(0)),
            Ok((bundle, _)) => {
                let bytes = bundle.clusters.iter().map(|e| e.padded_len() as u64);
                Ok(Some(bytes.sum()))
            }
            Err(error @ forebay::Error::Model(_)) => Err(error),
            // Of the machine, which is examined all the same.
            Err(_) => Ok(None),
        }
    }

    /// The hardware profile, which is saved for `run` and `plan`.
    fn profile(&self) -> Vec<Finding> {
        let bar = thousandths(self.json).with_message("measuring");
        let packed = self
            .model
            .as_deref()
            .filter(|m| forebay::packed::is_bundle(m));
        let measured = cache_dir::prepare(None)
            .map_err(forebay::Error::from)
            .and_then(|folder| {
                survey(&folder, packed, self.measure, &mut |share| {
                    bar.set_position((share * 1000.0) as u64);
                })
            });
        bar.finish_and_clear();
        match measured {
            Ok((machine, disk)) => findings(&machine, &disk),
            Err(e) => vec![
                Finding::bad("disk", "measured", e.to_string())
                    .remedy("give a packed model on the disk that you will run from"),
            ],
        }
    }
}

fn findings(machine: &MachineProfile, disk: &DiskProfile) -> Vec<Finding> {
    let mut list = Vec::new();
    for (key, rate) in &machine.kernels {
        let unit = if key.starts_with("gemm") {
            "GOPS"
        } else {
            "GB/s"
        };
        let value = format!(
            "{:.1} {unit} on one core, {:.1} on {}",
            rate.alone / 1e9,
            rate.together / 1e9,
            machine.cores.len()
        );
        list.push(Finding::good("kernels", key, value));
    }
    for rate in &disk.rates {
        let what = format!(
            "random reads of {} at depth {}",
            format_size(rate.block_bytes),
            rate.depth
        );
        let value = format!(
            "{}/s ({:.0} reads/s)",
            format_size(rate.bytes_per_second as u64),
            rate.bytes_per_second / rate.block_bytes as f64
        );
        list.push(Finding::good("disk", &what, value));
    }
    for remark in &disk.remarks {
        let value = format!("{}/s", format_size(remark.bytes_per_second as u64));
        list.push(Finding::good("disk", &remark.what, value));
    }
    list
}

fn uring() -> Finding {
    match uring_available() {
        Ok(()) => Finding::good("io", "io_uring", "available"),
        Err(e) => Finding::warn("io", "io_uring", format!("not available: {e}")).remedy(
            "reads go through threads instead; a container needs a seccomp profile that allows io_uring",
        ),
    }
}
