//! Memory that goes back to the system while its owner keeps it: what is written there later commits it again.
#![allow(unsafe_code)]

use bytemuck::Pod;

#[cfg(not(loom))]
use crate::sync::{AtomicI64, AtomicU32};

/// Numbers that threads share.
#[cfg(not(loom))]
pub(crate) trait Shared {}
#[cfg(not(loom))]
impl Shared for AtomicU32 {}
#[cfg(not(loom))]
impl Shared for AtomicI64 {}

/// Size of the units by which memory is committed and given back.
pub fn page() -> usize {
    rustix::param::page_size()
}

/// Gives the memory of `values` back, as far as pages have nothing else. They are zeros, or what they were. What the
/// system does not take stays as it was.
pub fn give_back<T: Pod>(values: &mut [T]) {
    let _ = try_give_back(values);
}

/// The same; returns how many bytes were given back.
///
/// # Errors
/// The system refuses, for instance because the process has locked its memory. The memory is kept then.
pub fn try_give_back<T: Pod>(values: &mut [T]) -> std::io::Result<usize> {
    // SAFETY: the caller has the only access to the values, and every bit pattern is one.
    unsafe { release(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// The same for numbers that no other thread is using.
#[cfg(not(loom))]
pub(crate) fn give_back_shared<T: Shared>(cells: &[T]) {
    // SAFETY: the cells are atomic integers, which may change under a shared reference; every bit pattern is one.
    let _ = unsafe { release(cells.as_ptr().cast_mut().cast(), size_of_val(cells)) };
}

/// Gives the system what this process has freed, as far as the allocator can. Until then it counts as the process's.
pub fn give_back_freed() {
    // SAFETY: it takes free memory only, and locks the allocator as an allocation does.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives back the whole pages among the `len` bytes from `start` on, and returns their bytes.
///
/// # Safety
/// The bytes are one live object's that may change now, to whatever value.
unsafe fn release(start: *mut u8, len: usize) -> std::io::Result<usize> {
    let skipped = start.align_offset(page());
    let whole = len.saturating_sub(skipped) / page() * page();
    if whole == 0 {
        return Ok(0);
    }
    // SAFETY: `skipped < len`, so the first page starts within the object, and all of them end there.
    let first = unsafe { start.add(skipped) };
    // SAFETY: these pages belong to the object alone, and its bytes may change. Private memory without a file, which
    // allocators return, becomes zeros; the system changes nothing else about it.
    unsafe { rustix::mm::madvise(first.cast(), whole, DONT_NEED) }?;
    Ok(whole)
}

#[cfg(target_os = "linux")]
const DONT_NEED: rustix::mm::Advice = rustix::mm::Advice::LinuxDontNeed;
#[cfg(not(target_os = "linux"))]
const DONT_NEED: rustix::mm::Advice = rustix::mm::Advice::DontNeed;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn neighbours_keep_their_values_and_the_rest_can_be_used_again() {
        let n = 10 * page() / size_of::<u32>();
        let mut values = vec![7_u32; n];
        give_back(&mut values[5..n - 5]);
        assert!(values[..5].iter().chain(&values[n - 5..]).all(|&v| v == 7));
        assert!(values.iter().all(|&v| v == 7 || v == 0));
        #[cfg(target_os = "linux")]
        assert!(values.iter().filter(|&&v| v == 0).count() >= 8 * page() / size_of::<u32>());
        values.fill(9);
        assert!(values.iter().all(|&v| v == 9));
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn what_was_freed_is_no_longer_the_process() {
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * page()
        };
        // The last block keeps the allocator from giving the others back by itself.
        let mut blocks: Vec<Vec<u8>> = (0..64 << 10).map(|_| vec![1; 1 << 10]).collect();
        let last = blocks.pop();
        drop(blocks);
        let before = resident();
        give_back_freed();
        assert!(resident() + (32 << 20) < before, "{before}");
        drop(last);
    }

    #[test]
    fn less_than_a_page_is_not_touched() {
        let mut values = vec![3_i8; page() / 2];
        give_back(&mut values);
        give_back::<f32>(&mut []);
        assert!(values.iter().all(|&v| v == 3));
    }
}
