//! What can go wrong while examining the machine.

use std::path::PathBuf;

use crate::size::format_size;

/// A fact about the machine could not be had, or a wish exceeds what it allows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A file or folder of the kernel is not readable.
    #[error("cannot read {}: {source}; is /proc or /sys mounted here?", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },

    /// A file of the kernel does not contain what it should.
    #[error("{}: {field} reads {text:?}, expected {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The field in it.
        field: &'static str,
        /// What is there (empty: the field is missing).
        text: String,
        /// What should be there.
        expected: &'static str,
    },

    /// The process may not open a single file more.
    #[error(
        "cannot open a file: {source}; raise the limit of open files, as with `ulimit -n 1024`"
    )]
    OpenFiles {
        /// What the system answered.
        source: std::io::Error,
    },

    /// The process may open too few files.
    #[error(
        "the limit of open files is {limit}, but {needed} are needed; raise it with `ulimit -n {needed}`"
    )]
    TooFewFiles {
        /// What `ulimit -n` says.
        limit: u64,
        /// What would do, with the files that are open already.
        needed: u64,
    },

    /// The process may map too little memory.
    #[error(
        "the limit of the address space is {}, but {} may be needed; raise it with `ulimit -v {}` or more, or \
         `ulimit -v unlimited`",
        format_size(*limit), format_size(*needed), needed.div_ceil(1024)
    )]
    AddressSpace {
        /// What `ulimit -v` says, in bytes.
        limit: u64,
        /// Bytes that would do.
        needed: u64,
    },

    /// More threads were asked for than the process may use CPUs.
    #[error(
        "{asked} threads requested, but this process may run on {allowed} CPUs only ({cpus}: \
         Cpus_allowed_list in /proc/self/status, less what is offline); use {allowed} or fewer, or widen \
         the CPU set (taskset, cpuset, docker --cpuset-cpus)"
    )]
    TooManyThreads {
        /// Requested threads.
        asked: usize,
        /// CPUs allowed and online.
        allowed: usize,
        /// The same as a kernel CPU list.
        cpus: String,
    },

    /// 0 threads were requested.
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

    /// There is no folder for packed models.
    #[error(
        "no folder for packed models: {tried}; set FOREBAY_CACHE to a writable folder on the \
         fastest disk, or pack explicitly with `forebay pack -o`"
    )]
    NoCacheFolder {
        /// Each folder tried and what was wrong with it.
        tried: String,
    },

    /// Others may change what would be believed.
    #[error("{}: {why}", path.display())]
    Untrusted {
        /// The folder or file of the cache.
        path: PathBuf,
        /// Who may change it, and what to do.
        why: String,
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

    /// A plan file that cannot be used.
    #[error("{}: {why}", path.display())]
    Plan {
        /// The file.
        path: PathBuf,
        /// The field, its value and the allowed values.
        why: String,
    },

    /// No choice fits the limits.
    #[error("no plan fits the limits: {why}")]
    NoPlan {
        /// The limit, and what would fit it.
        why: String,
    },
}
