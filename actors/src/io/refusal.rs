//! Why a file cannot be read, or not by the driver that was asked for.

use std::io;
use std::path::{Path, PathBuf};

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
    pub(super) fn of(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { path },
            io::ErrorKind::PermissionDenied => Self::Permission { path },
            io::ErrorKind::IsADirectory => Self::NotAFile { path },
            _ => Self::Os { path, source },
        }
    }
}

/// Why io_uring is not available; the message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum UringRefusal {
    /// The kernel has no io_uring.
    #[error("the kernel has no io_uring; use Linux 5.11 or later")]
    Missing,
    /// The kernel's io_uring is too old.
    #[error("the kernel's io_uring is older than Linux 5.11 (no timed wait); use a later kernel")]
    TooOld,
    /// A policy forbids it.
    #[error(
        "io_uring is forbidden here; check `sysctl kernel.io_uring_disabled`, or the container's \
         seccomp profile (Docker: `--security-opt seccomp=...`)"
    )]
    Forbidden,
    /// No memory for the ring.
    #[error("no memory for the ring: {0}; raise `ulimit -l` or ask for a smaller depth")]
    Memory(io::Error),
    /// Anything else.
    #[error("io_uring cannot be set up: {0}")]
    Os(io::Error),
}

impl From<io::Error> for UringRefusal {
    fn from(source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOSYS) => Self::Missing,
            Some(libc::EPERM | libc::EACCES) => Self::Forbidden,
            Some(libc::ENOMEM) => Self::Memory(source),
            _ => Self::Os(source),
        }
    }
}
