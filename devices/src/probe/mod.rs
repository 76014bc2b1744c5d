//! Whether a device computes what the CPU computes: a few matrices and FFNs of each format, compared bit by bit.

mod attention;

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_kernels::{Activations, Form, KernelTable};
use forebay_numbers::block::BlockType;
use forebay_numbers::panel::pack_panels;
use forebay_numbers::random::split_mix;
use forebay_queues::slab::{PAGE, Slab};

use crate::driver::DeviceDriver;
use crate::fault::DeviceFault;
use crate::job::{
    Activated, DeviceDone, DeviceJob, FfnCluster, Group, PanelRange, Routing, SegmentId, Work,
};
use crate::on_cpu;

pub use attention::{HeadShape, check_attention};

/// How long a device may take for a probe.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Tokens of the samples: one of each of the shaders' shapes, and no multiple. In the widest, all tokens that a lane
/// can own occur.
const TOKENS: [usize; 3] = [1, 11, 50];

/// Activations of a sample: a large batch has the same ones as a small one, from the same shader.
fn activations(n_tokens: usize) -> &'static [Activated] {
    match n_tokens {
        0..=16 => &Activated::ALL,
        _ => &[Activated::Silu],
    }
}

/// A clock for [`check`] on devices that are not simulated. Between two looks it sleeps.
pub fn wall_clock() -> impl FnMut() -> u64 {
    let start = Instant::now();
    move || {
        std::thread::sleep(Duration::from_micros(20));
        start.elapsed().as_nanos() as u64
    }
}

/// Lets the device compute with random weights of each of `formats`, rows of matrices and shares of FFNs, and compares
/// the results with those of `kernels`. A device that imports memory gets them so.
///
/// # Errors
/// They differ, or the device fails.
pub fn check(
    driver: &mut dyn DeviceDriver,
    kernels: &KernelTable,
    formats: &[BlockType],
    clock: &mut dyn FnMut() -> u64,
) -> Result<(), DeviceFault> {
    for &block in formats {
        let sample = Sample::new(block);
        let segment = sample.give(driver)?;
        let compared = sample.compare(driver, segment, kernels, clock);
        driver.unload(segment);
        let (wrong, total) = compared?;
        if wrong > 0 {
            return Err(DeviceFault::WrongResults {
                block,
                wrong,
                total,
            });
        }
    }
    Ok(())
}

/// Random weights in panels.
struct Sample {
    rows: Vec<PanelRange>,
    clusters: Vec<FfnCluster>,
    bytes: Vec<u8>,
    cols: usize,
    seed: u64,
}

impl Sample {
    /// Two ranges of rows, whose last panels are not full, and two clusters.
    fn new(block: BlockType) -> Self {
        let mut random = Random(u64::from(block.ggml_id()));
        // More blocks than any shader takes in one stretch, and not a multiple.
        let len = block.block_len();
        let cols = len * if len == 32 { 37 } else { 5 };
        let mut bytes = Vec::new();
        let mut add = |n_rows, cols, most| {
            let at = bytes.len();
            let blocks = n_rows * cols / len;
            let rows: Vec<u8> = (0..blocks)
                .flat_map(|_| random_block(block, &mut random, most))
                .collect();
            pack_panels(block, &rows, rows.len() / n_rows, &mut bytes);
            PanelRange {
                block,
                at,
                n_rows,
                cols,
            }
        };
        let rows = vec![add(24, cols, 0), add(7, cols, 0)];
        // Small enough for sums in fixed point.
        let neurons = [len.max(64), len];
        let clusters = neurons.map(|n| FfnCluster {
            gate: add(n, cols, -9),
            up: add(n, cols, -9),
            down: add(cols, n, -9),
        });
        Self {
            rows,
            clusters: clusters.to_vec(),
            bytes,
            cols,
            seed: u64::from(block.ggml_id()) + 1,
        }
    }

    /// Has the device read it.
    fn give(&self, driver: &mut dyn DeviceDriver) -> Result<SegmentId, DeviceFault> {
        if !driver.imports() {
            return driver.load(&self.bytes);
        }
        let len = self.bytes.len();
        let memory = Slab::new(len).ok().and_then(|mut slab| slab.carve(len));
        let Some(mut memory) = memory else {
            let problem = "there is no memory for a sample".to_owned();
            return Err(DeviceFault::BadJob(problem));
        };
        memory[..len].copy_from_slice(&self.bytes);
        driver.import(&Arc::new(memory), 0..len.next_multiple_of(PAGE))
    }

