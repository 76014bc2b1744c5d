//! Measuring the hardware profile: the real kernels on the real cores, memory, and reads through the real drivers.

use std::path::Path;
use std::time::Duration;

use forebay_actors::io::DriverChoice;
use forebay_actors::io::probe::{COLD_MEMORY, ProbeError, ReadLoad, measure_read};
use forebay_plans::bandwidth::{Bandwidth, BandwidthProbe, buffer_bytes};
use forebay_plans::kernel_files::{KernelFiles, cpu_model};
use forebay_plans::limits::MemoryLimits;
use forebay_plans::machine::{
    DiskProfile, DiskRate, DiskRemark, Kernel, KernelCase, KernelRate, MachineProfile,
};
use forebay_plans::pinning::pin;
use forebay_plans::storage::{Storage, buffered_read};
use forebay_plans::topology::Topology;
use forebay_stages::kernels::KernelTable;

use crate::error::Error;
use crate::speed::bounds::Machine;
use crate::speed::{Spread, kernel_rate, weights};

/// Number of samples of a memory speed.
const MEMORY_ROUNDS: usize = 11;
/// A small range of a file.
const NEAR: u64 = 128 << 20;
/// Bytes of memory that are measured, if an eighth of the available memory is as much: pages differ in speed, and a
/// model has many.
const MEMORY_BYTES: u64 = 1 << 30;
/// Bytes between two readings of the clock.
const PIECE: usize = 1 << 20;
/// Rounds of all kernels; the median of a kernel's samples counts. They are far apart in time: while something else
/// takes the memory or a core, it takes the same from all samples of one round.
const KERNEL_ROUNDS: usize = 5;
/// Sizes of reads: a page, neurons, clusters of small and of large models, the driver's largest.
const BLOCKS: [u32; 7] = [
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    LEAST_CLUSTER,
    256 << 10,
    512 << 10,
];
/// Bytes of a small model's cluster.
const LEAST_CLUSTER: u32 = 96 << 10;
/// Reads in flight: a layer's missing experts, a narrow stream window, the default one, neurons.
const DEPTHS: [usize; 4] = [1, 4, 16, 64];
/// Time for a sample of one size and depth. The median of all rounds counts, because shared disks vary from second to
/// second.
const READ_TIME: Duration = Duration::from_millis(50);
const READ_ROUNDS: usize = 3;

/// The identity of a profile: another CPU or instruction set, other cores or another version of the kernels have a
/// different one.
pub(crate) fn identity(kernels: &KernelTable, cores: &[usize]) -> String {
    let list: Vec<String> = cores.iter().map(usize::to_string).collect();
    let version = env!("CARGO_PKG_VERSION");
    let cpu = cpu_model(&KernelFiles::live());
    format!(
        "{} on cores {} of {cpu}, {version}",
        kernels.isa(),
        list.join(",")
    )
}

/// Name of the file system of `path`.
pub(crate) fn disk_of(path: &Path) -> String {
    Storage::of(&KernelFiles::live(), path).map_or_else(|_| "unknown".into(), |s| s.name())
}

/// Memory bandwidth and arithmetic of `cores`, in the order in which threads take them; kernels and disks come later.
///
/// # Errors
/// As [`measure_memory`]'s.
pub(crate) fn measure_cores(
    kernels: KernelTable,
    cores: &[usize],
) -> Result<MachineProfile, Error> {
    let mut profile = MachineProfile::empty(identity(&kernels, cores), cores.to_vec());
    measure_memory(&mut profile)?;
    let one = Machine {
        kernels,
        cores: &cores[..1],
    };
    profile.int8 = one.int8();
    profile.f32 = one.f32();
    Ok(profile)
}

