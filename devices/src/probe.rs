//! Whether a device computes what the CPU computes: a few panels of each format, compared bit by bit.

use std::time::{Duration, Instant};

use forebay_kernels::{Activations, Form, KernelTable, WeightPanels};
use forebay_numbers::block::BlockType;
use forebay_numbers::panel::pack_panels;

use crate::driver::DeviceDriver;
use crate::fault::DeviceFault;
use crate::job::{DeviceDone, DeviceJob, PanelRange};

/// How long a device may take for a probe.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Rows of the samples: the last panel is not full.
const ROWS: usize = 24;
/// Tokens of the samples: one, and a number that no batch size divides.
const TOKENS: [usize; 2] = [1, 11];

/// A clock for [`check`] on devices that are not simulated. Between two looks it sleeps.
pub fn wall_clock() -> impl FnMut() -> u64 {
    let start = Instant::now();
    move || {
        std::thread::sleep(Duration::from_micros(20));
        start.elapsed().as_nanos() as u64
    }
}

/// Lets the device multiply random weights of each of `formats`, and compares the results with those of `kernels`.
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
        // More blocks than any shader takes in one stretch, and not a multiple.
        let cols = block.block_len() * if block.block_len() == 32 { 37 } else { 5 };
        let sample = Sample::new(block, ROWS, cols, u64::from(block.ggml_id()));
        let (mut wrong, mut total) = (0, 0);
        for n_tokens in TOKENS {
            let tokens = sample.tokens(kernels, n_tokens);
            let expected = sample.expected(kernels, &tokens);
            let found = sample.run(driver, tokens, clock)?;
            let differ = |(a, b): &(&f32, &f32)| a.to_bits() != b.to_bits();
            wrong += found.iter().zip(&expected).filter(differ).count();
            total += expected.len();
        }
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
    panels: PanelRange,
    bytes: Vec<u8>,
    seed: u64,
}

impl Sample {
    fn new(block: BlockType, n_rows: usize, cols: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        let rows: Vec<u8> = (0..n_rows * cols / block.block_len())
            .flat_map(|_| random_block(block, &mut random))
            .collect();
        let mut bytes = Vec::new();
        pack_panels(block, &rows, rows.len() / n_rows, &mut bytes);
        let panels = PanelRange {
            block,
            at: 0,
            n_rows,
            cols,
        };
        Self {
            panels,
            bytes,
            seed,
        }
    }

    fn tokens(&self, kernels: &KernelTable, n_tokens: usize) -> Activations {
        let (mut random, cols) = (Random(self.seed + 1), self.panels.cols);
        let values: Vec<f32> = (0..n_tokens * cols).map(|_| random.unit()).collect();
        let mut tokens = Activations::new(n_tokens, cols);
        tokens.load(kernels, Form::Panels, n_tokens, cols, &values);
        tokens
    }

    fn expected(&self, kernels: &KernelTable, tokens: &Activations) -> Vec<f32> {
        let n_rows = self.panels.n_rows;
        let mut out = vec![0.0; n_rows * tokens.n_tokens()];
        let panels = WeightPanels {
            block: self.panels.block,
            bytes: &self.bytes,
            n_rows,
        };
        kernels.panels(panels, tokens, &mut out, n_rows);
        out
    }

    fn run(
        &self,
        driver: &mut dyn DeviceDriver,
        tokens: Activations,
        clock: &mut dyn FnMut() -> u64,
    ) -> Result<Vec<f32>, DeviceFault> {
        let segment = driver.load(&self.bytes)?;
        let out = vec![f32::NAN; self.panels.n_rows * tokens.n_tokens()];
        let job = DeviceJob {
            id: 0,
            segment,
            panels: self.panels,
            tokens,
            out,
        };
        let done = run(driver, job, clock);
        driver.unload(segment);
        let done = done?;
        done.result.map(|()| done.job.out)
    }
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

/// Random codes and group scales, with factors near 1.
fn random_block(block: BlockType, random: &mut Random) -> Vec<u8> {
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
        // An f16 with any sign and fraction, from subnormal to 1.
        let bits = (random.below(2) << 15 | random.below(16) << 10 | random.below(1 << 10)) as u16;
        bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
    if block == BlockType::MXFP4 {
        bytes[0] = 112 + random.below(20) as u8;
    }
    bytes
}

/// Small reproducible generator (splitmix64).
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }
}
