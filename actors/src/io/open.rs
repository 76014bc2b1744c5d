//! Opening a file for reading, and choosing the driver that the system allows.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_queues::slab::{PAGE, Slab, Span};
use rustix::fs::{Advice, fadvise};

use super::driver::{Driver, DriverChoice, DriverInfo};
use super::pread::PreadDriver;
use super::uring::{UringDriver, UringRefusal};

/// Maximum number of reads in flight: beyond this no disk known to us gets faster, and a ring's
/// memory and the thread driver's tables stay small.
pub const MAX_DEPTH: usize = 1024;

/// A file cannot be read, or not with the requested driver.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is nothing at this path.
    #[error("{}: there is no such file; check the path, or make the file with `forebay pack`", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// The process may not read the file.
    #[error("{}: permission denied; make it readable with `chmod u+r`, or run as its owner", path.display())]
    Permission {
        /// The path.
        path: PathBuf,
    },
    /// A directory, device or pipe.
    #[error("{}: not a regular file; give the path of a packed file (.fbay)", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Any other refusal of the system.
    #[error("{}: cannot open: {source}", path.display())]
    Os {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// io_uring was requested explicitly and is not available.
    #[error("{}: {refusal}; or use DriverChoice::Auto (--io auto)", path.display())]
    Uring {
        /// The path.
        path: PathBuf,
        /// Why not, with the remedy.
        refusal: UringRefusal,
    },
    /// The threads of the `pread` driver cannot be started.
    #[error("{}: cannot start the reader threads: {source}; raise `ulimit -u`, or ask for a smaller depth", path.display())]
    Threads {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The depth is zero or too large.
    #[error("{}: {depth} reads in flight are not possible; choose 1 to {MAX_DEPTH}", path.display())]
    Depth {
        /// The path.
        path: PathBuf,
        /// The requested depth.
        depth: usize,
    },
}

impl OpenError {
    fn of(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { path },
            io::ErrorKind::PermissionDenied => Self::Permission { path },
            io::ErrorKind::IsADirectory => Self::NotAFile { path },
            _ => Self::Os { path, source },
        }
    }
}

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

/// Opens `path` for at most `depth` reads in flight.
///
/// `register` lists the memory that reads will fill; io_uring pins it once if the system allows that
/// much locked memory, and otherwise pins at each read.
///
/// # Errors
/// [`OpenError`]: the path is not a readable regular file, `depth` is not in `1..=`[`MAX_DEPTH`], or the requested
/// driver is not available.
pub fn open_driver(
    path: &Path,
    choice: DriverChoice,
    depth: usize,
    register: &[Span],
) -> Result<(Box<dyn Driver>, DriverInfo), OpenError> {
    let places = match u16::try_from(depth) {
        Ok(places) if (1..=MAX_DEPTH).contains(&depth) => places,
        _ => {
            let path = path.to_path_buf();
            return Err(OpenError::Depth { path, depth });
        }
    };
    let mut info = DriverInfo {
        driver: "pread",
        depth,
        file_bytes: 0,
        direct: false,
        registered_bytes: 0,
        ring_flags: "",
        notes: Vec::new(),
    };
    let file = ReadFile::open(path, &mut info.notes)?;
    (info.file_bytes, info.direct) = (file.bytes, file.direct);
    let file = match choice {
        DriverChoice::Pread => file,
        DriverChoice::Auto | DriverChoice::Uring => {
            match UringDriver::new(file, places, register) {
                Ok(driver) => {
                    driver.describe(&mut info);
                    return Ok((Box::new(driver), info));
                }
                Err((refusal, file)) if choice == DriverChoice::Auto => {
                    info.notes
                        .push(format!("{refusal}; reading with threads instead"));
                    file
                }
                Err((refusal, _)) => {
                    let path = path.to_path_buf();
                    return Err(OpenError::Uring { path, refusal });
                }
            }
        }
    };
    let driver = PreadDriver::new(file, places).map_err(|source| OpenError::Threads {
        path: path.to_path_buf(),
        source,
    })?;
    Ok((Box::new(driver), info))
}
