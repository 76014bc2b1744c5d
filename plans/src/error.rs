//! What can go wrong while looking at the machine.

use std::path::PathBuf;

/// A fact about the machine could not be had, or a wish exceeds what it allows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A file of the kernel (or a folder) that must be readable is not.
    #[error("cannot read {}: {source}; is /proc or /sys mounted here?", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },

    /// A file of the kernel does not say what it should.
    #[error("{}: {field} reads {text:?}, expected {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The field in it.
        field: &'static str,
        /// What stands there (empty: the field is missing).
        text: String,
        /// What should stand there.
        expected: &'static str,
    },

    /// More threads were asked for than the process may use CPUs.
    #[error(
        "{asked} threads asked for, but this process may run on {allowed} CPUs only ({cpus}: \
         Cpus_allowed_list in /proc/self/status, less what is offline); use {allowed} or fewer, or widen \
         the CPU set (taskset, cpuset, docker --cpuset-cpus)"
    )]
    TooManyThreads {
        /// Threads asked for.
        asked: usize,
        /// CPUs allowed and online.
        allowed: usize,
        /// The same as a kernel CPU list.
        cpus: String,
    },

    /// No thread at all was asked for.
    #[error("0 threads: at least one is needed")]
    NoThreads,

    /// No CPU is both online and allowed.
    #[error(
        "none of the online CPUs ({online}) is allowed to this process ({allowed}); \
         change the CPU set (taskset, cpuset)"
    )]
    NoUsableCpu {
        /// Online CPUs as a kernel CPU list.
        online: String,
        /// Allowed CPUs as a kernel CPU list.
        allowed: String,
    },

    /// The memory bandwidth cannot be measured.
    #[error("cannot measure memory bandwidth: {why}")]
    Bandwidth {
        /// The reason, with its figures.
        why: String,
    },

    /// No folder is there for packed models.
    #[error(
        "no folder for packed models: {tried}; set FOREBAY_CACHE to a writable folder on the \
         fastest disk, or pack explicitly with `forebay pack -o`"
    )]
    NoCacheFolder {
        /// Each folder tried and what was wrong with it.
        tried: String,
    },

    /// A folder's file system could not be examined.
    #[error("cannot examine the file system of {}: {source}", path.display())]
    Storage {
        /// The folder.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },

    /// A profile or plan could not be written.
    #[error("cannot write {}: {source}; check free space and permissions, or set FOREBAY_CACHE to another folder", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },

    /// A plan file does not say what a plan says.
    #[error("{}: {why}", path.display())]
    Plan {
        /// The file.
        path: PathBuf,
        /// The field, what stands there and what may stand there.
        why: String,
    },

    /// No choice keeps the limits.
    #[error("no plan keeps the limits: {why}")]
    NoPlan {
        /// The limit, and what would keep it.
        why: String,
    },
}
