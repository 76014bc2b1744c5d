//! How fast rows that lie anywhere in a large slab come through the kernels on one thread. Run with
//! `cargo test --release -p forebay-kernels scattered -- --ignored --nocapture`.

use std::hint::black_box;

use forebay_numbers::block::BlockType;
use forebay_queues::slab::Slab;

use super::definition::random_row;
use super::{Random, best, tables};
use forebay_kernels::{Activations, Form, Gather, KernelTable};

const BYTES: usize = 1 << 30;
/// Pieces are timed one by one and are larger than any cache; the best one was not disturbed by other
/// programs.
const PIECES: usize = 24;
/// Every row is touched once per pass.
const PASSES: usize = 3;
/// Rows of a call: a core's part of a layer's live neurons.
const PER_CALL: usize = 700;

fn shuffled(n: usize) -> Vec<usize> {
    let mut random = Random(3);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, random.next() as usize % (i + 1));
    }
    order
}

fn scattered(table: &KernelTable, block: BlockType, cols: usize, bytes: &mut [u8]) {
    let mut random = Random(1);
    let row = random_row(block, cols, &mut random);
    // Rows of a neuron bundle start on cache lines.
    let stride = row.len().next_multiple_of(64);
    for place in bytes.chunks_exact_mut(stride) {
        place[..row.len()].copy_from_slice(&row);
    }
    let bytes = &*bytes;
    let order = shuffled(bytes.len() / stride).into_iter();
    let rows: Vec<&[u8]> = order.map(|i| &bytes[i * stride..][..row.len()]).collect();
    let read = best((PIECES, PASSES), bytes.len(), |first, end| {
        black_box(table.read_pass(&bytes[first..end]));
    });
    let per_second = |rows: f64| rows * row.len() as f64;
    let (h, mut acc) = (random.units(PER_CALL), vec![0.0; cols]);
    let axpy = per_second(best((PIECES, PASSES), rows.len(), |first, end| {
        for rows in rows[first..end].chunks(PER_CALL) {
            table.axpy_gathered(block, Gather::new(rows), &h[..rows.len()], &mut acc, cols);
        }
        black_box(&acc);
    }));
    let mut x = Activations::new(1, cols);
    x.load(table, Form::Rows, 1, cols, &random.units(cols));
    let mut out = vec![0.0; PER_CALL];
    let dot = per_second(best((PIECES, PASSES), rows.len(), |first, end| {
        for rows in rows[first..end].chunks(PER_CALL) {
            table.dot_gathered(block, Gather::new(rows), &x, &mut out[..rows.len()]);
            black_box(&out);
        }
    }));
    println!(
        "{:>10} {block:>5} cols {cols:<5} read {:5.1} GB/s, axpy {:5.1} = {:3.0}%, dot {:5.1} = {:3.0}%",
        table.isa().name(),
        read / 1e9,
        axpy / 1e9,
        axpy / read * 100.0,
        dot / 1e9,
        dot / read * 100.0
    );
}

#[test]
#[ignore = "measures speed"]
fn scattered_rows() {
    let mut slab = Slab::new(BYTES).expect("memory for the weights");
    let mut slot = slab.carve(BYTES).expect("carved once");
    slot.fill(1);
    use BlockType as B;
    for table in tables().into_iter().skip(1).rev() {
        for block in [B::Q4_0, B::Q8_0, B::F16, B::Q4_K] {
            for cols in [4096, 1536] {
                scattered(&table, block, cols, &mut slot);
            }
        }
    }
}
