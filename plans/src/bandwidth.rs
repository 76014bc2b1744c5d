//! Measured memory read bandwidth, the bound of every decode.
//!
//! Each thread sums its own part of a buffer that no cache can hold. The result is what perfect decoding on these cores
//! could read, so quote speeds as a fraction of it. On shared machines it changes from minute to minute: measure it
//! together with what it is compared with.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};
use serde::Serialize;

use crate::error::PlanError;
use crate::pinning::pin;
use crate::size::format_size;

/// Buffer if nothing else is known: eight times a 32 MiB cache.
const USUAL_BUFFER: usize = 256 << 20;

/// The buffer must be this many times the last-level cache, or the cache serves much of it.
const TIMES_CACHE: u64 = 4;

/// Under memory pressure, the smallest multiple of the cache that still measures memory and not the cache.
const LEAST_TIMES_CACHE: u64 = 2;

/// The assumed cache size if the kernel states none (virtual machines, phones).
const ASSUMED_CACHE: u64 = 32 << 20;

/// At most 1/`SHARE_OF_AVAILABLE` of the available memory is used.
const SHARE_OF_AVAILABLE: u64 = 4;

/// One sample lasts at least this long, so that an uneven start of the threads does not matter.
const SAMPLE: Duration = Duration::from_millis(25);

/// Unmeasured work before a sample: it raises the clock rate and brings the buffer's pages into the
/// TLB.
const WARM_UP: Duration = Duration::from_millis(5);

/// Bytes between readings of the clock: tens of microseconds, so that all threads stop nearly together.
const CHUNK: usize = 1 << 20;

/// Granularity of the threads' parts: they share no cache line, nor the adjacent line that is
/// prefetched.
const STEP: usize = 128;

/// Read bandwidth with a number of threads, over several alternating samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Threads that read at the same time.
    pub threads: usize,
    /// Median in GB/s (10^9 bytes per second).
    pub median: f64,
    /// Slowest sample in GB/s.
    pub min: f64,
    /// Fastest sample in GB/s.
    pub max: f64,
    /// Number of samples.
    pub runs: usize,
}

/// Samples that are further apart than this share of their median depend more on other programs than on the memory.
const UNSTEADY: f64 = 0.3;

impl Bandwidth {
    /// Whether the machine is shared or its clock rate changes, so that the measurement should be repeated.
    pub fn is_unsteady(&self) -> bool {
        self.spread() > UNSTEADY
    }

    /// Distance of the extremes as a share of the median.
    fn spread(&self) -> f64 {
        (self.max - self.min) / self.median
    }

    fn of(threads: usize, mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*samples.first()?, *samples.last()?);
        let (low, high) = ((samples.len() - 1) / 2, samples.len() / 2);
        Some(Self {
            threads,
            median: (samples[low] + samples[high]) / 2.0,
            min,
            max,
            runs: samples.len(),
        })
    }
}

/// A buffer for measuring.
#[derive(Debug)]
pub struct BandwidthProbe {
    buffer: MmapMut,
}

impl BandwidthProbe {
    /// Chooses a buffer that no cache of `cache_bytes` can hold and that leaves most of the `available` bytes unused.
    ///
    /// # Errors
    /// So little memory is available that the cache would be measured, or the mapping fails.
    pub fn new(cache_bytes: Option<u64>, available: u64) -> Result<Self, PlanError> {
        let bytes = buffer_bytes(cache_bytes, available)?;
        Self::with_buffer(bytes)
    }

    /// Uses a buffer of `bytes` (rounded up to whole steps) and writes all of it once: memory never
    /// written is one shared page of zeros.
    ///
    /// # Errors
    /// The mapping fails.
    pub fn with_buffer(bytes: usize) -> Result<Self, PlanError> {
        let bytes = bytes.max(1).next_multiple_of(STEP);
        let mut buffer = MmapMut::map_anon(bytes).map_err(|source| PlanError::Bandwidth {
            why: format!("no buffer of {}: {source}", format_size(bytes as u64)),
        })?;
        // With 4 KiB pages, page walks would be measured instead of memory. A refusal is not fatal.
        let _ = buffer.advise(Advice::HugePage);
        buffer.fill(1);
        Ok(Self { buffer })
    }