/// Measures how much memory 1, 2, … of the profile's cores currently read together.
///
/// # Errors
/// The kernel does not tell how much memory there is, or gives none.
pub(crate) fn measure_memory(profile: &mut MachineProfile) -> Result<(), Error> {
    let cache = Topology::read()?.last_level_cache_bytes;
    let available = MemoryLimits::read()?.effective_available();
    let most = buffer_bytes(cache, available).ok();
    // In a small container on a large machine the caches hold a part of it: such rates are measured again the next
    // time.
    let least = most.unwrap_or((available / 4) as usize);
    let bytes = least.max(MEMORY_BYTES.min(available / 8) as usize);
    let probe = BandwidthProbe::with_buffer(bytes)?;
    let counts = counts(profile.cores.len());
    let measured = probe.measure(&profile.cores, &counts, MEMORY_ROUNDS);
    let rates: Vec<f64> = measured.iter().map(|b| b.median * 1e9).collect();
    profile.memory = between(&counts, &rates);
    profile.unsteady = most.is_none() || measured.iter().any(Bandwidth::is_unsteady);
    Ok(())
}

/// Numbers of cores, of `all`, that are measured: to 4, powers of two, and all.
fn counts(all: usize) -> Vec<usize> {
    let few = |n: &usize| *n <= 4 || n.is_power_of_two() || *n == all;
    (1..=all).filter(few).collect()
}

/// The rates of 1, 2, … cores, between those of the `counts` that were measured.
fn between(counts: &[usize], rates: &[f64]) -> Vec<f64> {
    let mut all: Vec<f64> = Vec::new();
    for (&count, &rate) in counts.iter().zip(rates) {
        let from = all.last().copied().unwrap_or(rate);
        let steps = count - all.len();
        let step = (rate - from) / steps as f64;
        all.extend((1..=steps).map(|n| from + step * n as f64));
    }
    all
}

