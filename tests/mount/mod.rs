//! A small device of its own for one test.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_plans::kernel_files::KernelFiles;
use forebay_plans::storage::Storage;

/// No child takes longer from fork to exec.
const PATIENCE: Duration = Duration::from_secs(20);

/// A memory file system; unmounted when dropped.
#[derive(Debug)]
pub struct Mount(PathBuf);

impl Mount {
    /// Mounts it on the folder `at`. `None` where this process may not mount, which is said aloud.
    pub fn new(at: PathBuf, options: &str) -> Option<Self> {
        let mut mount = Command::new("mount");
        // All users may write to a new one, which no cache may be.
        let options = format!("mode=755,{options}");
        mount
            .args(["-t", "tmpfs", "-o", &options, "forebay-test"])
            .arg(&at);
        match mount.output() {
            Ok(output) if output.status.success() => Some(Self(at)),
            refusal => {
                eprintln!("SKIPPED: cannot mount a file system here: {refusal:?}");
                None
            }
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Gives it another size: at once, or when what was removed is free; see [`Self::remove`].
    pub fn resize(&self, size: &str) {
        let start = Instant::now();
        loop {
            let mut mount = Command::new("mount");
            mount
                .args(["-o", &format!("remount,size={size}")])
                .arg(&self.0);
            let output = mount.output().expect("mount runs");
            if output.status.success() {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{mount:?}: {output:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes all the room that is left but `spare` bytes with a file `name`.
    pub fn fill(&self, name: &str, spare: u64) {
        let path = self.0.join(name);
        let mut file = std::fs::File::create(&path).expect("a writable device");
        while file.write_all(&[0; 4096]).is_ok() {}
        let length = file.metadata().expect("there").len();
        file.set_len(length.saturating_sub(spare)).expect("shorter");
    }

    /// Removes the file `name`, and waits until its room is free: another test's child may hold a copy of a descriptor
    /// between fork and exec.
    pub fn remove(&self, name: &str) {
        let path = self.0.join(name);
        let file = std::fs::File::open(&path).expect("there");
        let taken = file.metadata().expect("readable").blocks() * 512;
        let before = self.free();
        std::fs::remove_file(&path).expect("removable");
        drop(file);
        let start = Instant::now();
        while self.free() < before + taken {
            assert!(
                start.elapsed() < PATIENCE,
                "{} is still open",
                path.display()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Free bytes.
    fn free(&self) -> u64 {
        let storage = Storage::of(&KernelFiles::live(), &self.0);
        storage.expect("it is mounted").free_bytes
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: another test's child may hold a copy of a descriptor between fork and exec.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
