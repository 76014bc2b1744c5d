//! Vulkan devices against the CPU, bit by bit. Where there is no device the tests say so and pass, unless
//! `FOREBAY_NEED_VULKAN` is set.

mod attention;
mod attention_range;
mod definition;
mod faults;
mod meter;
#[path = "../past/mod.rs"]
mod past;
mod products;
mod repeats;
mod roundings;
mod shares;

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_devices::gpu::{Adapter, adapters};
use forebay_kernels::{Activations, Form, KernelTable};
use forebay_numbers::block::BlockType;
use forebay_numbers::panel::pack_panels;
use forebay_numbers::random::split_mix;

static DEVICES: Mutex<()> = Mutex::new(());

thread_local! {
    /// A test's turn, which ends with its thread. Drivers in software use all cores for one test, and tests that need
    /// the same shader at the same time would each compile it: four of them on two cores took a device's patience.
    static TURN: MutexGuard<'static, ()> = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
}

/// The first device, which may be software, when it is this test's turn.
fn adapter() -> Option<Adapter> {
    TURN.with(|_| ());
    let first = adapters().into_iter().next();
    if first.is_none() {
        let why = "no Vulkan device; install mesa-vulkan-drivers for one in software";
        assert!(std::env::var_os("FOREBAY_NEED_VULKAN").is_none(), "{why}");
        eprintln!("SKIPPED: {why}");
    }
    first
}

/// Small reproducible generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Where a block's f16 factors are.
fn factors(block: BlockType) -> &'static [usize] {
    match block {
        BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
        BlockType::Q6_K => &[208],
        BlockType::MXFP4 => &[],
        _ => &[0],
    }
}

/// A matrix of random codes whose factors are finite, of any magnitude that the format has.
struct Matrix {
    block: BlockType,
    n_rows: usize,
    cols: usize,
    panels: Vec<u8>,
}

impl Matrix {
    fn random(block: BlockType, n_rows: usize, cols: usize, seed: u64) -> Self {
        let mut random = Random(seed);
        let row_bytes = block.row_bytes(cols).expect("whole blocks");
        let mut rows: Vec<u8> = (0..n_rows * row_bytes)
            .map(|_| random.next() as u8)
            .collect();
        for bytes in rows.chunks_exact_mut(block.block_bytes()) {
            for &at in factors(block) {
                // Exponents below infinity's, zero and subnormals among them.
                let high = (random.next() % 31) as u8;
                bytes[at + 1] = bytes[at + 1] & 0x83 | high << 2;
            }
            if block == BlockType::MXFP4 {
                bytes[0] = 104 + bytes[0] % 40;
            }
        }
        Self::new(block, n_rows, cols, &rows)
    }

    fn new(block: BlockType, n_rows: usize, cols: usize, rows: &[u8]) -> Self {
        let mut panels = Vec::new();
        pack_panels(block, rows, rows.len() / n_rows, &mut panels);
        Self {
            block,
            n_rows,
            cols,
            panels,
        }
    }
}

/// Tokens whose blocks have very different scales; some blocks are zero.
fn tokens(kernels: &KernelTable, n_tokens: usize, cols: usize, seed: u64) -> Activations {
    let mut random = Random(seed);
    let mut values = vec![0.0; n_tokens * cols];
    for block in values.chunks_mut(32) {
        let magnitude = match random.next() % 8 {
            0 => 0.0,
            n => 2.0_f32.powi(n as i32 * 5 - 25),
        };
        block.fill_with(|| random.unit() * magnitude);
    }
    let mut tokens = Activations::new(n_tokens, cols);
    tokens.load(kernels, Form::Panels, n_tokens, cols, &values);
    tokens
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
