//! How fast weights stream through the kernels on one thread. Run with
//! `cargo test --release -p forebay-stages throughput -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use forebay_models::block::BlockType;
use forebay_queues::slab::Slab;

use super::definition::random_row;
use super::{Random, tables};
use crate::kernels::{Activations, KernelTable, WeightRows};

const BYTES: usize = 256 << 20;
const RUNS: usize = 5;

/// Best of several runs, in GB/s.
fn best(bytes: usize, mut run: impl FnMut()) -> f64 {
    let seconds = (0..RUNS).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    bytes as f64 / seconds.fold(f64::INFINITY, f64::min) / 1e9
}

/// Reads every byte once: the bound.
fn read(bytes: &[u8]) -> u64 {
    let mut sums = [0_u64; 32];
    for line in bytes.as_chunks::<256>().0 {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0, |a, &b| a.wrapping_add(b))
}

fn stream(table: &KernelTable, block: BlockType, n_tokens: usize, cols: usize, bytes: &mut [u8]) {
    let mut random = Random(1);
    let row = random_row(block, cols, &mut random);
    let n_rows = bytes.len() / row.len();
    for place in bytes.chunks_exact_mut(row.len()) {
        place.copy_from_slice(&row);
    }
    let mut x = Activations::new(n_tokens, cols);
    x.load(table, n_tokens, cols, &random.units(n_tokens * cols));
    let mut out = vec![0.0; n_tokens * n_rows];
    let w = WeightRows {
        block,
        bytes,
        stride: row.len(),
        n_rows,
    };
    let speed = best(n_rows * row.len(), || {
        table.matmul(w, &x, &mut out, n_rows);
        black_box(&out);
    });
    let products = speed / block.block_bytes() as f64 * (block.block_len() * n_tokens) as f64;
    let isa = table.isa();
    println!(
        "{isa:>10} {block:>5} x {n_tokens:<3} cols {cols:<5} {speed:6.1} GB/s {products:7.1} G products/s"
    );
}

#[test]
#[ignore = "measures speed"]
fn throughput() {
    let mut slab = Slab::new(BYTES).expect("memory for the weights");
    let mut slot = slab.carve(BYTES).expect("carved once");
    slot.fill(1);
    println!("read {:.1} GB/s", best(BYTES, || {
        black_box(read(black_box(&slot)));
    }));
    use BlockType as B;
    for table in tables().into_iter().skip(1).rev() {
        for block in [B::Q4_0, B::Q4_1, B::Q8_0, B::Q4_K, B::Q5_0, B::Q5_K, B::Q6_K, B::F16] {
            for cols in [1536, 8960] {
                stream(&table, block, 1, cols, &mut slot);
            }
        }
        for block in [B::Q4_1, B::Q4_K, B::Q6_K, B::F16] {
            stream(&table, block, 64, 1536, &mut slot[..4 << 20]);
        }
    }
}
