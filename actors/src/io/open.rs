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

/// Most reads in flight: beyond this no disk known to us gets faster, and a ring's memory and the
/// thread driver's tables stay small.
pub const MAX_DEPTH: usize = 1024;

/// A file cannot be read, or not by the driver that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The path does not lead to anything.
    #[error("{}: there is no such file; check the path, or make the file with `forebay pack`", path.display())]
    NotFound {
        /// What was to be opened.
        path: PathBuf,
    },
    /// The process may not read the file.
    #[error("{}: permission denied; make it readable with `chmod u+r`, or run as its owner", path.display())]
    Permission {
        /// What was to be opened.
        path: PathBuf,
    },
    /// A directory, device or pipe.
    #[error("{}: not a regular file; give the path of a bundle file (.fbay)", path.display())]
    NotAFile {
        /// What was to be opened.
        path: PathBuf,
    },
    /// Any other refusal of the system.
    #[error("{}: cannot open: {source}", path.display())]
    Os {
        /// What was to be opened.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// io_uring was asked for by name and is not to be had.
    #[error("{}: {refusal}; or let the driver be chosen automatically", path.display())]
    Uring {
        /// What was to be opened.
        path: PathBuf,
        /// Why not, with the remedy.
        refusal: UringRefusal,
    },
    /// The threads of the `pread` driver cannot be started.
    #[error("{}: cannot start the reader threads: {source}; raise `ulimit -u`, or ask for a smaller depth", path.display())]
    Threads {
        /// What was to be opened.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The depth is zero or too large.
    #[error("{}: {depth} reads in flight are not possible; choose 1 to {MAX_DEPTH}", path.display())]
    Depth {
        /// What was to be opened.
        path: PathBuf,
        /// The depth asked for.
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

/// A regular file opened for reading past the page cache where the file system can do that.
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
    /// The path is no readable regular file.
    pub(super) fn open(path: &Path, notes: &mut Vec<String>) -> Result<Self, OpenError> {
        let wrap = |source| OpenError::of(path, source);
        // Asked before opening, since opening a pipe would wait for its writer.
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

    /// After a buffered read: gives the page cache's copy back, since the slot holds the bytes now and
    /// the memory budget counts them once.
    pub(super) fn forget(&self, offset: u64, len: u32) {
        if !self.direct {
            // A hint: a refusal costs memory that the kernel can take back itself.
            let len = NonZeroU64::new(u64::from(len));
            let _ = fadvise(&self.file, offset, len, Advice::DontNeed);
        }
    }
}

/// Some file systems accept the flag and refuse the first read instead.
fn try_direct(file: File) -> io::Result<File> {
    let mut slot = Slab::new(PAGE)
        .ok()
        .and_then(|mut slab| slab.carve(PAGE))
        .ok_or(io::ErrorKind::OutOfMemory)?;
    match file.read_at(&mut slot, 0) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Err(e),
        // Other failures are the disk's, not the mode's: they surface as faults of the reads.
        _ => Ok(file),
    }
}

/// Opens `path` for at most `depth` reads in flight.
///
/// `register` lists the memory that reads will fill; io_uring pins it once if the system allows that
/// much locked memory, and otherwise pins at each read.
///
/// # Errors
/// [`OpenError`]: the path is no readable regular file, `depth` is not in `1..=`[`MAX_DEPTH`], or the
/// driver asked for is not to be had.
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
