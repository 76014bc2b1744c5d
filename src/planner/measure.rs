//! Measuring the hardware profile: the real kernels on the real cores, memory, and reads through the real drivers.

use std::path::Path;
use std::time::Duration;

use forebay_actors::io::DriverChoice;
use forebay_actors::io::probe::{ProbeError, ReadLoad, measure_read};
use forebay_plans::bandwidth::BandwidthProbe;
use forebay_plans::kernel_files::KernelFiles;
use forebay_plans::limits::MemoryLimits;
use forebay_plans::machine::{DiskProfile, DiskRate, KernelCase, KernelRate, MachineProfile};
use forebay_plans::storage::Storage;
use forebay_plans::topology::Topology;
use forebay_stages::kernels::KernelTable;

use crate::bench::bounds::Machine;
use crate::bench::{Spread, kernel_rate, weights};
use crate::error::Error;

/// Samples of a memory figure.
const MEMORY_ROUNDS: usize = 5;
/// Samples of a kernel's rate.
const KERNEL_ROUNDS: usize = 3;
/// Sizes of reads: a page, neurons, clusters of small and of large models, the driver's largest.
const BLOCKS: [u32; 7] = [
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    96 << 10,
    256 << 10,
    512 << 10,
];
/// Reads in flight: a narrow stream window, a usual one, neurons.
const DEPTHS: [usize; 3] = [4, 16, 64];
/// Two short samples of each, and the better one counts: what other programs do at the moment is not the disk's fault.
const READ_TIME: Duration = Duration::from_millis(40);
const READ_ROUNDS: usize = 2;

/// What a profile is of: another instruction set or other cores have another.
pub(crate) fn identity(kernels: &KernelTable, cores: &[usize]) -> String {
    let list: Vec<String> = cores.iter().map(usize::to_string).collect();
    format!("{} on cores {}", kernels.isa(), list.join(","))
}

/// Name of the file system that `path` is on.
pub(crate) fn disk_of(path: &Path) -> String {
    Storage::of(&KernelFiles::live(), path).map_or_else(|_| "unknown".into(), |s| s.source)
}

/// Memory bandwidth and arithmetic of `cores`, in the order in which threads take them; kernels and disks come later.
///
/// # Errors
/// So little memory is available that caches would be measured.
pub(crate) fn measure_cores(
    kernels: KernelTable,
    cores: &[usize],
) -> Result<MachineProfile, Error> {
    let mut profile = MachineProfile::empty(identity(&kernels, cores), cores.to_vec());
    profile.memory = measure_memory(cores)?;
    let one = Machine {
        kernels,
        cores: &cores[..1],
    };
    profile.int8 = one.int8();
    profile.f32 = one.f32();
    Ok(profile)
}

/// Bytes per second that 1, 2, … of `cores` read together right now, `[cores]`.
///
/// # Errors
/// So little memory is available that caches would be measured.
pub(crate) fn measure_memory(cores: &[usize]) -> Result<Vec<f64>, Error> {
    let cache = Topology::read()?.last_level_cache_bytes;
    let available = MemoryLimits::read()?.effective_available();
    let probe = BandwidthProbe::new(cache, available)?;
    let counts: Vec<usize> = (1..=cores.len()).collect();
    let measured = probe.measure(cores, &counts, MEMORY_ROUNDS);
    Ok(measured.iter().map(|b| b.median * 1e9).collect())
}

/// Adds the kernels that the profile lacks; `progress` is told how many of all are done.
///
/// # Errors
/// There is no memory to measure on.
pub(crate) fn add_kernels(
    profile: &mut MachineProfile,
    kernels: KernelTable,
    cases: &[KernelCase],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(), Error> {
    let missing: Vec<&KernelCase> = cases
        .iter()
        .filter(|c| !profile.kernels.contains_key(&c.key()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let memory = weights()?;
    let cores = profile.cores.clone();
    for (i, case) in missing.iter().enumerate() {
        let median = |cores: &[usize]| {
            let rate = |_| kernel_rate(kernels, case, cores, &memory);
            Spread::of(&(0..KERNEL_ROUNDS).map(rate).collect::<Vec<_>>()).median
        };
        let rate = KernelRate {
            alone: median(&cores[..1]),
            together: median(&cores),
        };
        profile.kernels.insert(case.key(), rate);
        progress(i + 1, missing.len());
    }
    Ok(())
}

/// Reads of `file`, by size and depth.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn measure_disk(
    file: &Path,
    choice: DriverChoice,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<DiskProfile, Error> {
    let mut disk = DiskProfile::default();
    let all = BLOCKS.len() * DEPTHS.len();
    for depth in DEPTHS {
        for block_bytes in BLOCKS {
            let load = ReadLoad {
                block_bytes,
                depth,
                bytes: u64::MAX,
                duration: READ_TIME,
                choice,
            };
            let mut best = 0.0f64;
            for _ in 0..READ_ROUNDS {
                match measure_read(file, &load) {
                    Ok(rate) => best = best.max(rate.bytes_per_second),
                    // A model smaller than a block is never read in such blocks.
                    Err(ProbeError::Block { .. }) => break,
                    Err(e) => return Err(Error::Request(e.to_string())),
                }
            }
            if best > 0.0 {
                disk.rates.push(DiskRate {
                    block_bytes: block_bytes.into(),
                    depth,
                    bytes_per_second: best,
                });
            }
            progress(disk.rates.len(), all);
        }
    }
    Ok(disk)
}
