//! Files that appear whole or not at all.

use std::io::Write;
use std::path::Path;

/// Writes `bytes` to a partial file beside `path`, brings it to the disk and renames it.
///
/// # Errors
/// What the system says; the partial file is gone then.
pub fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut partial = path.as_os_str().to_os_string();
    partial.push(format!(".partial-{}", std::process::id()));
    let write = || {
        let mut file = std::fs::File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&partial);
    })
}
