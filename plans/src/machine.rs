//! The hardware profile: the speeds of this machine's cores, memory and disk, as data (PowerInfer-2
//! v2, section 5: F_cpu by core, B_io by block size, B_mem).
//!
//! Measuring it needs the kernels and the I/O drivers, which depend on this crate; here it is saved, looked up and
//! interpolated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_models::block::BlockType;
use forebay_models::files::{read_regular, write_whole};
use serde::{Deserialize, Serialize};

use crate::error::PlanError;

/// Version of the file; with another version the machine is measured again.
pub const MACHINE_VERSION: u32 = 4;

/// Name of the file in the cache folder.
const FILE: &str = "machine.json";

/// Longest file that is read.
const MAX_BYTES: u64 = 4 << 20;

/// What is done with weights. Kernels differ in how near they come to the memory's bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// Panels of rows times one token.
    Gemv,
    /// All rows of neuron bundles times one token.
    GemvRows,
    /// Gate or Up rows of live neurons, anywhere in memory, times one token.
    DotGathered,
    /// Down columns of live neurons, anywhere in memory, added to one token's result.
    AxpyGathered,
    /// Panels of rows times a batch of tokens: its rate is in operations.
    Gemm,
}

impl Kernel {
    /// Name in tables and keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gemv => "gemv",
            Self::GemvRows => "gemv_rows",
            Self::DotGathered => "dot_gathered",
            Self::AxpyGathered => "axpy_gathered",
            Self::Gemm => "gemm",
        }
    }
}

/// A kernel on weights of a format whose rows have `cols` numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelCase {
    /// The kernel.
    pub kernel: Kernel,
    /// Block format of the weights.
    pub format: BlockType,
    /// Numbers in a row (or in a Down column).
    pub cols: usize,
}

impl KernelCase {
    /// Key in the file: `gemv/Q4_K/1536`.
    pub fn key(&self) -> String {
        format!(
            "{}/{}/{}",
            self.kernel.name(),
            self.format.name(),
            self.cols
        )
    }
}

/// How fast a kernel is with weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelRate {
    /// Bytes of weights per second on one core; operations per second for [`Kernel::Gemm`].
    pub alone: f64,
    /// The same on all cores of the profile together.
    pub together: f64,
    /// Bytes per second that one core read of the same memory right before, doing nothing else; 0 for [`Kernel::Gemm`].
    /// Additional time per byte is the kernel's own; memory is faster or slower from minute to minute, and from page to
    /// page.
    pub read_alone: f64,
    /// The same for all cores together.
    pub read_together: f64,
}

/// Random reads of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskRate {
    /// Bytes of a read.
    pub block_bytes: u64,
    /// Reads in flight.
    pub depth: usize,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

/// A special way of reading and its rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskRemark {
    /// Size, depth and what is special about it.
    pub what: String,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

/// Rates of reads through one file system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskProfile {
    /// Rates, for each depth by ascending size.
    pub rates: Vec<DiskRate>,
    /// Other ways of reading, which no plan uses: for information.
    #[serde(default)]
    pub remarks: Vec<DiskRemark>,
}

/// All measurements of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineProfile {
    /// [`MACHINE_VERSION`].
    pub version: u32,
    /// The instruction set, cores and CPU of which it is a profile.
    pub identity: String,
    /// Cores in the order in which threads take them, `[threads]`.
    pub cores: Vec<usize>,
    /// Bytes per second that 1, 2, … threads read from memory together, `[threads]`.
    pub memory: Vec<f64>,
    /// Whether something else used the memory meanwhile, or there was too little to look past the caches, so that it
    /// has to be measured again.
    #[serde(default)]
    pub unsteady: bool,
    /// 8-bit operations per second of one core.
    pub int8: f64,
    /// f32 operations per second of one core.
    pub f32: f64,
    /// Kernel rates by [`KernelCase::key`].
    pub kernels: BTreeMap<String, KernelRate>,
    /// Disks, by file system of the packed model.
    pub disks: BTreeMap<String, DiskProfile>,
}

