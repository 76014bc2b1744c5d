//! What is fuzzed, as data.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::random::Random;

/// Something that reads inputs from strangers.
pub trait Target {
    /// Valid inputs to begin with, at least one.
    fn seeds(&self) -> Vec<Vec<u8>>;

    /// Changes `input`; `other` is another input of this target.
    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random);

    /// Reads `input` and uses what was read as the engine would.
    ///
    /// # Errors
    /// The input is refused; the message without the names in it says in which way.
    fn run(&mut self, input: &[u8]) -> Result<(), String>;
}

/// A file that is written again for each input.
#[derive(Debug)]
pub struct Placed {
    file: File,
    path: PathBuf,
}

impl Placed {
    /// The file `name` in `folder`, empty.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(folder: &Path, name: &str) -> std::io::Result<Self> {
        let path = folder.join(name);
        let file = File::create(&path)?;
        Ok(Self { file, path })
    }

    /// Makes it `bytes` and `tail` zeros, which take no memory.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&self, bytes: &[u8], tail: u64) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(bytes, 0)?;
        match tail {
            0 => Ok(()),
            _ => self.file.set_len(bytes.len() as u64 + tail),
        }
    }

    /// Writes `bytes` at `at` and ends it at `len`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn patch(&self, bytes: &[u8], at: u64, len: u64) -> std::io::Result<()> {
        self.file.write_all_at(bytes, at)?;
        self.file.set_len(len)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A folder for a target's files, in memory where the system has such a place.
///
/// # Errors
/// It cannot be made.
pub fn scratch() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let builder = || {
        let mut builder = tempfile::Builder::new();
        builder.prefix("forebay-fuzz-");
        builder
    };
    builder()
        .tempdir_in(memory)
        .or_else(|_| builder().tempdir())
}
