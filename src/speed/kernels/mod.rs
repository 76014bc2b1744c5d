//! How fast the kernels are on one core, each against its own bound.

#[cfg(feature = "gpu")]
mod device;
#[cfg(feature = "gpu")]
mod device_attention;
#[cfg(feature = "gpu")]
mod device_jobs;
mod products;

use std::hint::black_box;
use std::time::Duration;

use forebay_models::block::BlockType;
use forebay_models::kv_type::KvType;
use forebay_models::network::Activation;
use forebay_plans::bandwidth::rate_together;
use forebay_plans::limits::MemoryLimits;
use forebay_plans::machine::{Kernel, KernelCase};
use forebay_plans::topology::Topology;
use forebay_queues::slab::{Slab, Slot};
use forebay_stages::kernels::kv::{BLOCK, KvCache, KvLayer, KvShape};
use forebay_stages::kernels::{Activations, AttendScratch, Form, Isa, KernelTable, Queries};
use serde::Serialize;

use self::products::{axpy_gathered, dot_gathered, panels, rows, rows_of_piece, whole_panels};
use super::bounds::Machine;
use super::report::{KernelBound, KernelReport, Spread};
use crate::error::Error;

#[cfg(feature = "gpu")]
pub(crate) use self::device::job_rates;
#[cfg(feature = "gpu")]
pub use self::device::{DeviceKernels, measure_device_kernels};
#[cfg(feature = "gpu")]
pub(crate) use self::device_attention::{Attention, MEASURED_HEADS};

/// Bytes of weights that kernels go through piece by piece, if a quarter of the available memory is as much: enough
/// that hardly any CPU cache holds a piece until its next turn.
const WEIGHT_BYTES: u64 = 256 << 20;
/// Bytes that a call goes through, about as much as a core does between two exchanges.
const PIECE_BYTES: usize = 1 << 20;
/// The value of every byte of the weights. As f16 it is 0.06, as bf16 and f32 small but normal: in every format its
/// numbers are finite. No kernel's time depends on them.
const WEIGHT: u8 = 0x2c;
/// Columns of weight matrices: a multiple of every block, and not a power of two.
const COLS: usize = 1536;
/// Tokens and rows of matrix products for prompts.
const TOKENS: usize = 128;
const ROWS: usize = 512;
/// Width of a residual stream, and of the FFN inside.
const D_MODEL: usize = 4096;
const D_FF: usize = 14336;
/// Query heads of a kv head, their width, positions, and layers: keys and values of all layers together are 64 MiB in
/// f16, more than most caches hold.
const GROUP: usize = 4;
const HEAD_DIM: usize = 128;
const POSITIONS: usize = 1024;
const LAYERS: usize = 128;
/// Tokens of a prompt that attend in one call.
const ATTENDING: usize = 128;
/// Calls between two readings of the clock, for a kernel that takes nanoseconds.
const SHORT_CALLS: u64 = 64;
/// Time of one measurement of a kernel.
const TIME: Duration = Duration::from_millis(10);

/// Results of [`measure_kernels`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kernels {
    /// Name of the instruction set.
    pub isa: &'static str,
    /// All kernels, each for every format that it has code for.
    pub kernels: Vec<KernelReport>,
}

/// What limits a kernel's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    Memory,
    Int8,
    F32,
    /// Nothing outside the core: its data are in the nearest cache.
    Cache,
}

/// A kernel, a format and a shape.
struct Entry<'a> {
    kernel: &'static str,
    format: Option<&'static str>,
    shape: String,
    /// Bytes, and multiplications and additions, per call.
    bytes: usize,
    operations: usize,
    limit: Limit,
    /// Makes some calls and returns how many.
    run: Box<dyn FnMut() -> u64 + Send + 'a>,
}

