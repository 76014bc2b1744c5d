//! What kind of storage a folder is on.

use std::fs::File;
use std::io::Read;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use crate::error::PlanError;
use crate::kernel_files::{KernelFiles, text};
use crate::mounts::{self, Mount};
use crate::size::format_size;

/// Bytes that are read to measure buffered reads.
const BUFFERED_BYTES: u64 = 64 << 20;
const BUFFERED_BLOCK: usize = 512 << 10;

/// What the kernel's block layer reports about a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockDevice {
    /// The kernel's name of the whole disk, such as `nvme0n1`.
    pub name: String,
    /// It reports spinning platters; virtual disks often report them without having any.
    pub rotational: bool,
    /// A disk that a hypervisor or the kernel itself provides.
    pub is_virtual: bool,
    /// How far the page cache reads ahead. It does not affect `O_DIRECT` reads.
    pub read_ahead_kib: Option<u64>,
    /// The I/O scheduler in force; `none` if there is none.
    pub scheduler: Option<String>,
}

/// The storage below a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Storage {
    /// The folder, or the nearest one above it that exists.
    pub folder: PathBuf,
    /// Type of the file system, such as `ext4`.
    pub fs_type: String,
    /// What is mounted.
    pub source: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The mount does not allow writing.
    pub read_only: bool,
    /// Bytes of the file system.
    pub total_bytes: u64,
    /// Bytes that an unprivileged process may still write.
    pub free_bytes: u64,
    /// The disk, if there is one and the kernel shows it.
    pub device: Option<BlockDevice>,
}

impl Storage {
    /// Examines the storage of `path`, which need not exist yet.
    ///
    /// # Errors
    /// No folder above the path can be examined, or the mount table cannot be read.
    pub fn of(kernel: &KernelFiles, path: &Path) -> Result<Self, PlanError> {
        let wrap = |source: std::io::Error| PlanError::Storage {
            path: path.to_path_buf(),
            source,
        };
        let folder = nearest_existing(path).map_err(wrap)?;
        let free = rustix::fs::statvfs(&folder).map_err(|e| wrap(e.into()))?;
        let mounts = mounts::read(kernel)?;
        let mount = mounts::mount_of(&mounts, &folder)
            .ok_or_else(|| wrap(std::io::Error::other("it is on no known mount")))?;
        Ok(Self {
            fs_type: mount.fs_type.clone(),
            source: mount.source.clone(),
            mount_point: mount.point.clone(),
            read_only: mount.read_only,
            total_bytes: free.f_blocks.saturating_mul(free.f_frsize),
            free_bytes: free.f_bavail.saturating_mul(free.f_frsize),
            device: block_device(kernel, mount),
            folder,
        })
    }

    /// What tells it from other file systems: the source and, since all containers and most machines call theirs the
    /// same, the size, unless that changes with what is stored.
    pub fn name(&self) -> String {
        match self.fs_type.as_str() {
            "zfs" => self.source.clone(),
            // It may be such a file system at the other end.
            _ if self.is_remote() => self.source.clone(),
            _ => format!("{} of {}", self.source, format_size(self.total_bytes)),
        }
    }

    /// The file system is in memory, so files on it use the memory that they are meant to save.
    pub fn in_memory(&self) -> bool {
        matches!(
            self.fs_type.as_str(),
            "tmpfs" | "ramfs" | "devtmpfs" | "rootfs"
        )
    }

    /// The file system is reached through a network or another process.
    pub fn is_remote(&self) -> bool {
        const REMOTE: [&str; 9] = [
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "9p",
            "virtiofs",
            "ceph",
            "glusterfs",
            "vboxsf",
        ];
        REMOTE.contains(&self.fs_type.as_str()) || self.fs_type.starts_with("fuse")
    }
}

/// Bytes per second of reading the start of a file through the page cache, from which it is first dropped, in reads of
/// 512 KiB, one at a time.
///
/// # Errors
/// The file cannot be read.
pub fn buffered_read(path: &Path) -> std::io::Result<f64> {
    let mut file = File::open(path)?;
    fadvise(&file, 0, NonZeroU64::new(BUFFERED_BYTES), Advice::DontNeed)?;
    let mut block = vec![0; BUFFERED_BLOCK];
    let (started, mut read) = (Instant::now(), 0u64);
    while read < BUFFERED_BYTES {
        match file.read(&mut block)? {
            0 => break,
            n => read += n as u64,
        }
    }
    Ok(read as f64 / started.elapsed().as_secs_f64().max(1e-9))
}

