//! How fast weights stream through the kernels on one thread. Run with
//! `cargo test --release -p forebay-kernels throughput -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use forebay_kernels::kv::{BLOCK, KvCache, KvLayer, KvShape, KvType};
use forebay_numbers::block::BlockType;
use forebay_numbers::lanes::{append_laned, words};
use forebay_numbers::panel::pack_panels;
use forebay_queues::slab::Slab;

use super::definition::random_row;
use super::{Random, best, tables};
use forebay_kernels::{
    Activations, AttendScratch, Form, KernelTable, Queries, WeightPanels, WeightRows,
};

const BYTES: usize = 256 << 20;
/// Pieces are timed one by one: the best one was not disturbed by other programs, and is cold, since
/// the rest of the buffer has been read since its last turn.
const PIECES: usize = 32;
const PASSES: usize = 4;

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

/// Rows or panels, whose bytes are as random: speed does not depend on them.
fn stream(
    table: &KernelTable,
    form: Form,
    block: BlockType,
    (n_tokens, cols): (usize, usize),
    bytes: &mut [u8],
) {
    let mut random = Random(1);
    let row = random_row(block, cols, &mut random);
    let mut panel = Vec::new();
    match form {
        Form::Rows => panel = row.repeat(16),
        Form::Lanes => append_laned(block, &row, &mut panel),
        Form::Panels => pack_panels(block, &row.repeat(16), row.len(), &mut panel),
    }
    if form == Form::Lanes {
        panel = panel.repeat(16);
    }
    for place in bytes.chunks_exact_mut(panel.len()) {
        place.copy_from_slice(&panel);
    }
    let n_rows = bytes.len() / panel.len() * 16 / (16 * PIECES) * 16 * PIECES;
    let mut x = Activations::new(n_tokens, cols);
    x.load(table, form, n_tokens, cols, &random.units(n_tokens * cols));
    let mut out = vec![0.0; n_tokens * n_rows];
    let stride = row.len();
    let rows_per_second = best((PIECES, PASSES), n_rows, |first, end| {
        let (bytes, n_rows) = (&bytes[first * stride..end * stride], end - first);
        if form != Form::Panels {
            let w = WeightRows {
                block,
                bytes,
                stride,
                n_rows,
            };
            table.matmul(w, &x, &mut out, n_rows);
        } else {
            let w = WeightPanels {
                block,
                bytes,
                n_rows,
            };
            table.panels(w, &x, &mut out, n_rows);
        }
        black_box(&out);
    });
    let speed = rows_per_second * stride as f64 / 1e9;
    let products = speed / block.block_bytes() as f64 * (block.block_len() * n_tokens) as f64;
    println!(
        "{:>10} {block:>5} {form:?} x {n_tokens:<3} cols {cols:<5} {speed:6.1} GB/s {products:7.1} G products/s",
        table.isa().name()
    );
}

/// f32 multiply-adds per second of one core of the development machine (Zen 5 at about 4.5 GHz, 32 per
/// cycle), which speeds are compared with.
const FMA_PEAK: f64 = 145e9;

/// Attention of `n_tokens` over `n_pos` positions, each turn with another of the key/value heads of a model.
fn attention(
    table: &KernelTable,
    kind: KvType,
    (group, d): (usize, usize),
    (n_tokens, n_pos): (usize, usize),
) {
    const HEADS: usize = 60;
    let mut random = Random(1);
    let shape = KvShape {
        kind,
        layers: vec![KvLayer {
            heads: HEADS,
            head_dim: d,
            value_dim: d,
            pool: 0,
        }],
        pools: vec![n_pos.div_ceil(BLOCK)],
    };
    let mut cache = KvCache::new(&shape);
    let blocks: Vec<u32> = (0..n_pos.div_ceil(BLOCK) as u32).collect();
    let row = random.units(d);
    for head in 0..HEADS {
        for p in 0..n_pos {
            cache.store((0, head), ((p / BLOCK) as u32, p % BLOCK), &row, &row);
        }
    }
    let q = random.units(n_tokens * group * d);
    let mut out = vec![0.0; n_tokens * group * d];
    let mut scratch = AttendScratch::new(d);
    let position = n_pos - n_tokens;
    let mut best = f64::INFINITY;
    for turn in 0..4 * HEADS {
        let queries = Queries {
            q: &q,
            stride: group * d,
            n_tokens,
            heads: group,
            blocks: &blocks,
            position,
            window: usize::MAX,
            scale: 0.1,
            softcap: None,
            sinks: &[],
            origin: None,
        };
        let start = Instant::now();
        table.attend(
            queries,
            cache.head(0, turn % HEADS),
            &mut scratch,
            &mut out,
            group * d,
        );
        best = best.min(start.elapsed().as_secs_f64());
        black_box(&out);
    }
    let seen: usize = (position + 1..=n_pos).sum();
    let products = (2 * group * seen * d) as f64 / best;
    let bytes = shape.bytes() as f64 / HEADS as f64 / best;
    println!(
        "{:>10} attend {kind:>3} {n_tokens:>3} x {group} x {d:<3} at {n_pos:<4}: {:.3} ns per head and position, \
         {:.0} GFLOP/s = {:.0}% of FMA peak, {:.1} GB/s",
        table.isa().name(),
        best * 1e9 / (group * seen) as f64,
        products * 2e-9,
        products / FMA_PEAK * 100.0,
        bytes / 1e9,
    );
}

#[test]
#[ignore = "measures speed"]
fn attention_throughput() {
    for table in tables().into_iter().skip(1).rev() {
        for kind in KvType::ALL {
            for heads in [(3, 64), (7, 64), (6, 128)] {
                for tokens in [(1, 512), (1, 4096), (128, 128), (128, 512)] {
                    attention(&table, kind, heads, tokens);
                }
            }
        }
    }
}

#[test]
#[ignore = "measures speed"]
fn throughput() {
    let mut slab = Slab::new(BYTES).expect("memory for the weights");
    let mut slot = slab.carve(BYTES).expect("carved once");
    slot.fill(1);
    let bound = best((PIECES, PASSES), BYTES, |first, end| {
        black_box(read(black_box(&slot[first..end])));
    });
    println!("read {:.1} GB/s", bound / 1e9);
    use BlockType as B;
    for table in tables().into_iter().skip(1).rev() {
        for block in [
            B::Q4_0,
            B::Q4_1,
            B::Q8_0,
            B::Q4_K,
            B::Q5_0,
            B::Q5_K,
            B::Q6_K,
            B::F16,
        ] {
            for cols in [576, 1536, 8960] {
                if block.row_bytes(cols).is_some() {
                    for form in [Form::Rows, Form::Lanes, Form::Panels] {
                        if form == Form::Lanes && words(block).is_none() {
                            continue;
                        }
                        stream(&table, form, block, (1, cols), &mut slot);
                    }
                }
            }
        }
        for block in [B::Q4_1, B::Q4_K, B::Q5_0, B::Q6_K, B::Q8_0, B::F16] {
            for (form, n_tokens) in [(Form::Rows, 64), (Form::Panels, 64), (Form::Panels, 512)] {
                stream(&table, form, block, (n_tokens, 1536), &mut slot[..4 << 20]);
            }
        }
    }
}
