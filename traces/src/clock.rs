//! The one time axis of a process.

use std::sync::OnceLock;
use std::time::Instant;

static ORIGIN: OnceLock<Instant> = OnceLock::new();

/// Nanoseconds since the first call in this process, on the monotonic clock.
///
/// All threads share the origin, so their records can be compared. Costs one `Instant::now` (some 40 ns on the
/// development machine).
pub fn now_ns() -> u64 {
    let elapsed = ORIGIN.get_or_init(Instant::now).elapsed();
    // 2^64 ns are 584 years.
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn runs_forward_on_one_axis_for_all_threads() {
        let first = now_ns();
        let slept = Duration::from_millis(3);
        let other = std::thread::spawn(move || {
            std::thread::sleep(slept);
            now_ns()
        });
        let theirs = other.join().expect("no panic");
        let last = now_ns();
        assert!(theirs >= first + 3_000_000, "{first} {theirs}");
        assert!(last >= theirs, "{theirs} {last}");
    }
}
