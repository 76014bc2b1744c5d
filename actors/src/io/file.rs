//! Opening a file for reading, past the page cache if its file system allows that.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use forebay_queues::slab::{PAGE, Slab};
use rustix::fs::{Advice, fadvise};

use super::refusal::OpenError;

/// A regular file, opened for reads that bypass the page cache if the file system supports them.
#[derive(Debug)]
pub(super) struct ReadFile {
    /// The descriptor.
    pub(super) file: File,
    /// Length when opened, bytes.
    pub(super) bytes: u64,
    /// Whether it is open with `O_DIRECT`.
    pub(super) direct: bool,
}

impl ReadFile {
    /// Opens `path`, directly if possible; the reason why not is appended to `notes`.
    ///
    /// # Errors
    /// The path is not a readable regular file.
    pub(super) fn open(path: &Path, notes: &mut Vec<String>) -> Result<Self, OpenError> {
        let wrap = |source| OpenError::of(path, source);
        // Checked before opening, since opening a pipe would wait for its writer.
        if !path.metadata().map_err(wrap)?.is_file() {
            return Err(OpenError::NotAFile {
                path: path.to_path_buf(),
            });
        }
        let buffered = File::open(path).map_err(wrap)?;
        let bytes = buffered.metadata().map_err(wrap)?.len();
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(path);
        match direct.and_then(try_direct) {
            Ok(file) => Ok(Self {
                file,
                bytes,
                direct: true,
            }),
            Err(refusal) => {
                notes.push(format!(
                    "the file system of {} refuses direct reads ({refusal}): reading through the page \
                     cache and dropping what was read; a file on ext4, xfs or f2fs is faster",
                    path.display()
                ));
                // A hint only: read-ahead would double the traffic of random reads.
                let _ = fadvise(&buffered, 0, None, Advice::Random);
                Ok(Self {
                    file: buffered,
                    bytes,
                    direct: false,
                })
            }
        }
    }

    /// After a buffered read: drops the page cache's copy, since the slot holds the bytes now and the memory budget
    /// counts them once.
    pub(super) fn forget(&self, offset: u64, len: u32) {
        if !self.direct {
            // A hint: if it is refused, the kernel can still reclaim that memory itself.
            let len = NonZeroU64::new(u64::from(len));
            let _ = fadvise(&self.file, offset, len, Advice::DontNeed);
        }
    }
}

/// Some file systems accept the flag and refuse the first read.
fn try_direct(file: File) -> io::Result<File> {
    let mut slot = Slab::new(PAGE)
        .ok()
        .and_then(|mut slab| slab.carve(PAGE))
        .ok_or(io::ErrorKind::OutOfMemory)?;
    match file.read_at(&mut slot, 0) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Err(e),
        // Other failures come from the disk, not from the mode: they appear as faults of the reads.
        _ => Ok(file),
    }
}