    fn jobs(&self, segment: SegmentId, kernels: &KernelTable, n_tokens: usize) -> Vec<DeviceJob> {
        let (mut random, cols) = (Random(self.seed), self.cols);
        let values: Vec<f32> = (0..n_tokens * cols).map(|_| random.unit()).collect();
        let mut tokens = Activations::new(n_tokens, cols);
        tokens.load(kernels, Form::Panels, n_tokens, cols, &values);
        let n_rows: usize = self.rows.iter().map(|range| range.n_rows).sum();
        let rows = Work::Rows {
            panels: self.rows.clone(),
            out: vec![f32::NAN; n_tokens * n_rows],
        };
        let mut numbers = |n: usize| (0..n).map(|_| random.unit()).collect::<Vec<f32>>();
        let neurons = self
            .clusters
            .iter()
            .map(|cluster| cluster.gate.n_rows)
            .sum();
        // With and without experts in turn.
        let share = |(i, kind): (usize, Activated)| Work::Share {
            clusters: self.clusters.clone(),
            activation: kind.example(),
            biases: [numbers(neurons), numbers(neurons)],
            routing: match i % 2 {
                0 => routing(n_tokens, &mut numbers),
                _ => Routing::default(),
            },
            out: vec![i64::MIN; n_tokens * cols],
        };
        let shares = activations(n_tokens).iter().copied().enumerate().map(share);
        let works = std::iter::once(rows).chain(shares);
        let job = |work| DeviceJob {
            id: 0,
            segment,
            tokens: tokens.clone(),
            work,
        };
        works.map(job).collect()
    }

    /// How many results are wrong, of how many.
    fn compare(
        &self,
        driver: &mut dyn DeviceDriver,
        segment: SegmentId,
        kernels: &KernelTable,
        clock: &mut dyn FnMut() -> u64,
    ) -> Result<(usize, usize), DeviceFault> {
        let (mut wrong, mut total) = (0, 0);
        for n_tokens in TOKENS {
            let jobs = self.jobs(segment, kernels, n_tokens);
            for (job, mut expected) in jobs.into_iter().zip(self.jobs(segment, kernels, n_tokens)) {
                on_cpu::compute(kernels, &self.bytes, &mut expected)?;
                wrong += run_and_compare(driver, job, &expected, clock)?;
                total += bits(&expected.work).len();
            }
        }
        Ok((wrong, total))
    }
}

/// The first cluster has all tokens, the second every other one, beginning with the last.
fn routing(n_tokens: usize, numbers: &mut impl FnMut(usize) -> Vec<f32>) -> Routing {
    let all = 0..n_tokens as u32;
    let some = all.clone().rev().step_by(2);
    let groups = [n_tokens, n_tokens.div_ceil(2)];
    Routing {
        groups: groups
            .map(|tokens| Group {
                clusters: 1,
                tokens,
            })
            .to_vec(),
        tokens: all.chain(some).collect(),
        weights: numbers(groups[0] + groups[1]),
    }
}

/// The bits of all results.
fn bits(work: &Work) -> Vec<u64> {
    let of_floats = |out: &[f32]| out.iter().map(|v| u64::from(v.to_bits())).collect();
    match work {
        Work::Rows { out, .. } => of_floats(out),
        Work::Share { out, .. } => out.iter().map(|v| *v as u64).collect(),
        Work::Attention(work) => of_floats(&work.out),
    }
}

/// How many results of a job are not the `expected` ones.
fn run_and_compare(
    driver: &mut dyn DeviceDriver,
    job: DeviceJob,
    expected: &DeviceJob,
    clock: &mut dyn FnMut() -> u64,
) -> Result<usize, DeviceFault> {
    let done = run(driver, job, clock)?;
    done.result?;
    let (found, expected) = (bits(&done.job.work), bits(&expected.work));
    Ok(found.iter().zip(&expected).filter(|(a, b)| a != b).count())
}

/// Runs one job on an idle device, and waits for it.
///
/// # Errors
/// The device has no room for a job, or does not finish it.
pub fn run(
    driver: &mut dyn DeviceDriver,
    job: DeviceJob,
    clock: &mut dyn FnMut() -> u64,
) -> Result<DeviceDone, DeviceFault> {
    let start = clock();
    if driver.submit(job, start).is_err() {
        return Err(DeviceFault::BadJob("the device is busy".into()));
    }
    let mut done = Vec::new();
    loop {
        let now = clock();
        driver.poll(now, &mut done);
        if let Some(done) = done.pop() {
            return Ok(done);
        }
        if now.saturating_sub(start) > PATIENCE.as_nanos() as u64 {
            return Err(DeviceFault::Stuck {
                seconds: PATIENCE.as_secs(),
            });
        }
    }
}

/// Random codes and group scales, with factors up to `2^most`.
fn random_block(block: BlockType, random: &mut Random, most: i32) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..block.block_bytes())
        .map(|_| random.below(256) as u8)
        .collect();
    let factors: &[usize] = match block {
        BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
        BlockType::Q6_K => &[208],
        BlockType::MXFP4 => &[],
        _ => &[0],
    };
    for &at in factors {
        // An f16 with any sign and fraction, from subnormal on.
        let exponent = random.below((15 + most) as u64);
        let bits = (random.below(2) << 15 | exponent << 10 | random.below(1 << 10)) as u16;
        bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
    if block == BlockType::MXFP4 {
        bytes[0] = (128 + most) as u8 - random.below(10) as u8;
    }
    bytes
}

/// Small reproducible generator.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        split_mix(&mut self.0) % n
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }
}
