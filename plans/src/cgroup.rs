//! The control groups of this process, versions 1 and 2, including nested ones.
//!
//! Every group up to the root limits the process, so all of them are examined. Containers show their own group as the
//! mount's root; the mount table tells which part of the hierarchy is visible.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::PlanError;
use crate::kernel_files::{KernelFiles, text};
use crate::mounts::{self, Mount};

/// Which interface files a group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// One hierarchy per controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// The folder of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The folder with the interface files.
    pub dir: PathBuf,
    /// Which files it has.
    pub version: Version,
}

/// The groups that limit this process through `controller` (`memory`, `cpu`), the innermost first.
///
/// A unified hierarchy is always listed, even if its controllers are bound to version 1: its files decide. A kernel
/// without control groups has none.
///
/// # Errors
/// `/proc/self/cgroup` or the mount table cannot be read.
pub fn groups(kernel: &KernelFiles, controller: &str) -> Result<Vec<Group>, PlanError> {
    let memberships = match kernel.proc_text("self/cgroup") {
        Err(PlanError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        read => read?,
    };
    let mounts = mounts::read(kernel)?;
    let mut found = Vec::new();
    for line in memberships.lines() {
        // hierarchy-id:controllers:path; the path may hold colons.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let version = if controllers.is_empty() {
            Version::V2
        } else if controllers.split(',').any(|name| name == controller) {
            Version::V1
        } else {
            continue;
        };
        if let Some(mount) = hierarchy(&mounts, version, controller, path) {
            found.extend(
                chain(kernel, mount, path)
                    .into_iter()
                    .map(|dir| Group { dir, version }),
            );
        }
    }
    Ok(found)
}

/// The mount that shows the hierarchy: preferably one whose visible part contains the group.
fn hierarchy<'a>(
    mounts: &'a [Mount],
    version: Version,
    controller: &str,
    path: &str,
) -> Option<&'a Mount> {
    let matches = |mount: &&Mount| match version {
        Version::V1 => {
            mount.fs_type == "cgroup" && mount.super_options.split(',').any(|o| o == controller)
        }
        Version::V2 => mount.fs_type == "cgroup2",
    };
    let mut candidates = mounts.iter().filter(matches).peekable();
    let first = candidates.peek().copied();
    candidates
        .find(|mount| Path::new(path).starts_with(&mount.root))
        .or(first)
}

/// Folders from the process's own group up to the mount's root.
fn chain(kernel: &KernelFiles, mount: &Mount, path: &str) -> Vec<PathBuf> {
    let top = kernel.rooted(&mount.point);
    // A path outside the visible part (it starts with `/..` in a cgroup namespace) leaves the mount's root as the only
    // visible group.
    let inner = Path::new(path)
        .strip_prefix(&mount.root)
        .ok()
        .filter(|inner| !inner.components().any(|c| c.as_os_str() == ".."))
        .unwrap_or(Path::new(""));
    inner
        .ancestors()
        .map(|part| {
            // `join("")` would leave a trailing slash in the messages.
            if part.as_os_str().is_empty() {
                top.clone()
            } else {
                top.join(part)
            }
        })
        .filter(|dir| dir.is_dir())
        .collect()
}

/// CPUs' worth of time per period that the tightest group allows; `None` without a quota.
///
/// # Errors
/// As [`groups`].
pub fn cpu_quota(kernel: &KernelFiles) -> Result<Option<f64>, PlanError> {
    let quotas = groups(kernel, "cpu")?.into_iter().filter_map(|group| {
        let (quota, period) = match group.version {
            Version::V1 => (
                text(&group.dir.join("cpu.cfs_quota_us"))?,
                text(&group.dir.join("cpu.cfs_period_us"))?,
            ),
            Version::V2 => {
                let line = text(&group.dir.join("cpu.max"))?;
                let (quota, period) = line.split_once(' ')?;
                (quota.to_owned(), period.to_owned())
            }
        };
        // -1 (v1) and "max" (v2) mean no quota.
        let quota: u64 = quota.parse().ok()?;
        let period: u64 = period.parse().ok()?;
        (period > 0).then(|| quota as f64 / period as f64)
    });
    Ok(quotas.min_by(f64::total_cmp))
}