    /// Measures with each of `counts` threads on the first `cores`, `rounds` times in turn (A B A B), so that a drift
    /// of the clock rate affects all counts. Pinning is best effort.
    ///
    /// Counts above the number of cores are measured with all cores; a count of 0 with one.
    pub fn measure(&self, cores: &[usize], counts: &[usize], rounds: usize) -> Vec<Bandwidth> {
        let counts: Vec<usize> = counts
            .iter()
            .map(|&count| count.clamp(1, cores.len().max(1)))
            .collect();
        let mut samples = vec![Vec::with_capacity(rounds); counts.len()];
        for _ in 0..rounds {
            for (&count, samples) in counts.iter().zip(&mut samples) {
                samples.push(self.sample(cores, count));
            }
        }
        let measured = counts.into_iter().zip(samples);
        measured
            .filter_map(|(count, samples)| Bandwidth::of(count, samples))
            .collect()
    }

    /// GB/s of `threads` threads that each read their part of the buffer until the time is up.
    fn sample(&self, cores: &[usize], threads: usize) -> f64 {
        let steps = self.buffer.len() / STEP;
        let part_bytes = steps.div_ceil(threads) * STEP;
        let readers: Vec<_> = self
            .buffer
            .chunks(part_bytes)
            .map(|part| {
                let mut chunks = part.chunks(CHUNK).cycle();
                move || {
                    let chunk = chunks.next().unwrap_or_default();
                    black_box(sum(black_box(chunk)));
                    chunk.len() as u64
                }
            })
            .collect();
        rate_together(cores, readers, SAMPLE) / 1e9
    }
}

/// Units per second of all `workers` together, each on its own thread that is pinned (as far as the system allows) to
/// the core at the same index in `cores`. A worker does a piece of work of tens of microseconds per call and returns
/// its units; it is first called for a short time unmeasured, which raises the clock rate, then until `duration` is
/// over. It must not panic. 0 without workers.
pub fn rate_together<W: FnMut() -> u64 + Send>(
    cores: &[usize],
    workers: Vec<W>,
    duration: Duration,
) -> f64 {
    let ready = Barrier::new(workers.len());
    let done: Vec<Work> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .enumerate()
            .map(|(i, worker)| {
                let (ready, core) = (&ready, cores.get(i).copied());
                scope.spawn(move || {
                    pin(core);
                    repeat(worker, ready, duration)
                })
            })
            .collect();
        // Workers do not panic: the others would wait for them at the start.
        threads.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    // Each thread's own time counts: one that the system suspends for a while must not slow down the others' figures.
    let rate = |work: &Work| work.units as f64 / work.took.as_secs_f64();
    done.iter().map(rate).sum()
}

/// The work that one thread did.
struct Work {
    units: u64,
    took: Duration,
}

fn repeat(mut worker: impl FnMut() -> u64, ready: &Barrier, duration: Duration) -> Work {
    let start = Instant::now();
    while start.elapsed() < WARM_UP {
        worker();
    }
    ready.wait();
    let start = Instant::now();
    let mut work = Work {
        units: 0,
        took: Duration::ZERO,
    };
    while work.took < duration {
        work.units += worker();
        work.took = start.elapsed();
    }
    work
}

/// Sum of the 64-bit words modulo 2^64; `bytes` is whole steps.
///
/// Four streams read 3-5 % more with one thread than a single one did (Zen 5, alternating runs). A plain
/// reduction is what the compiler turns into vectors; an array of 16 sums it kept in scalar registers, and
/// read 8-15 % less.
fn sum(bytes: &[u8]) -> u64 {
    debug_assert_eq!(bytes.len() % STEP, 0);
    let (words, _) = bytes.as_chunks::<8>();
    let (front, back) = words.split_at(words.len() / 2);
    let (a, b) = front.split_at(front.len() / 2);
    let (c, d) = back.split_at(back.len() / 2);
    let streams = a.iter().zip(b).zip(c.iter().zip(d));
    streams.fold(0, |sum: u64, ((a, b), (c, d))| {
        [a, b, c, d]
            .into_iter()
            .fold(sum, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)))
    })
}

