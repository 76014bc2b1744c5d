//! Files that are being written: beside their target, under a name that nobody can guess, locked by their writer.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{MemfdFlags, fsync, memfd_create, statfs};
use rustix::io::{Errno, retry_on_intr};

use super::regular::open_regular;

/// Comes between a target's name and a random number.
const PARTIAL: &str = ".partial-";

/// What remains of writers that were killed is removed for targets of these names; other files are not ours.
const OURS: [&str; 6] = [
    ".fbay",
    ".fbay.hot",
    ".fbay.profile",
    ".fbay.experts",
    ".packing",
    "machine.json",
];

/// Who else may write to a file is never a matter of the process's umask: packed models are refused where others may.
const MODE: u32 = 0o644;

/// Partial files of this process.
static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that appears under its name when it is whole, or is removed when dropped, unless it is a lasting one or in
/// memory.
#[derive(Debug)]
pub struct Partial {
    /// Locked for as long as it is open, which is how others know that somebody writes it: process ids would say
    /// nothing across containers.
    file: File,
    path: PathBuf,
    target: PathBuf,
}

impl Partial {
    /// Begins a file beside `target`.
    ///
    /// # Errors
    /// What the system says about creating a file there.
    pub fn beside(target: &Path) -> Result<Self> {
        loop {
            let partial = Self::create(target)?;
            // Best effort: some network file systems have no locks. Where there are, nobody else takes this one but to
            // remove the file, which can only happen before the lock is ours.
            let _ = partial.file.lock();
            if partial.file.metadata()?.nlink() > 0 {
                return Ok(partial);
            }
        }
    }

    /// Opens the file under the fixed name [`Self::lasting_path`], or begins it. It outlives the process, so that
    /// another one can go on with it.
    ///
    /// # Errors
    /// What the system says; [`ErrorKind::WouldBlock`] if another process writes it.
    pub fn lasting(target: &Path) -> Result<Self> {
        let path = Self::lasting_path(target);
        let mut options = File::options();
        options.read(true).write(true);
        options.create(true).truncate(false).mode(MODE);
        let file = options.open(&path)?;
        file.try_lock()?;
        sync_folder(&path)?;
        let target = target.to_path_buf();
        Ok(Self { file, path, target })
    }

    /// Begins a file in memory, which is never published: the process can open it by [`Self::path`]. Holes take no
    /// room, whatever the file system of `target`.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn in_memory(target: &Path) -> Result<Self> {
        let file = File::from(memfd_create("outline", MemfdFlags::CLOEXEC)?);
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let target = target.to_path_buf();
        Ok(Self { file, path, target })
    }

    /// The name of a file that outlives its writer.
    pub fn lasting_path(target: &Path) -> PathBuf {
        beside(target, ".packing")
    }

    fn create(target: &Path) -> Result<Self> {
        // Held until the file is listed, so that no file escapes `withdraw_partials`.
        let mut live = live();
        loop {
            let number = RandomState::new().hash_one(()) as u32;
            let path = beside(target, &format!("{PARTIAL}{number:08x}"));
            let created = File::options()
                .write(true)
                .create_new(true)
                .mode(MODE)
                .open(&path);
            let file = match created {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                created => created?,
            };
            live.insert(path.clone());
            let target = target.to_path_buf();
            return Ok(Self { file, path, target });
        }
    }

    /// The file, to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The name that it has for now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Brings the file to the disk and gives it its target's name, in whose place it comes.
    ///
    /// # Errors
    /// What the system says; the file is gone then, unless only its folder could not be brought to the disk.
    pub fn publish(self) -> Result<()> {
        self.file.sync_all()?;
        {
            let mut live = live();
            std::fs::rename(&self.path, &self.target)?;
            live.remove(&self.path);
        }
        sync_folder(&self.target)
    }
}

