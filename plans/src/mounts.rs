//! The mount table, `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::path::{Path, PathBuf};

use crate::error::PlanError;
use crate::kernel_files::KernelFiles;

/// One mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of the device; major 0 is a file system without a single block device of its
    /// own.
    pub device: String,
    /// Which folder of the file system is mounted (`/` unless bind-mounted).
    pub root: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The type, such as `ext4` or `cgroup2`.
    pub fs_type: String,
    /// What is mounted, such as `/dev/vda`.
    pub source: String,
    /// Options of the file system, for cgroup v1 its controllers.
    pub super_options: String,
    /// Mounted read-only.
    pub read_only: bool,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        // Optional fields come before the single dash, so the line is split there first.
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let device = left.next()?.to_owned();
        let root = unescape(left.next()?);
        let point = PathBuf::from(unescape(left.next()?));
        let options = left.next()?;
        let mut right = right.split(' ');
        let fs_type = right.next()?.to_owned();
        let source = unescape(right.next()?);
        let super_options = right.next().unwrap_or_default().to_owned();
        let is_ro = |options: &str| options.split(',').any(|option| option == "ro");
        Some(Self {
            device,
            root,
            point,
            read_only: is_ro(options) || is_ro(&super_options),
            fs_type,
            source,
            super_options,
        })
    }
}

/// All mounts that this process sees, in mount order.
///
/// # Errors
/// The table cannot be read. Lines of an unknown form are skipped.
pub fn read(kernel: &KernelFiles) -> Result<Vec<Mount>, PlanError> {
    let table = kernel.proc_text("self/mountinfo")?;
    Ok(table.lines().filter_map(Mount::parse).collect())
}

/// The mount of an absolute, canonical path: the deepest one, and of several at the same mount point the last, since it
/// hides the others.
pub fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.components().count())
}

/// Undoes the octal escapes (`\040` for a space) of the mount table.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, tail)) = rest.split_first() {
        match (byte, tail) {
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    after @ ..,
                ],
            ) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
28 27 0:25 / /mnt/my\\040disk ro,nosuid - tmpfs none rw,size=4k
29 27 8:1 / /mnt rw - xfs /dev/sda1 rw
30 29 8:2 /data /mnt rw - f2fs /dev/sda2 rw
a broken line
";

    #[test]
    fn the_deepest_and_last_mount_of_a_path_wins() {
        let mounts: Vec<Mount> = TABLE.lines().filter_map(Mount::parse).collect();
        assert_eq!(mounts.len(), 5);
        let of = |path: &str| mount_of(&mounts, Path::new(path)).expect("mounted");
        assert_eq!(of("/home/me/model.gguf").fs_type, "ext4");
        assert_eq!(of("/home/me").source, "/dev/vda");
        assert_eq!(of("/mnt/x").fs_type, "f2fs");
        assert_eq!(of("/mnt/x").root, "/data");
        assert_eq!(of("/mnt/my disk/x").fs_type, "tmpfs");
        assert!(of("/mnt/my disk/x").read_only);
        assert_eq!(of("/mntx").fs_type, "ext4", "whole path components only");
    }
}
