//! Files of which only the beginning is there, as while they are downloaded: enough to plan with.

use std::fs::File;
use std::io::{Read, Result, Seek, SeekFrom, copy};

use rustix::fs::{MemfdFlags, memfd_create};

/// A file of `end` bytes in memory that begins with the `header` bytes of `file`. The rest are zeros, and take no room.
pub(super) fn stand_in(mut file: &File, header: u64, end: u64) -> Result<File> {
    let mut memory = File::from(memfd_create("header", MemfdFlags::CLOEXEC)?);
    file.seek(SeekFrom::Start(0))?;
    copy(&mut file.take(header), &mut memory)?;
    memory.set_len(end)?;
    Ok(memory)
}