/// The path itself or the closest folder above it that exists, with links resolved.
pub(crate) fn nearest_existing(path: &Path) -> std::io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let mut last = None;
    for ancestor in absolute.ancestors() {
        match ancestor.canonicalize() {
            Ok(real) if real.is_dir() => return Ok(real),
            Ok(_) => {}
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::NotFound.into()))
}

fn block_device(kernel: &KernelFiles, mount: &Mount) -> Option<BlockDevice> {
    // btrfs and overlay have no device number of their own; the source names the disk of btrfs.
    let by_number = kernel.sys_path(format!("dev/block/{}", mount.device));
    let by_name = mount
        .source
        .strip_prefix("/dev/")
        .map(|name| kernel.sys_path(format!("class/block/{name}")));
    let node = by_number
        .canonicalize()
        .ok()
        .or_else(|| by_name?.canonicalize().ok())?;
    // A partition is below its disk, which owns the queue.
    let disk = if node.join("partition").exists() {
        node.parent()?
    } else {
        &node
    };
    let name = disk.file_name()?.to_string_lossy().into_owned();
    let queue = disk.join("queue");
    let scheduler = text(&queue.join("scheduler")).map(|schedulers| {
        let chosen = schedulers
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'));
        chosen.map_or(schedulers.clone(), |(name, _)| name.to_owned())
    });
    Some(BlockDevice {
        rotational: text(&queue.join("rotational")).as_deref() == Some("1"),
        is_virtual: ["vd", "xvd", "loop", "zram", "ram"]
            .iter()
            .any(|p| name.starts_with(p)),
        read_ahead_kib: text(&queue.join("read_ahead_kb")).and_then(|kib| kib.parse().ok()),
        scheduler,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;

    fn tree_with(mount: &str) -> FakeTree {
        let tree = FakeTree::new();
        tree.put("proc/self/mountinfo", mount);
        let disk = "sys/devices/pci/block/nvme0n1";
        tree.put(format!("{disk}/queue/rotational"), "0\n");
        tree.put(format!("{disk}/queue/read_ahead_kb"), "128\n");
        tree.put(format!("{disk}/queue/scheduler"), "[none] mq-deadline\n");
        tree.put(format!("{disk}/nvme0n1p2/partition"), "2\n");
        for link in ["dev/block/259:2", "class/block/nvme0n1p2"] {
            let link = tree.path("sys").join(link);
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            let target = tree.path(format!("{disk}/nvme0n1p2"));
            std::os::unix::fs::symlink(target, link).unwrap();
        }
        tree
    }

    #[test]
    fn a_partition_is_traced_to_its_disk_by_number_or_by_name() {
        for mount in [
            "27 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n",
            "27 1 0:31 /@ / ro - btrfs /dev/nvme0n1p2 rw\n",
        ] {
            let tree = tree_with(mount);
            let folder = tree.path("not/there/yet");
            let storage = Storage::of(&tree.kernel(), &folder).unwrap();
            let device = storage.device.clone().expect("traced");
            assert_eq!(device.name, "nvme0n1");
            assert!(!device.rotational && !device.is_virtual);
            assert_eq!(device.read_ahead_kib, Some(128));
            assert_eq!(device.scheduler.as_deref(), Some("none"));
            assert_eq!(storage.folder, tree.path("").canonicalize().unwrap());
            assert!(storage.free_bytes > 0 && storage.total_bytes >= storage.free_bytes);
            assert!(storage.name().starts_with("/dev/nvme0n1p2 of "));
            assert_eq!(storage.read_only, storage.fs_type == "btrfs");
            assert!(!storage.in_memory() && !storage.is_remote());
        }
    }

    #[test]
    fn memory_and_network_are_no_flash() {
        for (fs_type, in_memory, remote) in [
            ("tmpfs", true, false),
            ("fuse.sshfs", false, true),
            ("9p", false, true),
        ] {
            let tree = tree_with(&format!("27 1 0:40 / / rw - {fs_type} none rw\n"));
            let storage = Storage::of(&tree.kernel(), &tree.path("")).unwrap();
            assert_eq!(
                (storage.in_memory(), storage.is_remote()),
                (in_memory, remote)
            );
            assert!(storage.device.is_none());
        }
    }

    #[test]
    fn the_running_machines_temporary_folder_is_examined() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::of(&KernelFiles::live(), dir.path()).unwrap();
        assert!(
            dir.path()
                .canonicalize()
                .unwrap()
                .starts_with(&storage.mount_point)
        );
        assert!(!storage.fs_type.is_empty());
    }
}
