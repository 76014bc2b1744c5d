//! How much memory there is, and what keeps this process from using it.

use std::path::PathBuf;

use serde::Serialize;

use crate::cgroup::{self, Group, Version};
use crate::error::PlanError;
use crate::kernel_files::{KernelFiles, field, kib_value, text};

/// Limits this large mean "none": version 1 prints 2^63 rounded down to a page.
const UNLIMITED: u64 = 1 << 60;

/// The limit of one control group between this process and the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupLimit {
    /// The group's folder.
    pub dir: PathBuf,
    /// The interface it has.
    pub version: Version,
    /// Bytes at which the kernel reclaims, throttles or kills.
    pub limit_bytes: u64,
    /// Bytes charged to the group, page cache included.
    pub used_bytes: u64,
    /// Those of them that are file pages, which the kernel drops before it refuses memory.
    pub reclaimable_bytes: u64,
}

impl GroupLimit {
    /// Bytes that members of the group may still take.
    pub fn available(&self) -> u64 {
        let held = self.used_bytes.saturating_sub(self.reclaimable_bytes);
        self.limit_bytes.saturating_sub(held)
    }
}

/// When anonymous memory gets huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// Wherever they fit.
    Always,
    /// If the program requests them, which is enough for Forebay.
    Madvise,
    /// Never.
    Never,
    /// The kernel has none.
    Absent,
}

/// A resource limit of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rlimit {
    /// This many bytes.
    Bytes(u64),
    /// None.
    Unlimited,
}

/// Memory of the machine and limits on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryLimits {
    /// Memory of the machine in bytes (`MemTotal`).
    pub total_bytes: u64,
    /// Bytes available without swapping (`MemAvailable`).
    pub available_bytes: u64,
    /// Swap space in bytes (`SwapTotal`).
    pub swap_bytes: u64,
    /// Control groups that set a limit, the innermost first.
    pub groups: Vec<GroupLimit>,
    /// `RLIMIT_MEMLOCK`, soft: how much may be registered with io_uring.
    pub memlock: Rlimit,
    /// `RLIMIT_AS`, soft: how much may be mapped, files included.
    pub address_space: Rlimit,
    /// Transparent huge pages for anonymous memory.
    pub huge_pages: HugePages,
}

impl MemoryLimits {
    /// Reads the running system.
    ///
    /// # Errors
    /// A file that every Linux has cannot be read or lacks a field.
    pub fn read() -> Result<Self, PlanError> {
        Self::read_from(&KernelFiles::live())
    }

    /// Reads a system whose `/sys` and `/proc` are elsewhere.
    ///
    /// # Errors
    /// As [`MemoryLimits::read`].
    pub fn read_from(kernel: &KernelFiles) -> Result<Self, PlanError> {
        let meminfo = kernel.proc_text("meminfo")?;
        let bytes = |key: &'static str| {
            let value = field(&meminfo, key);
            value
                .and_then(kib_value)
                .ok_or_else(|| PlanError::Malformed {
                    path: kernel.proc_path("meminfo"),
                    field: key,
                    text: value.unwrap_or_default().to_owned(),
                    expected: "a number of kB",
                })
        };
        let limits = kernel.proc_text("self/limits")?;
        let groups = cgroup::groups(kernel, "memory")?;
        Ok(Self {
            total_bytes: bytes("MemTotal")?,
            available_bytes: bytes("MemAvailable")?,
            swap_bytes: bytes("SwapTotal")?,
            groups: groups.iter().filter_map(group_limit).collect(),
            memlock: soft_limit(&limits, "Max locked memory"),
            address_space: soft_limit(&limits, "Max address space"),
            huge_pages: huge_pages(kernel),
        })
    }

    /// Bytes that this process can still take before the machine swaps or a group reaches its
    /// limit.
    ///
    /// What the process already holds is not included.
    pub fn effective_available(&self) -> u64 {
        let groups = self.groups.iter().map(GroupLimit::available);
        groups.fold(self.available_bytes, u64::min)
    }

    /// The maximum that this process could ever hold: the machine's memory or the tightest group's limit.
    pub fn effective_total(&self) -> u64 {
        let groups = self.groups.iter().map(|group| group.limit_bytes);
        groups.fold(self.total_bytes, u64::min)
    }

    /// The group whose limit is the least, if that is less than the machine's memory.
    pub fn lowest_group(&self) -> Option<&GroupLimit> {
        self.groups
            .iter()
            .min_by_key(|group| group.limit_bytes)
            .filter(|group| group.limit_bytes < self.total_bytes)
    }

    /// The group with the least left, if groups are what limits.
    pub fn tightest_group(&self) -> Option<&GroupLimit> {
        self.groups
            .iter()
            .min_by_key(|group| group.available())
            .filter(|group| group.available() <= self.available_bytes)
    }
}

/// The limit of one group; `None` if it sets none.
fn group_limit(group: &Group) -> Option<GroupLimit> {
    let number = |name: &str| -> Option<u64> { text(&group.dir.join(name))?.parse().ok() };
    let stat = text(&group.dir.join("memory.stat")).unwrap_or_default();
    let counter = |key: &str| -> Option<u64> {
        stat.lines().find_map(|line| {
            let (name, value) = line.split_once(' ')?;
            (name == key).then(|| value.trim().parse().ok())?
        })
    };
    // "max" does not parse as a number, so an absent limit is skipped. A version 1 group also states the limit of
    // groups above it, which may lie outside what a container sees.
    let (limits, used, inactive, active) = match group.version {
        Version::V1 => (
            [
                number("memory.limit_in_bytes"),
                counter("hierarchical_memory_limit"),
            ],
            number("memory.usage_in_bytes"),
            counter("total_inactive_file"),
            counter("total_active_file"),
        ),
        Version::V2 => (
            [number("memory.max"), number("memory.high")],
            number("memory.current"),
            counter("inactive_file"),
            counter("active_file"),
        ),
    };
    let limit_bytes = limits
        .into_iter()
        .flatten()
        .min()
        .filter(|&limit| limit < UNLIMITED)?;
    Some(GroupLimit {
        dir: group.dir.clone(),
        version: group.version,
        limit_bytes,
        used_bytes: used.unwrap_or(0),
        reclaimable_bytes: inactive.unwrap_or(0).saturating_add(active.unwrap_or(0)),
    })
}

/// The soft value in the table of `/proc/self/limits`; a row that is missing limits nothing.
pub(crate) fn soft_limit(limits: &str, name: &str) -> Rlimit {
    limits
        .lines()
        .find_map(|line| {
            line.strip_prefix(name)?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .map_or(Rlimit::Unlimited, Rlimit::Bytes)
}

/// The mode in brackets, as in `always [madvise] never`.
fn huge_pages(kernel: &KernelFiles) -> HugePages {
    let modes = kernel.sys_text("kernel/mm/transparent_hugepage/enabled");
    let chosen = modes.as_deref().and_then(|modes| {
        let (_, rest) = modes.split_once('[')?;
        Some(rest.split_once(']')?.0)
    });
    match chosen {
        Some("always") => HugePages::Always,
        Some("madvise") => HugePages::Madvise,
        Some(_) => HugePages::Never,
        None => HugePages::Absent,
    }
}

#[cfg(test)]
mod tests;
