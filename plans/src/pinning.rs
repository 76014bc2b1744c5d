//! Keeping a thread on one core.

/// The kernel's core numbers are below this (`CPU_SETSIZE`).
const MOST_CORES: usize = 1024;

/// Keeps the calling thread on `core`, as far as the system allows: containers and sandboxes may forbid it, which only
/// costs speed. `None` leaves it to the scheduler.
pub fn pin(core: Option<usize>) {
    if let Some(core) = core.filter(|&core| core < MOST_CORES) {
        let _ = affinity::set_thread_affinity([core]);
    }
}