/// The size of a buffer that no cache of `cache_bytes` can hold and that leaves most of the `available` bytes unused.
///
/// # Errors
/// So little memory is available that the cache would be measured.
pub fn buffer_bytes(cache_bytes: Option<u64>, available: u64) -> Result<usize, PlanError> {
    let cache = cache_bytes.unwrap_or(ASSUMED_CACHE);
    let wanted = cache.saturating_mul(TIMES_CACHE).max(USUAL_BUFFER as u64);
    let least = cache.saturating_mul(LEAST_TIMES_CACHE);
    let bytes = wanted.min(available / SHARE_OF_AVAILABLE);
    match usize::try_from(bytes) {
        Ok(bytes) if bytes as u64 >= least && bytes > 0 => Ok(bytes),
        _ => Err(PlanError::Bandwidth {
            why: format!(
                "a buffer of {} is needed to measure beyond a cache of {}, but only a quarter of \
                 the {} that are available may be used; free memory or raise the limit",
                format_size(least),
                format_size(cache),
                format_size(available)
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn the_buffer_looks_past_the_cache_and_spares_the_memory() {
        let of = |cache: Option<u64>, available| buffer_bytes(cache, available).ok();
        assert_eq!(of(Some(32 * MIB), 24 * GIB), Some(256 << 20));
        assert_eq!(of(None, 24 * GIB), Some(256 << 20));
        assert_eq!(of(Some(384 * MIB), 512 * GIB), Some(1536 << 20));
        assert_eq!(of(Some(8 * MIB), 100 * MIB), Some(25 << 20));
        assert_eq!(of(Some(32 * MIB), 200 * MIB), None);
        assert_eq!(of(None, 0), None);
        assert_eq!(of(Some(0), 0), None);
        let message = buffer_bytes(Some(32 * MIB), 200 * MIB)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("64.0 MiB") && message.contains("200 MiB"),
            "{message}"
        );
    }

    #[test]
    fn every_word_is_summed_once() {
        let words: Vec<u64> = (0..16 * 37)
            .map(|i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15))
            .collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let expected = words.iter().fold(0u64, |sum, &word| sum.wrapping_add(word));
        assert_eq!(sum(&bytes), expected);
    }

    #[test]
    fn median_and_spread_are_of_the_samples() {
        let even = Bandwidth::of(2, vec![40.0, 10.0, 30.0, 20.0]).unwrap();
        assert_eq!(
            (even.min, even.median, even.max, even.runs),
            (10.0, 25.0, 40.0, 4)
        );
        assert_eq!(even.spread(), 1.2);
        assert_eq!(Bandwidth::of(1, vec![3.0, 1.0, 2.0]).unwrap().median, 2.0);
        assert!(Bandwidth::of(1, vec![]).is_none());
    }

    #[test]
    fn workers_run_at_the_same_time_and_their_units_add_up() {
        use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
        let (working, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let worker = || {
            most.fetch_max(working.fetch_add(1, SeqCst) + 1, SeqCst);
            std::thread::sleep(Duration::from_millis(1));
            working.fetch_sub(1, SeqCst);
            1
        };
        let rate = rate_together(&[], vec![&worker; 2], Duration::from_millis(20));
        assert_eq!(most.into_inner(), 2, "together");
        // A sleep is never shorter than requested.
        assert!(rate > 0.0 && rate <= 2000.0, "{rate}");
        assert_eq!(rate_together::<fn() -> u64>(&[], vec![], SAMPLE), 0.0);
    }

    #[test]
    fn a_measurement_is_made_for_each_count_and_plausible() {
        let cores = crate::topology::Topology::read()
            .unwrap()
            .compute_cores(None)
            .unwrap();
        let probe = BandwidthProbe::with_buffer(8 << 20).unwrap();
        assert_eq!(probe.buffer.len(), 8 << 20);
        let measured = probe.measure(&cores, &[1, 1000], 2);
        let threads: Vec<usize> = measured.iter().map(|m| m.threads).collect();
        assert_eq!(threads, [1, cores.len()]);
        for m in &measured {
            assert_eq!(m.runs, 2);
            // From a slow phone under emulation to everything in the first-level caches of a server.
            let possible = 0.05..1000.0 * m.threads as f64;
            assert!(
                m.min <= m.median && m.median <= m.max && possible.contains(&m.median),
                "{m:?}"
            );
        }
        assert!(probe.measure(&cores, &[1], 0).is_empty());
    }
}
