//! Files that appear whole or not at all.

use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Writes `bytes` to a partial file beside `path`, brings it to the disk and renames it. A link is followed, and what
/// is no file is written to as it is: a device under that name must not be replaced.
///
/// # Errors
/// What the system says; the partial file is gone then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if std::fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        return File::options().write(true).open(&path)?.write_all(bytes);
    }
    let mut partial = path.as_os_str().to_os_string();
    partial.push(format!(".partial-{}", std::process::id()));
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&partial, &path)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&partial);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_and_pipes_are_written_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "long before").expect("writable");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        write_whole(&link, b"now").expect("writable");
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).expect("there"), b"now");

        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
        std::os::unix::fs::symlink(name, folder.path().join("pipe")).expect("a link");
        write_whole(&folder.path().join("pipe"), b"through").expect("a reader is there");
        drop(writer);
        let mut said = String::new();
        std::io::Read::read_to_string(&mut reader, &mut said).expect("readable");
        assert_eq!(said, "through");
        let names = std::fs::read_dir(folder.path()).expect("readable").count();
        assert_eq!(names, 3, "nothing partial stays");
    }
}