impl MachineProfile {
    /// A profile without measurements.
    pub fn empty(identity: String, cores: Vec<usize>) -> Self {
        Self {
            version: MACHINE_VERSION,
            identity,
            cores,
            memory: Vec::new(),
            unsteady: false,
            int8: 0.0,
            f32: 0.0,
            kernels: BTreeMap::new(),
            disks: BTreeMap::new(),
        }
    }

    /// Its file in the cache folder `folder`.
    pub fn path(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// The profile saved in `folder`, if it is of this machine; a damaged or outdated one is replaced by a new
    /// measurement, so it is not an error.
    pub fn load(folder: &Path, identity: &str) -> Option<Self> {
        let bytes = read_regular(&Self::path(folder), MAX_BYTES).ok()?;
        let profile: Self = serde_json::from_slice(&bytes).ok()?;
        let threads = profile.cores.len();
        let whole = profile.version == MACHINE_VERSION
            && profile.identity == identity
            && profile.memory.len() == threads
            && threads > 0;
        whole.then_some(profile)
    }

    /// Saves the profile in `folder`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<PathBuf, PlanError> {
        let path = Self::path(folder);
        serde_json::to_vec_pretty(self)
            .map_err(std::io::Error::other)
            .and_then(|bytes| write_whole(&path, &bytes))
            .map_err(|source| PlanError::Write {
                path: path.clone(),
                source,
            })?;
        Ok(path)
    }

    /// Bytes per second that `threads` threads read from memory.
    pub fn memory_rate(&self, threads: usize) -> f64 {
        let at = threads.clamp(1, self.memory.len().max(1)) - 1;
        self.memory.get(at).copied().unwrap_or(0.0)
    }

    /// The saved rates of a kernel; `None` if it was not measured, or without success.
    pub fn measured(&self, case: &KernelCase) -> Option<&KernelRate> {
        let rate = self.kernels.get(&case.key());
        rate.filter(|rate| rate.alone > 0.0 && rate.together > 0.0)
    }

    /// Bytes (or operations) per second of a kernel on `threads` cores, at the memory's current speed: each core adds
    /// its own rate, up to what all of them reach together, when memory is the limit. `None` if it was not measured.
    pub fn kernel_rate(&self, case: &KernelCase, threads: usize) -> Option<f64> {
        let rate = self.measured(case)?;
        let all = self.cores.len();
        let alone = now(rate.alone, rate.read_alone, self.memory_rate(1));
        let together = now(rate.together, rate.read_together, self.memory_rate(all));
        match threads {
            0 | 1 => Some(alone),
            n if n >= all => Some(together),
            n => Some(together.min(alone * n as f64)),
        }
    }
}

/// Converts a rate that was measured when memory's rate was `then` to its rate `now`: each byte takes longer by as much
/// as reading it does.
fn now(rate: f64, then: f64, now: f64) -> f64 {
    if rate <= 0.0 || then <= 0.0 || now <= 0.0 {
        return rate;
    }
    let own = (1.0 / rate - 1.0 / then).max(0.0);
    1.0 / (own + 1.0 / now)
}

impl DiskProfile {
    /// The disk's time for a read of `bytes` when `depth` are in flight, seconds: the shortest at a measured depth that
    /// is not above `depth` (that more in flight are slower is noise). 0 if nothing was measured.
    pub fn seconds_per_read(&self, bytes: f64, depth: usize) -> f64 {
        let depths = self.rates.iter().map(|r| r.depth);
        let least = depths.clone().min().unwrap_or(0);
        let measured = depths.filter(|&d| d <= depth.max(least));
        let times = measured.map(|d| self.seconds_at_depth(bytes, d));
        times.min_by(f64::total_cmp).unwrap_or(0.0)
    }

