//! What this process holds in memory, as the kernel counts it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::PlanError;
use crate::kernel_files::{field, kib_value};

/// `/proc/self/status` is about 1.5 KiB; machines with many CPUs and NUMA nodes have longer masks, but the memory lines
/// come before them.
const STATUS_BYTES: usize = 4096;

/// Resident bytes now: anonymous, file-backed and shared pages together (`VmRSS`).
///
/// Allocates nothing, so it may be sampled while tokens are generated. The kernel's counters are kept per CPU, so the
/// figure can be off by some hundred KiB per core.
///
/// # Errors
/// `/proc/self/status` cannot be read or lacks the field.
pub fn rss_now() -> Result<u64, PlanError> {
    status_bytes(Path::new("/proc/self/status"), "VmRSS")
}

/// The maximum of resident bytes so far (`VmHWM`).
///
/// # Errors
/// As [`rss_now`].
pub fn rss_peak() -> Result<u64, PlanError> {
    status_bytes(Path::new("/proc/self/status"), "VmHWM")
}

fn status_bytes(path: &Path, key: &'static str) -> Result<u64, PlanError> {
    let owned = || PathBuf::from(path);
    let read_error = |source| PlanError::Read {
        path: owned(),
        source,
    };
    let mut file = File::open(path).map_err(read_error)?;
    let mut buffer = [0u8; STATUS_BYTES];
    let mut filled = 0;
    loop {
        match file.read(&mut buffer[filled..]).map_err(read_error)? {
            0 => break,
            n => filled += n,
        }
    }
    // The name of the program may be any bytes; the lines after it are ASCII.
    let from = buffer[..filled]
        .iter()
        .position(|&b| b == b'\n')
        .unwrap_or(0);
    let valid = std::str::from_utf8(&buffer[from..filled]).unwrap_or_default();
    let value = field(valid, key);
    value
        .and_then(kib_value)
        .ok_or_else(|| PlanError::Malformed {
            path: owned(),
            field: key,
            text: value.unwrap_or_default().to_owned(),
            expected: "a number of kB",
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_shows_up_and_the_peak_stays() {
        const GROWTH: usize = 48 << 20;
        const SLACK: u64 = 8 << 20;
        let before = rss_now().unwrap();
        let block = vec![1u8; GROWTH];
        let during = rss_now().unwrap();
        assert!(
            during + SLACK >= before + GROWTH as u64,
            "{before} {during}"
        );
        std::hint::black_box(&block);
        drop(block);
        assert!(rss_peak().unwrap() + SLACK >= before + GROWTH as u64);
    }

    #[test]
    fn a_made_up_status_is_read_and_a_broken_one_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        std::fs::write(
            &path,
            b"Name:\t\xff\xfe\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n",
        )
        .unwrap();
        assert_eq!(status_bytes(&path, "VmHWM").unwrap(), 2048 << 10);
        assert_eq!(status_bytes(&path, "VmRSS").unwrap(), 1024 << 10);
        std::fs::write(&path, "Name:\tx\nVmRSS:\tmuch\n").unwrap();
        let message = status_bytes(&path, "VmRSS").unwrap_err().to_string();
        assert!(
            message.contains("VmRSS") && message.contains("much"),
            "{message}"
        );
        let message = status_bytes(&path, "VmHWM").unwrap_err().to_string();
        assert!(message.contains("VmHWM"), "{message}");
        let gone = dir.path().join("gone");
        assert!(matches!(
            status_bytes(&gone, "VmRSS"),
            Err(PlanError::Read { .. })
        ));
    }
}