/// Measures every kernel on one core: `repetitions` rounds of all of them, the bound of each right before it. Weights
/// take 256 MiB, or less where little memory is available, and the KV caches about 100 MiB.
///
/// # Errors
/// An instruction set that this CPU lacks, no repetitions, or no memory.
pub fn measure_kernels(isa: Option<Isa>, repetitions: usize) -> Result<Kernels, Error> {
    if repetitions == 0 {
        let problem = "0 would measure nothing; give at least 1";
        return Err(Error::parameter("repetitions", problem));
    }
    let kernels = match isa {
        Some(isa) => KernelTable::new(isa).ok_or_else(|| Error::no_isa(isa))?,
        None => KernelTable::best(),
    };
    let cores = Topology::read()?.compute_cores(Some(1))?;
    let machine = Machine {
        kernels,
        cores: &cores,
    };
    let weights = weights()?;
    let caches = KvType::ALL.map(filled_cache);
    let mut entries = entries(&kernels, &weights, &caches);
    let mut samples = vec![(Vec::new(), Vec::new()); entries.len()];
    for _ in 0..repetitions {
        for (entry, (calls, bounds)) in entries.iter_mut().zip(&mut samples) {
            bounds.push(match entry.limit {
                Limit::Memory => machine.read(&[weights.chunks(PIECE_BYTES).collect()]) / 1e9,
                Limit::Int8 => machine.int8() / 1e9,
                Limit::F32 => machine.f32() / 1e9,
                Limit::Cache => 0.0,
            });
            let rate = rate_together(&cores, vec![&mut entry.run], TIME);
            calls.push(1e6 / rate);
        }
    }
    let reports = entries.iter().zip(&samples);
    Ok(Kernels {
        isa: kernels.isa().name(),
        kernels: reports
            .map(|(entry, (calls, bounds))| entry.report(calls, bounds))
            .collect(),
    })
}

/// The speed of one kernel on `cores` together, each on its own part of `weights` (the same parts again if there are
/// fewer): bytes of weights per second, or operations per second for products of a batch. 0 if the format has no such
/// rows, or a part has no room for a panel of them.
pub(crate) fn kernel_rate(
    k: KernelTable,
    case: &KernelCase,
    cores: &[usize],
    weights: &[u8],
) -> f64 {
    let shape = (case.format, case.cols);
    if !case.cols.is_multiple_of(case.format.block_len()) {
        return 0.0;
    }
    let part = weights.len() / cores.len().max(1) / PIECE_BYTES * PIECE_BYTES;
    let part = part.max(PIECE_BYTES);
    if whole_panels(part, shape) == 0 {
        return 0.0;
    }
    let mut entries: Vec<Entry<'_>> = weights
        .chunks_exact(part)
        .cycle()
        .take(cores.len())
        .map(|part| match case.kernel {
            Kernel::Gemv => panels(k, shape, rows_of_piece(shape.0, shape.1), 1, part),
            Kernel::Gemm => panels(k, shape, ROWS, TOKENS, part),
            Kernel::GemvRows => rows(k, shape, part),
            Kernel::DotGathered => dot_gathered(k, shape, part),
            Kernel::AxpyGathered => axpy_gathered(k, shape, part),
        })
        .collect();
    let amount = entries.first().map_or(0, |e| match case.kernel {
        Kernel::Gemm => e.operations,
        _ => e.bytes,
    });
    let runs: Vec<_> = entries.iter_mut().map(|e| &mut e.run).collect();
    rate_together(cores, runs, TIME) * amount as f64
}

/// Additions and multiplications per second of all cores in a prompt's attention.
#[cfg(feature = "gpu")]
pub(crate) fn attention_rate(k: KernelTable, cores: &[usize]) -> f64 {
    let (kind, cache) = filled_cache(KvType::F16);
    let mut entries: Vec<Entry<'_>> = cores
        .iter()
        .map(|_| attend(k, ATTENDING, kind, &cache))
        .collect();
    let operations = entries.first().map_or(0, |entry| entry.operations);
    let runs: Vec<_> = entries.iter_mut().map(|e| &mut e.run).collect();
    rate_together(cores, runs, TIME) * operations as f64
}

/// Bytes of the memory with which kernels are measured, in whole pieces.
fn weight_bytes(available: u64) -> usize {
    let bytes = WEIGHT_BYTES.min(available / 4) as usize;
    (bytes / PIECE_BYTES).max(1) * PIECE_BYTES
}

/// The memory with which kernels are measured.
pub(crate) fn weights() -> Result<Slot, Error> {
    let bytes = weight_bytes(MemoryLimits::read()?.effective_available());
    let mut slab = Slab::new(bytes).map_err(|e| Error::system("reserve memory for weights", e))?;
    let Some(mut slot) = slab.carve(bytes) else {
        unreachable!("the slab has exactly this size");
    };
    slot.fill(WEIGHT);
    Ok(slot)
}

