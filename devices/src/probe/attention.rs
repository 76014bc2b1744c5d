//! Whether a device attends as the CPU does.

use std::ops::Range;

use forebay_kernels::kv::BLOCK;
use forebay_kernels::{Activations, KernelTable};

use crate::attention::{AttentionWork, KvSpace, Patch};
use crate::driver::DeviceDriver;
use crate::fault::DeviceFault;
use crate::job::{DeviceJob, SegmentId, Work};
use crate::on_cpu;

use super::{Random, bits, run, run_and_compare};

/// Heads of a model's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HeadShape {
    /// Elements of a key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Query heads that share a key/value head.
    pub group: usize,
}

impl HeadShape {
    /// Whether devices attend with such heads.
    pub fn is_possible(&self) -> bool {
        self.group > 0 && self.space().is_possible()
    }

    /// Two key/value heads, and one block more than the samples' sequences have.
    fn space(&self) -> KvSpace {
        KvSpace {
            heads: 2,
            blocks: BLOCKS.len() + 1,
            head_dim: self.head_dim,
            value_dim: self.value_dim,
        }
    }
}

/// Where the samples' sequence is.
const BLOCKS: [u32; 4] = [3, 0, 4, 1];

/// Positions that it has.
const POSITIONS: usize = 200;

/// Tokens of a sequence.
struct Sample {
    n_tokens: usize,
    position: usize,
    window: usize,
    has_sinks: bool,
}

/// Several workgroups from the beginning on, a window that ends within blocks, and one token.
const SAMPLES: [Sample; 3] = [
    Sample {
        n_tokens: 70,
        position: 0,
        window: usize::MAX,
        has_sinks: false,
    },
    Sample {
        n_tokens: 13,
        position: 187,
        window: 90,
        has_sinks: true,
    },
    Sample {
        n_tokens: 1,
        position: 130,
        window: 200,
        has_sinks: false,
    },
];

/// Lets the device attend with random keys and values of each of `heads`, and compares the results with those of
/// `kernels`.
///
/// # Errors
/// They differ, or the device fails.
pub fn check_attention(
    driver: &mut dyn DeviceDriver,
    kernels: &KernelTable,
    heads: &[HeadShape],
    clock: &mut dyn FnMut() -> u64,
) -> Result<(), DeviceFault> {
    for shape in heads {
        let space = shape.space();
        if !shape.is_possible() {
            let problem = format!("{shape:?} do not attend on devices");
            return Err(DeviceFault::BadJob(problem));
        }
        let segment = driver.reserve(space.bytes())?;
        let compared = compare(driver, segment, kernels, shape, clock);
        driver.unload(segment);
        let (wrong, total) = compared?;
        if wrong > 0 {
            return Err(DeviceFault::WrongAttention { wrong, total });
        }
    }
    Ok(())
}

/// How many results are wrong, of how many.
fn compare(
    driver: &mut dyn DeviceDriver,
    segment: SegmentId,
    kernels: &KernelTable,
    shape: &HeadShape,
    clock: &mut dyn FnMut() -> u64,
) -> Result<(usize, usize), DeviceFault> {
    let mut past = Past::new(shape);
    let [first, more] = past.space.places(0);
    let [_, last] = past.space.places(1);
    // The first head's keys come with a job of their own, all else with the first sample.
    let nothing = past.job(segment, None, first);
    run(driver, nothing, clock)?.result?;
    let (mut wrong, mut total) = (0, 0);
    for (i, sample) in SAMPLES.iter().enumerate() {
        let patch = match i {
            0 => more.start..last.end,
            _ => past.renew_keys(i % 2),
        };
        let job = past.job(segment, Some(sample), patch.clone());
        let mut expected = past.job(segment, Some(sample), patch);
        on_cpu::compute(kernels, &past.bytes, &mut expected)?;
        wrong += run_and_compare(driver, job, &expected, clock)?;
        total += bits(&expected.work).len();
    }
    Ok((wrong, total))
}

/// Keys and values of a sequence.
struct Past {
    space: KvSpace,
    group: usize,
    bytes: Vec<u8>,
    random: Random,
}

impl Past {
    fn new(shape: &HeadShape) -> Self {
        let space = shape.space();
        // What no token sees may be anything, NaN too.
        let nothing = [0x00, 0x7e].into_iter().cycle();
        let mut past = Self {
            space,
            group: shape.group,
            bytes: nothing.take(space.bytes() as usize).collect(),
            random: Random((space.head_dim << 20 | space.value_dim << 10 | shape.group) as u64),
        };
        let width = space.value_width();
        for (head, position) in (0..space.heads).flat_map(|h| (0..POSITIONS).map(move |p| (h, p))) {
            let at = BLOCKS[position / BLOCK] as usize * BLOCK + position % BLOCK;
            let [keys, values] = space.places(head);
            for i in 0..space.head_dim {
                let number = (at / 16 * space.head_dim + i) * 16 + at % 16;
                past.renew(keys.start + 2 * number);
            }
            for i in 0..space.value_dim {
                past.renew(values.start + 2 * (at * width + i));
            }
        }
        past
    }

    /// An f16 below 4 in size, from subnormal on.
    fn renew(&mut self, at: usize) {
        let half = self.random.below(2) << 15 | self.random.below(17 << 10);
        self.bytes[at..at + 2].copy_from_slice(&(half as u16).to_le_bytes());
    }

    /// Other keys for the sequence's second block; where they are.
    fn renew_keys(&mut self, head: usize) -> Range<usize> {
        let bytes = self.space.key_bytes(BLOCK);
        let start = self.space.places(head)[0].start + BLOCKS[1] as usize * bytes;
        let range = start..start + bytes;
        range.clone().step_by(2).for_each(|at| self.renew(at));
        range
    }

    /// A job that brings some of the bytes, and attends if there is a sample.
    fn job(&self, segment: SegmentId, sample: Option<&Sample>, patch: Range<usize>) -> DeviceJob {
        let (n_tokens, position) = sample.map_or((0, 0), |s| (s.n_tokens, s.position));
        // If several share a key/value head, the first one has one less.
        let first = usize::from(self.group > 1);
        let heads = self.space.heads * self.group - first;
        let mut random = Random(position as u64);
        let mut numbers = |n: usize| (0..n).map(|_| 4.0 * random.unit()).collect::<Vec<f32>>();
        let work = AttentionWork {
            kv: self.space,
            patches: vec![Patch {
                at: patch.start,
                len: patch.len(),
            }],
            patched: self.bytes[patch].to_vec(),
            n_tokens,
            heads,
            group: self.group,
            first,
            queries: numbers(n_tokens * heads * self.space.head_dim),
            blocks: BLOCKS.to_vec(),
            position,
            window: sample.map_or(1, |s| s.window),
            scale: 0.2,
            sinks: match sample.is_some_and(|s| s.has_sinks) {
                true => numbers(heads),
                false => Vec::new(),
            },
            out: vec![f32::NAN; n_tokens * heads * self.space.value_dim],
        };
        DeviceJob {
            id: 0,
            segment,
            tokens: Activations::new(0, 0),
            work: Work::Attention(Box::new(work)),
        }
    }
}
