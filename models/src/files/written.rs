//! Small files that appear whole or not at all.

use std::fs::File;
use std::io::{ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

use super::partial::Partial;

/// The path of what is kept beside the file at `path`, under its name with `ending` added.
pub fn side_file(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(ending);
    PathBuf::from(name)
}

/// Writes a file of the engine's own. It replaces whatever had the name, links too.
///
/// # Errors
/// What the system says; what was there before stays then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = Partial::beside(path)?;
    partial.file().write_all(bytes)?;
    partial.publish()
}

/// Has `write` fill a file that a user has named. A link is followed, and what is no file is written to as it is: a
/// device under that name must not be replaced.
///
/// # Errors
/// What `write` or the system says; a file that was there before stays then.
pub fn write_output(path: &Path, write: impl FnOnce(&File) -> Result<()>) -> Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if std::fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        return write(&File::options().write(true).open(&path)?);
    }
    let partial = Partial::beside(&path)?;
    write(partial.file())?;
    partial.publish()
}

/// Whether [`write_output`] could begin a file under this name now. Nothing is written.
///
/// # Errors
/// What the system says.
pub fn check_output(path: &Path) -> Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    match std::fs::metadata(&path) {
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        // A pipe would wait for its reader.
        Ok(found) if !found.is_file() => Ok(()),
        _ => Partial::beside(&path).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_and_pipes_are_written_to_where_a_user_named_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "long before").expect("writable");
        symlink(&file, &link).expect("a link");
        write_output(&link, |mut file| file.write_all(b"now")).expect("writable");
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).expect("there"), b"now");

        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let name = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let pipe = folder.path().join("pipe");
        symlink(name, &pipe).expect("a link");
        write_output(&pipe, |mut file| file.write_all(b"through")).expect("a reader is there");
        drop(writer);
        let mut said = String::new();
        std::io::Read::read_to_string(&mut reader, &mut said).expect("readable");
        assert_eq!(said, "through");
        let names = std::fs::read_dir(folder.path()).expect("readable").count();
        assert_eq!(names, 3, "nothing partial stays");
    }

    #[test]
    fn a_check_writes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        check_output(&file).expect("writable");
        assert!(!file.exists());
        std::fs::write(&file, "before").expect("writable");
        check_output(&file).expect("writable");
        assert_eq!(std::fs::read(&file).expect("there"), b"before");
        check_output(Path::new("/dev/null")).expect("a device");
        for (path, kind) in [
            (folder.path().to_path_buf(), ErrorKind::IsADirectory),
            (folder.path().join("none/file"), ErrorKind::NotFound),
            (file.join("below"), ErrorKind::NotADirectory),
        ] {
            let refusal = check_output(&path).expect_err("not writable");
            assert_eq!(refusal.kind(), kind, "{}", path.display());
        }
        let names = std::fs::read_dir(folder.path()).expect("readable").count();
        assert_eq!(names, 1, "nothing partial stays");
    }

    #[test]
    fn the_engines_own_files_replace_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "precious").expect("writable");
        symlink(&file, &link).expect("a link");
        write_whole(&link, b"now").expect("writable");
        assert!(!link.is_symlink());
        assert_eq!(std::fs::read(&file).expect("there"), b"precious");
        assert_eq!(std::fs::read(&link).expect("there"), b"now");
    }

    #[test]
    fn what_fails_leaves_everything_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "before").expect("writable");
        let fail = |mut file: &File| {
            file.write_all(b"half")?;
            Err(std::io::ErrorKind::StorageFull.into())
        };
        write_output(&path, fail).expect_err("it failed");
        assert_eq!(std::fs::read(&path).expect("there"), b"before");
        write_whole(&folder.path().join("none/file"), b"x").expect_err("no folder");
        let names = std::fs::read_dir(folder.path()).expect("readable").count();
        assert_eq!(names, 1);
    }
}