/// Adds the kernels that the profile lacks; `progress` receives how many are done, and of how many.
///
/// # Errors
/// There is no memory to measure with.
pub(crate) fn add_kernels(
    profile: &mut MachineProfile,
    kernels: KernelTable,
    cases: &[KernelCase],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(), Error> {
    let missing: Vec<&KernelCase> = cases
        .iter()
        .filter(|c| profile.measured(c).is_none())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let memory = weights()?;
    let cores = profile.cores.clone();
    let mut samples = vec![KernelSamples::default(); missing.len()];
    for round in 0..KERNEL_ROUNDS {
        for (i, (case, samples)) in missing.iter().zip(&mut samples).enumerate() {
            samples.alone.take(kernels, case, &cores[..1], &memory);
            samples.together.take(kernels, case, &cores, &memory);
            progress(round * missing.len() + i + 1, KERNEL_ROUNDS * missing.len());
        }
    }
    let keys: Vec<String> = missing.iter().map(|case| case.key()).collect();
    for (key, samples) in keys.into_iter().zip(&samples) {
        let rate = samples.rate();
        // What could not be measured, for want of memory, is tried again the next time.
        if rate.alone > 0.0 && rate.together > 0.0 {
            profile.kernels.insert(key, rate);
        }
    }
    Ok(())
}

/// Samples of a kernel on one core and on all.
#[derive(Clone, Default)]
struct KernelSamples {
    alone: BesideReading,
    together: BesideReading,
}

/// Samples of a kernel's rate, and of only reading the same memory, in turns.
#[derive(Clone, Default)]
struct BesideReading {
    rates: Vec<f64>,
    reads: Vec<f64>,
}

impl KernelSamples {
    /// The medians.
    fn rate(&self) -> KernelRate {
        let median = |samples: &[f64]| Spread::of(samples).median;
        KernelRate {
            alone: median(&self.alone.rates),
            together: median(&self.together.rates),
            read_alone: median(&self.alone.reads),
            read_together: median(&self.together.reads),
        }
    }
}

impl BesideReading {
    fn take(&mut self, kernels: KernelTable, case: &KernelCase, cores: &[usize], memory: &[u8]) {
        let machine = Machine { kernels, cores };
        if case.kernel != Kernel::Gemm {
            let part = memory.len().div_ceil(cores.len());
            let parts: Vec<Vec<&[u8]>> = memory
                .chunks(part)
                .map(|part| part.chunks(PIECE).collect())
                .collect();
            self.reads.push(machine.read(&parts));
        }
        self.rates.push(kernel_rate(kernels, case, cores, memory));
    }
}

/// Reads of `file`, by size and depth, with at most a quarter of the available memory: what would
/// take more is left out.
///
/// # Errors
/// The file, or how much memory there is, cannot be read.
pub(crate) fn measure_disk(
    file: &Path,
    choice: DriverChoice,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<DiskProfile, Error> {
    let cold = COLD_MEMORY.min((MemoryLimits::read()?.effective_available() / 4) as usize);
    let fits = |&(depth, block): &(usize, u32)| depth == 1 || depth * block as usize <= cold;
    let cases: Vec<(usize, u32)> = DEPTHS
        .into_iter()
        .flat_map(|depth| BLOCKS.map(|block| (depth, block)))
        .filter(fits)
        .collect();
    let mut samples = vec![Vec::new(); cases.len()];
    for round in 0..READ_ROUNDS {
        for (i, (&(depth, block_bytes), samples)) in cases.iter().zip(&mut samples).enumerate() {
            let load = ReadLoad {
                block_bytes,
                depth,
                // Neurons are read into few buffers and copied from there, clusters to where they stay.
                memory: match block_bytes < LEAST_CLUSTER {
                    true => 0,
                    false => cold,
                },
                bytes: u64::MAX,
                duration: READ_TIME,
                range: 0,
                choice,
            };
            match measure_read(file, &load) {
                Ok(rate) => samples.push(rate.bytes_per_second),
                // A model smaller than a block is never read in blocks of this size.
                Err(ProbeError::Block { .. }) => {}
                Err(e) => return Err(Error::system("measure the disk", e)),
            }
            progress(round * cases.len() + i + 1, READ_ROUNDS * cases.len());
        }
    }
    let rates = cases.iter().zip(&samples).filter(|(_, s)| !s.is_empty());
    let rates = rates.map(|(&(depth, block_bytes), samples)| DiskRate {
        block_bytes: block_bytes.into(),
        depth,
        bytes_per_second: Spread::of(samples).median,
    });
    Ok(DiskProfile {
        rates: rates.collect(),
        remarks: Vec::new(),
    })
}

/// How much it matters which core issues reads, how far apart they are, and whether they go through the page cache: 4
/// KiB from each of `issuers` and within [`NEAR`], 512 KiB buffered. What cannot be measured is omitted.
pub(crate) fn remarks(
    file: &Path,
    choice: DriverChoice,
    issuers: &[(String, usize)],
) -> Vec<DiskRemark> {
    let load = |range| ReadLoad {
        block_bytes: BLOCKS[0],
        depth: 64,
        memory: 0,
        bytes: u64::MAX,
        duration: 2 * READ_TIME,
        range,
        choice,
    };
    let mut remarks = Vec::new();
    let mut add = |what: String, bytes_per_second: Option<f64>| {
        remarks.extend(bytes_per_second.map(|bytes_per_second| DiskRemark {
            what,
            bytes_per_second,
        }));
    };
    let rate = |load: ReadLoad| measure_read(file, &load).ok().map(|r| r.bytes_per_second);
    for (name, core) in issuers {
        // In a separate thread: this one stays free to run anywhere.
        let issued = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                pin(Some(*core));
                rate(load(0))
            });
            reader.join().ok().flatten()
        });
        add(
            format!("4 KiB at depth 64, issued by {name} core {core}"),
            issued,
        );
    }
    add("4 KiB at depth 64, within 128 MiB".into(), rate(load(NEAR)));
    add(
        "512 KiB, buffered, one at a time".into(),
        buffered_read(file).ok(),
    );
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_between_those_measured_have_rates_between_theirs() {
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(6), [1, 2, 3, 4, 6]);
        assert_eq!(counts(24), [1, 2, 3, 4, 8, 16, 24]);
        assert_eq!(counts(128).len(), 9);
        let rates = between(&[1, 2, 3, 4, 6], &[10.0, 18.0, 24.0, 28.0, 32.0]);
        assert_eq!(rates, [10.0, 18.0, 24.0, 28.0, 30.0, 32.0]);
    }
}