/// The shape of the caches.
fn kv_shape(kind: KvType, n_layers: usize) -> KvShape {
    KvShape {
        kind,
        layers: vec![
            KvLayer {
                heads: 1,
                head_dim: HEAD_DIM,
                value_dim: HEAD_DIM,
                pool: 0,
            };
            n_layers
        ],
        pools: vec![POSITIONS.div_ceil(BLOCK)],
    }
}

fn filled_cache(kind: KvType) -> (KvType, KvCache) {
    let mut cache = KvCache::new(&kv_shape(kind, LAYERS));
    let row: Vec<f32> = ramp(HEAD_DIM);
    for layer in 0..LAYERS {
        for position in 0..POSITIONS {
            let at = ((position / BLOCK) as u32, position % BLOCK);
            cache.store((layer, 0), at, &row, &row);
        }
    }
    (kind, cache)
}

/// Values between -0.5 and 0.5.
fn ramp(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5)
        .collect()
}

/// The list: one line per kernel, or per kernel and format.
fn entries<'a>(
    k: &KernelTable,
    weights: &'a [u8],
    caches: &'a [(KvType, KvCache)],
) -> Vec<Entry<'a>> {
    let formats = || BlockType::ALL.map(|block| (block, COLS)).into_iter();
    let gemv = |(block, cols)| panels(*k, (block, cols), rows_of_piece(block, cols), 1, weights);
    let mut list: Vec<_> = formats().map(gemv).collect();
    list.extend(formats().map(|shape| panels(*k, shape, ROWS, TOKENS, weights)));
    list.extend(formats().map(|shape| rows(*k, shape, weights)));
    list.extend(formats().map(|shape| dot_gathered(*k, shape, weights)));
    list.extend(formats().map(|shape| axpy_gathered(*k, shape, weights)));
    for n_tokens in [1, ATTENDING] {
        for (kind, cache) in caches {
            list.push(attend(*k, n_tokens, *kind, cache));
        }
    }
    list.push(rmsnorm(*k));
    list.push(gate_up(*k));
    list.push(quantise(*k, Form::Rows, "quantise for rows"));
    list.push(quantise(*k, Form::Lanes, "quantise for lanes"));
    list.push(quantise(*k, Form::Panels, "quantise for panels"));
    list
}

/// The query heads of one kv head, for the last `n_tokens` positions.
fn attend(k: KernelTable, n_tokens: usize, kind: KvType, cache: &KvCache) -> Entry<'_> {
    let width = GROUP * HEAD_DIM;
    let q = ramp(n_tokens * width);
    let mut out = vec![0.0; n_tokens * width];
    let mut scratch = AttendScratch::new(HEAD_DIM);
    let blocks: Vec<u32> = (0..POSITIONS.div_ceil(BLOCK) as u32).collect();
    let mut layers = (0..LAYERS).cycle();
    let pairs: usize = (POSITIONS + 1 - n_tokens..=POSITIONS).sum();
    Entry {
        kernel: if n_tokens == 1 {
            "attend decode"
        } else {
            "attend prefill"
        },
        format: Some(kind.name()),
        shape: format!("{GROUP} heads x {POSITIONS} x {HEAD_DIM} x {n_tokens}"),
        bytes: kv_shape(kind, 1).bytes(),
        // Scores and the weighted sum.
        operations: 2 * 2 * GROUP * pairs * HEAD_DIM,
        limit: if n_tokens == 1 {
            Limit::Memory
        } else {
            Limit::F32
        },
        run: Box::new(move || {
            let queries = Queries {
                q: &q,
                stride: width,
                n_tokens,
                heads: GROUP,
                blocks: &blocks,
                position: POSITIONS - n_tokens,
                window: usize::MAX,
                scale: 0.09,
                softcap: None,
                sinks: &[],
                origin: None,
            };
            let head = cache.head(layers.next().unwrap_or_default(), 0);
            k.attend(queries, head, &mut scratch, &mut out, width);
            black_box(&out);
            1
        }),
    }
}

