//! Giving blocks of a file back to the file system: they read as zeros afterwards.

use std::fs::File;
use std::io::Result;
use std::ops::Range;

use rustix::fs::{FallocateFlags, fallocate};

/// Blocks of file systems are this large, or divide it.
const BLOCK: u64 = 4096;

/// Gives back the blocks that are completely within `range`; other bytes stay as they are.
///
/// # Errors
/// What the system says, which may be that the file system cannot do it.
pub(crate) fn give_back(file: &File, range: &Range<u64>) -> Result<()> {
    let start = range.start.next_multiple_of(BLOCK);
    let end = range.end / BLOCK * BLOCK;
    if start < end {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, start, end - start)?;
    }
    Ok(())
}

/// Whether blocks of a file can be given back; it is not changed.
///
/// # Errors
/// Why not.
pub(crate) fn may_give_back(file: &File) -> Result<()> {
    let end = file.metadata()?.len().next_multiple_of(BLOCK);
    give_back(file, &(end..end + BLOCK))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn only_whole_blocks_within_the_range_become_zeros() {
        let file = tempfile::tempfile().expect("a file");
        let bytes = vec![7; 5 * BLOCK as usize];
        file.write_all_at(&bytes, 0).expect("room");
        if let Err(e) = may_give_back(&file) {
            eprintln!("SKIPPED: blocks are not given back here: {e}");
            return;
        }
        give_back(&file, &(100..3 * BLOCK + 5)).expect("possible");
        let mut now = vec![1; bytes.len()];
        file.read_exact_at(&mut now, 0).expect("readable");
        let kept = |i: usize| !(BLOCK as usize..3 * BLOCK as usize).contains(&i);
        assert!(now.iter().enumerate().all(|(i, &b)| (b == 7) == kept(i)));
        give_back(&file, &(5..BLOCK - 5)).expect("nothing to do");
        file.read_exact_at(&mut now[..5], 0).expect("readable");
        assert_eq!(now[..5], [7; 5]);
    }
}
