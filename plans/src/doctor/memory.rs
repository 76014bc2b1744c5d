//! Findings about memory: how much, what limits it, how fast it is.

use super::{Doctor, Finding};
use crate::bandwidth::{Bandwidth, BandwidthProbe};
use crate::kernel_files::KernelFiles;
use crate::limits::{HugePages, MemoryLimits, Rlimit};
use crate::residency::STREAM_WINDOW;
use crate::size::format_size;

const AREA: &str = "memory";

/// Below this, little more than the smallest models' resident weights fit.
const TIGHT: u64 = 512 << 20;

pub(super) fn examine(doctor: &mut Doctor, kernel: &KernelFiles) {
    match MemoryLimits::read_from(kernel) {
        Ok(limits) => {
            let findings = &mut doctor.findings;
            findings.push(amount(&limits));
            findings.extend(group(&limits));
            findings.push(huge_pages(limits.huge_pages));
            findings.push(memlock(&limits));
            findings.extend(address_space(&limits));
            findings.push(swap(&limits));
            doctor.memory = Some(limits);
        }
        Err(error) => {
            doctor
                .findings
                .push(Finding::bad(AREA, "limits", error.to_string()));
        }
    }
}

fn amount(limits: &MemoryLimits) -> Finding {
    let available = limits.effective_available();
    let value = format!(
        "{} of {}",
        format_size(available),
        format_size(limits.effective_total())
    );
    if available < TIGHT {
        return Finding::warn(AREA, "available", value)
            .remedy("close other programs or raise the limit of the control group");
    }
    Finding::good(AREA, "available", value)
}

fn group(limits: &MemoryLimits) -> Option<Finding> {
    let group = limits.tightest_group()?;
    let value = format!(
        "{} of {} left in {}",
        format_size(group.available()),
        format_size(group.limit_bytes),
        group.dir.display()
    );
    Some(Finding::good(AREA, "control group", value))
}

fn huge_pages(mode: HugePages) -> Finding {
    let what = "huge pages";
    match mode {
        HugePages::Always => Finding::good(AREA, what, "always"),
        HugePages::Madvise => Finding::good(AREA, what, "on request (madvise)"),
        HugePages::Never => Finding::warn(AREA, what, "never: reads of memory and disk are slower")
            .remedy("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
        HugePages::Absent => Finding::warn(AREA, what, "not in this kernel: reads are slower"),
    }
}

/// Nothing is locked but buffers that are registered with io_uring: at least the stream window, where clusters are
/// streamed.
fn memlock(limits: &MemoryLimits) -> Finding {
    let what = "lockable (memlock)";
    match limits.memlock {
        Rlimit::Unlimited => Finding::good(AREA, what, "unlimited"),
        Rlimit::Bytes(bytes) if bytes >= STREAM_WINDOW as u64 => {
            Finding::good(AREA, what, format_size(bytes))
        }
        Rlimit::Bytes(bytes) => Finding::warn(
            AREA,
            what,
            format!(
                "{}, less than the buffers of reads: io_uring pins them at each read",
                format_size(bytes)
            ),
        )
        .remedy("for somewhat cheaper reads: ulimit -l unlimited, or LimitMEMLOCK=infinity in the service"),
    }
}

fn address_space(limits: &MemoryLimits) -> Option<Finding> {
    let Rlimit::Bytes(bytes) = limits.address_space else {
        return None;
    };
    let value = format!("{} may be mapped, model files included", format_size(bytes));
    Some(Finding::warn(AREA, "address space", value).remedy("ulimit -v unlimited"))
}

fn swap(limits: &MemoryLimits) -> Finding {
    if limits.swap_bytes == 0 {
        return Finding::good(AREA, "swap", "off");
    }
    let value = format!(
        "{}: weights may be swapped out, which reads as a stall",
        format_size(limits.swap_bytes)
    );
    Finding::warn(AREA, "swap", value)
        .remedy("keep --memory well below what is available, or sudo swapoff -a")
}

/// Measures read bandwidth with one and with all of `cores`.
pub(super) fn measure(doctor: &mut Doctor, cores: &[usize], rounds: usize) {
    let available = doctor
        .memory
        .as_ref()
        .map_or(0, MemoryLimits::effective_available);
    let cache = doctor
        .topology
        .as_ref()
        .and_then(|t| t.last_level_cache_bytes);
    let probe = match BandwidthProbe::new(cache, available) {
        Ok(probe) => probe,
        Err(error) => {
            let finding = Finding::warn(AREA, "read bandwidth", error.to_string());
            doctor.findings.push(finding);
            return;
        }
    };
    let mut counts = vec![1, cores.len()];
    counts.dedup();
    doctor.bandwidth = probe.measure(cores, &counts, rounds);
    doctor
        .findings
        .extend(doctor.bandwidth.iter().map(bandwidth));
}

fn bandwidth(measured: &Bandwidth) -> Finding {
    let what = match measured.threads {
        1 => "read, 1 thread".to_owned(),
        n => format!("read, {n} threads"),
    };
    let value = format!(
        "{:.1} GB/s ({:.1} to {:.1} in {} samples)",
        measured.median, measured.min, measured.max, measured.runs
    );
    if measured.is_unsteady() {
        return Finding::warn(AREA, &what, value)
            .remedy("something else uses the machine; stop it and measure again");
    }
    Finding::good(AREA, &what, value)
}