/// A kernel on a row of `n` numbers that stays in the nearest cache, with `inputs` numbers read and
/// `operations` done per number.
fn short<'a>(
    kernel: &'static str,
    n: usize,
    inputs: usize,
    operations: usize,
    mut call: impl FnMut() + Send + 'a,
) -> Entry<'a> {
    Entry {
        kernel,
        format: None,
        shape: n.to_string(),
        bytes: (inputs + 1) * n * size_of::<f32>(),
        operations: operations * n,
        limit: Limit::Cache,
        run: Box::new(move || {
            (0..SHORT_CALLS).for_each(|_| call());
            SHORT_CALLS
        }),
    }
}

fn rmsnorm<'a>(k: KernelTable) -> Entry<'a> {
    let (x, w, mut out) = (ramp(D_MODEL), ramp(D_MODEL), vec![0.0; D_MODEL]);
    // A square and its sum; two products.
    short("rmsnorm", D_MODEL, 2, 4, move || {
        k.rmsnorm(&x, &w, 1e-5, &mut out);
        black_box(&out);
    })
}

fn gate_up<'a>(k: KernelTable) -> Entry<'a> {
    let (gate, up, mut out) = (ramp(D_FF), ramp(D_FF), vec![0.0; D_FF]);
    // The exponential, of which each implementation has its own number of operations, counts as one.
    short("gate_up silu", D_FF, 2, 4, move || {
        k.gate_up(Activation::Silu, &gate, &up, &mut out);
        black_box(&out);
    })
}

fn quantise<'a>(k: KernelTable, form: Form, kernel: &'static str) -> Entry<'a> {
    let src = ramp(D_MODEL);
    let mut x = Activations::new(1, D_MODEL);
    // The largest magnitude, a product and the sum of codes.
    short(kernel, D_MODEL, 1, 3, move || {
        x.load(&k, form, 1, D_MODEL, &src);
        black_box(&x);
    })
}

impl Entry<'_> {
    fn report(&self, microseconds: &[f64], bounds: &[f64]) -> KernelReport {
        let time = Spread::of(microseconds);
        // In billions per second.
        let rate = |amount: usize| amount as f64 / time.median / 1e3;
        let (gb_per_second, gops) = (rate(self.bytes), rate(self.operations));
        let value = Spread::of(bounds).median;
        let (what, achieved) = match self.limit {
            Limit::Memory => ("memory read", gb_per_second),
            Limit::Int8 => ("int8 peak", gops),
            Limit::F32 => ("f32 peak", gops),
            Limit::Cache => ("", 0.0),
        };
        let bound = (self.limit != Limit::Cache).then_some(KernelBound { what, value });
        KernelReport {
            kernel: self.kernel,
            format: self.format,
            shape: self.shape.clone(),
            microseconds_per_call: time,
            gb_per_second,
            gops,
            bound,
            fraction_of_bound: bound.map(|b| achieved / b.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by reading: a part that has not as many rows as a product takes stopped all workers.
    #[test]
    fn a_product_of_few_or_wide_rows_is_measured() {
        let case = KernelCase {
            kernel: Kernel::Gemm,
            format: BlockType::F32,
            cols: 4096,
        };
        let kernels = KernelTable::new(Isa::Scalar).unwrap_or_else(KernelTable::best);
        let memory = vec![WEIGHT; PIECE_BYTES];
        // Two cores share what is there: 64 rows of the 512.
        let rate = kernel_rate(kernels, &case, &[0, 0], &memory);
        assert!(rate > 0.0);
        // A panel of these is larger than a piece.
        let wide = KernelCase {
            kernel: Kernel::DotGathered,
            cols: 64 << 10,
            ..case
        };
        assert_eq!(kernel_rate(kernels, &wide, &[0], &memory), 0.0);
        let memory = vec![WEIGHT; 8 * PIECE_BYTES];
        assert!(kernel_rate(kernels, &wide, &[0], &memory) > 0.0);
    }

    #[test]
    fn little_memory_is_measured_with_a_quarter_of_it() {
        for (available, mib) in [(1 << 40, 256), (1 << 30, 256), (103 << 20, 25), (0, 1)] {
            assert_eq!(weight_bytes(available), mib << 20, "{available}");
        }
    }
}