    /// The same at the measured depth `depth`, interpolated between the measured sizes.
    fn seconds_at_depth(&self, bytes: f64, depth: usize) -> f64 {
        let time = |r: &DiskRate| r.block_bytes as f64 / r.bytes_per_second.max(1.0);
        let mut below: Option<&DiskRate> = None;
        for rate in self.rates.iter().filter(|r| r.depth == depth) {
            if rate.block_bytes as f64 >= bytes {
                let Some(low) = below else { return time(rate) };
                let width = (rate.block_bytes - low.block_bytes) as f64;
                let part = (bytes - low.block_bytes as f64) / width.max(1.0);
                return time(low) + (time(rate) - time(low)) * part;
            }
            below = Some(rate);
        }
        below.map_or(0.0, |r| bytes / r.bytes_per_second.max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> MachineProfile {
        let mut p = MachineProfile::empty("test".into(), vec![0, 1, 2]);
        p.memory = vec![30e9, 36e9, 40e9];
        let rate = KernelRate {
            alone: 20e9,
            together: 32e9,
            read_alone: 30e9,
            read_together: 40e9,
        };
        p.kernels.insert(CASE.key(), rate);
        p
    }

    const CASE: KernelCase = KernelCase {
        kernel: Kernel::Gemv,
        format: BlockType::Q4_K,
        cols: 1536,
    };

    #[test]
    fn cores_add_up_until_the_memory_is_full() {
        let p = profile();
        for (threads, rate) in [(1, 20e9), (2, 32e9), (3, 32e9), (9, 32e9)] {
            let now = p.kernel_rate(&CASE, threads).unwrap();
            assert!((now - rate).abs() < 1.0, "{threads}: {now}");
        }
        let other = KernelCase { cols: 64, ..CASE };
        assert_eq!(p.kernel_rate(&other, 1), None);
    }

    #[test]
    fn a_rate_of_0_is_none() {
        let mut p = profile();
        assert!(p.measured(&CASE).is_some());
        p.kernels.values_mut().for_each(|r| r.together = 0.0);
        assert_eq!(p.measured(&CASE), None);
        assert_eq!(p.kernel_rate(&CASE, 1), None);
    }

    #[test]
    fn slower_memory_slows_kernels_by_the_time_of_its_bytes() {
        let mut p = profile();
        p.memory = vec![15e9, 18e9, 20e9];
        // 1/20 - 1/30 beside 1/15: 1/12.
        let rate = p.kernel_rate(&CASE, 1).unwrap();
        assert!((rate - 12e9).abs() < 1.0, "{rate}");
    }

    #[test]
    fn reads_between_measured_sizes_take_times_between_theirs() {
        let rate = |block_bytes, depth, reads: f64| DiskRate {
            block_bytes,
            depth,
            bytes_per_second: block_bytes as f64 * reads,
        };
        let disk = DiskProfile {
            rates: vec![
                rate(4096, 16, 1000.0),
                rate(8192, 16, 500.0),
                rate(4096, 64, 2000.0),
                rate(8192, 64, 400.0),
            ],
            ..DiskProfile::default()
        };
        let ms = |bytes, depth| disk.seconds_per_read(bytes, depth) * 1e3;
        for (bytes, expected) in [
            (100.0, 1.0),
            (4096.0, 1.0),
            (6144.0, 1.5),
            (8192.0, 2.0),
            (16384.0, 4.0),
        ] {
            assert!((ms(bytes, 16) - expected).abs() < 1e-9, "{bytes}");
        }
        for (depth, expected) in [(2, 1.0), (63, 1.0), (64, 0.5), (100, 0.5)] {
            assert!((ms(4096.0, depth) - expected).abs() < 1e-9, "{depth}");
        }
        // That 8 KiB take 2.5 ms at depth 64 is noise.
        assert!((ms(8192.0, 64) - 2.0).abs() < 1e-9);
        assert_eq!(DiskProfile::default().seconds_per_read(4096.0, 16), 0.0);
    }

    #[test]
    fn a_kept_profile_is_read_back_and_another_machines_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let p = profile();
        p.save(folder.path()).unwrap();
        assert_eq!(MachineProfile::load(folder.path(), "test"), Some(p));
        assert_eq!(MachineProfile::load(folder.path(), "other"), None);
        std::fs::write(MachineProfile::path(folder.path()), "{").unwrap();
        assert_eq!(MachineProfile::load(folder.path(), "test"), None);
    }
}
