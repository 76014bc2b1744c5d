//! What this process holds in memory, as the kernel counts it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::PlanError;
use crate::kernel_files::{field, kib_value};

/// Longer than `/proc/self/statm`: seven numbers.
const STATM_BYTES: usize = 256;

/// Resident bytes now: anonymous, file-backed and shared pages together.
///
/// Allocates nothing, so it may be sampled while tokens are generated. The kernel's counters are kept per CPU, so the
/// figure can be off by some hundred KiB per core.
///
/// # Errors
/// `/proc/self/statm` cannot be read or lacks the field.
pub fn rss_now() -> Result<u64, PlanError> {
    resident(Path::new("/proc/self/statm"))
}

/// The maximum of resident bytes so far (`VmHWM`).
///
/// # Errors
/// `/proc/self/status` cannot be read or lacks the field.
pub fn rss_peak() -> Result<u64, PlanError> {
    status_bytes(Path::new("/proc/self/status"), "VmHWM")
}

/// Lets [`rss_peak`] begin anew: what was in memory until now no longer counts. Where the kernel refuses, it stays.
pub fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn resident(path: &Path) -> Result<u64, PlanError> {
    let mut buffer = [0u8; STATM_BYTES];
    let filled = File::open(path).and_then(|mut file| file.read(&mut buffer));
    let filled = filled.map_err(|source| PlanError::Read {
        path: PathBuf::from(path),
        source,
    })?;
    let text = std::str::from_utf8(&buffer[..filled]).unwrap_or_default();
    let pages = text.split_ascii_whitespace().nth(1);
    let pages = pages.and_then(|pages| pages.parse::<u64>().ok());
    let bytes = pages.and_then(|pages| pages.checked_mul(rustix::param::page_size() as u64));
    bytes.ok_or_else(|| malformed(path, "resident", text, "a number of pages"))
}

/// The text has no fixed length: a process may be in any number of groups, which come before the memory.
fn status_bytes(path: &Path, key: &'static str) -> Result<u64, PlanError> {
    let bytes = std::fs::read(path).map_err(|source| PlanError::Read {
        path: PathBuf::from(path),
        source,
    })?;
    // The name of the program may be any bytes.
    let text = String::from_utf8_lossy(&bytes);
    let value = field(&text, key);
    value
        .and_then(kib_value)
        .ok_or_else(|| malformed(path, key, value.unwrap_or_default(), "a number of kB"))
}

fn malformed(path: &Path, field: &'static str, text: &str, expected: &'static str) -> PlanError {
    PlanError::Malformed {
        path: PathBuf::from(path),
        field,
        text: text.to_owned(),
        expected,
    }
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
        let mut status = b"Name:\t\xff\xfe\nGroups:\t".to_vec();
        // Found by reading: more groups than a buffer of a page held.
        status.extend("1000000 ".repeat(1000).bytes());
        status.extend(b"\nVmHWM:\t  2048 kB\n");
        std::fs::write(&path, status).unwrap();
        assert_eq!(status_bytes(&path, "VmHWM").unwrap(), 2048 << 10);
        std::fs::write(&path, "Name:\tx\nVmHWM:\tmuch\n").unwrap();
        let message = status_bytes(&path, "VmHWM").unwrap_err().to_string();
        assert!(
            message.contains("VmHWM") && message.contains("much"),
            "{message}"
        );
        std::fs::write(&path, "1000 3 2 1 0 5 0\n").unwrap();
        let page = rustix::param::page_size() as u64;
        assert_eq!(resident(&path).unwrap(), 3 * page);
        std::fs::write(&path, "1000 many\n").unwrap();
        let message = resident(&path).unwrap_err().to_string();
        assert!(message.contains("many"), "{message}");
        let gone = dir.path().join("gone");
        assert!(matches!(resident(&gone), Err(PlanError::Read { .. })));
        let peak = status_bytes(&gone, "VmHWM");
        assert!(matches!(peak, Err(PlanError::Read { .. })));
    }
}
