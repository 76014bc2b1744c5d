//! A folder for one test, on the disk of the build (a memory file system would refuse direct reads),
//! removed afterwards.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The folder; gone when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new, empty folder.
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "{}-{}-{number}",
            env!("CARGO_CRATE_NAME"),
            std::process::id()
        );
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a writable build folder");
        Self(path)
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A path in the folder.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file into the folder.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, bytes).expect("a writable folder");
        path
    }

    /// A new folder in the folder.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(&path).expect("a writable folder");
        path
    }

    /// A copy of all files of `from` as a folder in the folder.
    pub fn copy_of(&self, from: &Path, name: &str) -> PathBuf {
        let path = self.folder(name);
        for entry in std::fs::read_dir(from).expect("a readable folder") {
            let entry = entry.expect("a readable entry");
            std::fs::copy(entry.path(), path.join(entry.file_name())).expect("a copy");
        }
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Best effort: what stays lies in the build folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Names of the files right in `folder`, sorted.
pub fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Paths in `folder` whose names contain `part`.
pub fn found_in(folder: &Path, part: &str) -> Vec<PathBuf> {
    names_in(folder)
        .into_iter()
        .filter(|n| n.contains(part))
        .map(|n| folder.join(n))
        .collect()
}
