//! Reading files that others have named or made: neither a pipe without a writer nor a huge file holds the reader up.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Opens a regular file to read it.
///
/// # Errors
/// What the system says, or that the path is something else. A pipe is refused at once, whoever put it there and
/// when: asking before opening would leave a moment in between.
pub fn open_regular(path: &Path) -> Result<File> {
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    // Reads shall wait: io_uring, for one, would refuse those that have to.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open_regular`]; a larger file, before it is read.
pub fn read_regular(path: &Path, most: u64) -> Result<Vec<u8>> {
    read_at_most(path, most)?.map_err(|len| {
        let problem = format!("it has {len} bytes or more, and such a file has at most {most}");
        Error::new(ErrorKind::FileTooLarge, problem)
    })
}

/// Reads a regular file, or returns the length of one that has more than `most` bytes, as far as that is known.
///
/// # Errors
/// As [`open_regular`].
pub(crate) fn read_at_most(path: &Path, most: u64) -> Result<std::result::Result<Vec<u8>, u64>> {
    let file = open_regular(path)?;
    let len = file.metadata()?.len();
    if len > most {
        return Ok(Err(len));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    // It may be growing.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        len if len > most => Ok(Err(len)),
        _ => Ok(Ok(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let (pipe, file) = (folder.path().join("pipe"), folder.path().join("file"));
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("a program").success());
        for path in [&*pipe, folder.path(), Path::new("/dev/zero")] {
            let message = open_regular(path).expect_err("refused").to_string();
            assert!(message.contains("not a regular file"), "{message}");
        }
        std::fs::write(&file, "text").expect("writable");
        let flags = fcntl_getfl(open_regular(&file).expect("regular")).expect("flags");
        assert!(!flags.contains(OFlags::NONBLOCK));
    }

    #[test]
    fn files_that_are_too_large_are_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "text").expect("writable");
        assert_eq!(read_regular(&path, 4).expect("just right"), b"text");
        let message = read_regular(&path, 3).expect_err("refused").to_string();
        assert!(message.contains("at most 3"), "{message}");
        let file = File::options().write(true).open(&path).expect("writable");
        file.set_len(1 << 40).expect("sparse");
        read_regular(&path, 1 << 20).expect_err("refused");
        // Its length says nothing.
        let message = read_regular(Path::new("/proc/self/maps"), 9).expect_err("refused");
        assert!(message.to_string().contains("at most 9"), "{message}");
    }
}