/// Brings the name of a file to the disk.
fn sync_folder(path: &Path) -> Result<()> {
    // It may be written to, but not be read.
    let Ok(folder) = File::open(folder_of(path)) else {
        return Ok(());
    };
    match retry_on_intr(|| fsync(&folder)) {
        // Some file systems (of networks, in user space) cannot do that for folders. The file itself is on the disk.
        Err(Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) => Ok(()),
        synced => Ok(synced?),
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let mut live = live();
        if live.remove(&self.path) {
            // Best effort: a partial file is never used.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// `path` with `end` after its name.
pub(crate) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(end);
    path.with_file_name(name)
}

/// Removes all partial files of this process, which is about to end. While the result lives, none is begun or
/// published.
#[must_use = "files are begun again when it is dropped"]
pub fn withdraw_partials() -> impl Sized {
    let mut live = live();
    for path in std::mem::take(&mut *live) {
        let _ = std::fs::remove_file(path);
    }
    live
}

/// Whether other machines may write into `folder`, whose locks are perhaps not seen here.
fn may_be_shared(folder: &Path) -> bool {
    // NFS, SMB (two), 9P, Ceph, Lustre, and whatever is in user space.
    const SHARED: [u32; 7] = [
        0x6969,
        0xff53_4d42,
        0xfe53_4d42,
        0x0102_1997,
        0x00c3_6400,
        0x0bd0_0bd0,
        0x6573_5546,
    ];
    statfs(folder).is_ok_and(|of| SHARED.contains(&(of.f_type as u32)))
}

/// Whether nobody has written to a file for an hour.
fn is_old(file: &File) -> bool {
    const AGE: Duration = Duration::from_secs(3600);
    let written = file.metadata().and_then(|info| info.modified());
    written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > AGE))
}

/// Removes partial files in the folder of `target` whose writers are gone (a conversion that was killed).
pub fn remove_stale_partials(target: &Path) {
    let is_shared = may_be_shared(folder_of(target));
    let entries = std::fs::read_dir(folder_of(target)).into_iter().flatten();
    for entry in entries.flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || !is_partial(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        let unlocked = open_regular(&path).is_ok_and(|file| {
            // Removed while it is locked: its writer may be about to lock it, and looks afterwards.
            (!is_shared || is_old(&file))
                && file.try_lock().is_ok()
                && std::fs::remove_file(&path).is_ok()
        });
        if unlocked {
            tracing::debug!(path = %path.display(), "removed what a killed writer left");
        }
    }
}

fn is_partial(name: &OsStr) -> bool {
    let parts = name.to_str().and_then(|name| name.rsplit_once(PARTIAL));
    parts.is_some_and(|(target, number)| {
        let digits = |c: char| c.is_ascii_hexdigit() || c == '-';
        OURS.iter().any(|end| target.ends_with(end)) && number.chars().all(digits)
    })
}

/// The folder that `target` lies in: `.` for a bare file name.
pub fn folder_of(target: &Path) -> &Path {
    target
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("readable").flatten();
        let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn files_that_are_being_written_are_left_alone_and_others_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("out.fbay");
        let [one, other] = [0, 1].map(|_| Partial::beside(&target).expect("writable"));
        assert_ne!(one.path, other.path);
        for (mut file, text) in [(one.file(), "one"), (other.file(), "other")] {
            file.write_all(text.as_bytes()).expect("room");
        }
        let dead = folder.path().join("x.fbay.partial-1234-0");
        let pipe = folder.path().join("y.fbay.partial-12345678");
        std::fs::write(&dead, "half").expect("writable");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("a program").success());
        remove_stale_partials(&target);
        assert_eq!(names(folder.path()).len(), 3, "{:?}", names(folder.path()));
        assert!(!dead.exists() && pipe.exists());
        one.publish().expect("whole");
        assert_eq!(std::fs::read(&target).expect("there"), b"one");
        other.publish().expect("whole, too");
        assert_eq!(std::fs::read(&target).expect("there"), b"other");
        Partial::beside(&target).expect("writable");
        assert_eq!(names(folder.path()).len(), 2, "{:?}", names(folder.path()));
    }

    /// Where locks of other machines may not be seen, only age tells that a writer is gone.
    #[test]
    fn only_files_that_nobody_writes_are_old() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::create(folder.path().join("x")).expect("writable");
        assert!(!is_old(&file));
        let before = std::time::SystemTime::now() - Duration::from_secs(4000);
        file.set_modified(before).expect("its own");
        assert!(is_old(&file));
        assert!(!may_be_shared(Path::new("/proc")));
    }

    /// As folders of /proc: the name is there, and more cannot be done.
    #[test]
    fn folders_that_cannot_be_brought_to_the_disk_are_no_error() {
        let file = Path::new("/proc/self/status");
        let synced = File::open(folder_of(file)).expect("a folder").sync_all();
        assert_eq!(synced.expect_err("no disk").kind(), ErrorKind::InvalidInput);
        sync_folder(file).expect("not needed");
    }

    #[test]
    fn a_file_that_cannot_be_published_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("folder");
        std::fs::create_dir(&target).expect("created");
        let partial = Partial::beside(&target).expect("writable");
        partial.publish().expect_err("a folder is in the way");
        assert_eq!(names(folder.path()), ["folder"]);
    }
}
