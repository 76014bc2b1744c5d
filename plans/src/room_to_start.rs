//! Limits of this process that are too low to begin with: beyond them libraries end the program in the middle, without
//! a word about the limit.

use std::io::ErrorKind;

use crate::error::PlanError;
use crate::kernel_files::{KernelFiles, field, kib_value};
use crate::limits::{MemoryLimits, Rlimit, soft_limit};

/// Files that a run has open at the same time, beside those that it inherits: 14 were seen, with pipes of the signal
/// handler and bells among them.
const FILES: u64 = 24;
/// What the program and the metadata of a large model map.
const LEAST_MAPPED: u64 = 256 << 20;
/// What the C library reserves for the heap of a thread.
const HEAP_OF_THREAD: u64 = 64 << 20;
/// Heaps of threads by CPU, at most: then threads share them.
const HEAPS_PER_CPU: usize = 8;
/// The standard library's default, and the guard page.
const STACK_OF_THREAD: u64 = (2 << 20) + 4096;

/// Checks `ulimit -n` and `ulimit -v` against what any command needs.
///
/// # Errors
/// A limit is too low; the message names it and what to give.
pub fn check_limits() -> Result<(), PlanError> {
    check_limits_of(&KernelFiles::live())
}

fn check_limits_of(kernel: &KernelFiles) -> Result<(), PlanError> {
    let limits = match kernel.proc_text("self/limits") {
        Ok(limits) => limits,
        // EMFILE has no kind of its own. Without /proc nothing is known, and commands that need it say so.
        Err(PlanError::Read { source, .. }) if source.kind() != ErrorKind::NotFound => {
            return Err(PlanError::OpenFiles { source });
        }
        Err(_) => return Ok(()),
    };
    if let Rlimit::Bytes(limit) = soft_limit(&limits, "Max open files") {
        let open = std::fs::read_dir(kernel.proc_path("self/fd")).map_or(0, Iterator::count);
        let needed = open as u64 + FILES;
        if limit < needed {
            return Err(PlanError::TooFewFiles { limit, needed });
        }
    }
    match soft_limit(&limits, "Max address space") {
        Rlimit::Bytes(limit) if limit < LEAST_MAPPED => Err(PlanError::AddressSpace {
            limit,
            needed: LEAST_MAPPED,
        }),
        _ => Ok(()),
    }
}

/// Checks `ulimit -v` against what a run will map: `bytes`, and as many threads on a machine of `cpus`.
///
/// # Errors
/// It is too low; the message names what would do.
pub fn check_address_space(
    limits: &MemoryLimits,
    bytes: u64,
    threads: usize,
    cpus: usize,
) -> Result<(), PlanError> {
    let Rlimit::Bytes(limit) = limits.address_space else {
        return Ok(());
    };
    let status = KernelFiles::live().proc_text("self/status")?;
    let mapped = field(&status, "VmSize").and_then(kib_value).unwrap_or(0);
    let heaps = threads.min(cpus * HEAPS_PER_CPU) as u64 * HEAP_OF_THREAD;
    let stacks = threads as u64 * STACK_OF_THREAD;
    let needed = mapped.saturating_add(bytes).saturating_add(heaps + stacks);
    match limit < needed {
        true => Err(PlanError::AddressSpace { limit, needed }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;

    fn refusal(limits: &str) -> Option<String> {
        let tree = FakeTree::new();
        tree.put("proc/self/limits", limits);
        for fd in 0..5 {
            tree.put(format!("proc/self/fd/{fd}"), "");
        }
        let checked = check_limits_of(&tree.kernel());
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn limits_that_are_too_low_are_named_with_what_would_do() {
        let files = |n: &str| refusal(&format!("Max open files   {n}   4096   files"));
        assert_eq!(files("1024"), None);
        assert_eq!(files("29"), None, "five are open");
        let message = files("28").expect("too few");
        assert!(message.contains("28") && message.contains("ulimit -n 29"));

        let mapped = |bytes: &str| refusal(&format!("Max address space   {bytes}   x   bytes"));
        assert_eq!(mapped("unlimited"), None);
        assert_eq!(mapped("268435456"), None);
        let message = mapped("150000000").expect("too little");
        assert!(message.contains("143 MiB") && message.contains("ulimit -v 262144"));
    }

    #[test]
    fn a_run_needs_room_for_its_threads_too() {
        let tree = FakeTree::new();
        let mut limits = MemoryLimits::read_from(&tree.kernel()).expect("complete");
        check_address_space(&limits, u64::MAX, 9, 8).expect("no limit");
        limits.address_space = Rlimit::Bytes(1 << 40);
        check_address_space(&limits, 1 << 30, 4, 8).expect("enough");
        check_address_space(&limits, 1 << 30, 1 << 14, 8).expect("heaps are shared");
        let refused = check_address_space(&limits, 1 << 30, 1 << 14, 1 << 14);
        let refused = refused.expect_err("1 TiB of heaps");
        assert!(refused.to_string().contains("ulimit -v"), "{refused}");
    }
}
