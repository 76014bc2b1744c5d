//! The product of panels, written once more from its definition, with sums that are rounded once or twice.

use forebay_kernels::Activations;
use forebay_numbers::block::{BlockType, MXFP4_VALUES};
use forebay_numbers::panel::extract_row;

use super::Matrix;

/// `a * b + c` with one or two roundings.
pub(super) type Sum = fn(f32, f32, f32) -> f32;

pub(super) fn fused(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

pub(super) fn unfused(a: f32, b: f32, c: f32) -> f32 {
    a * b + c
}

/// A block of 32 weights: codes, the scales of both halves, the minimum.
struct Block {
    codes: [i32; 32],
    scales: [f32; 2],
    minimum: f32,
}

fn f16(bytes: &[u8]) -> f32 {
    let h = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let (sign, exponent, fraction) = (h >> 15, h >> 10 & 31, h & 0x3ff);
    let magnitude = match exponent {
        0 => fraction as f32 * 2.0_f32.powi(-24),
        e => (1024 + fraction) as f32 * 2.0_f32.powi(e as i32 - 25),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// The blocks of a row as ggml stores it.
fn blocks(block: BlockType, row: &[u8]) -> Vec<Block> {
    let chunks = row.chunks_exact(block.block_bytes());
    chunks
        .flat_map(|bytes| {
            (0..block.block_len() / 32).map(move |b| {
                let nibble =
                    |at: usize, k: usize| i32::from(bytes[at + k % 16] >> (4 * (k / 16)) & 15);
                let k_nibble = |at: usize, k: usize| {
                    i32::from(bytes[at + b / 2 * 32 + k] >> (4 * (b % 2)) & 15)
                };
                let codes = std::array::from_fn(|k| match block {
                    BlockType::Q4_0 => nibble(2, k) - 8,
                    BlockType::Q8_0 => i32::from(bytes[2 + k] as i8),
                    BlockType::MXFP4 => i32::from(MXFP4_VALUES[nibble(1, k) as usize]),
                    BlockType::Q4_K => k_nibble(16, k),
                    BlockType::Q5_K => k_nibble(48, k) | i32::from(bytes[16 + k] >> b & 1) << 4,
                    _ => {
                        let (half, quarter) = (b / 4, b % 4);
                        let low = bytes[half * 64 + quarter % 2 * 32 + k] >> (quarter / 2 * 4) & 15;
                        let high = bytes[128 + half * 32 + k] >> (quarter * 2) & 3;
                        i32::from(low | high << 4) - 32
                    }
                });
                let six = |second: bool| {
                    let at = 4 + b % 4 + if second { 4 } else { 0 };
                    let low = bytes[8 + b.max(4)];
                    f32::from(match (b < 4, second) {
                        (true, _) => bytes[at] & 63,
                        (false, false) => low & 15 | bytes[at] >> 6 << 4,
                        (false, true) => low >> 4 | bytes[at] >> 6 << 4,
                    })
                };
                let (scales, minimum) = match block {
                    BlockType::MXFP4 => ([2.0_f32.powi(i32::from(bytes[0]) - 128); 2], 0.0),
                    BlockType::Q4_K | BlockType::Q5_K => {
                        ([six(false) * f16(bytes); 2], six(true) * f16(&bytes[2..]))
                    }
                    BlockType::Q6_K => {
                        let scale =
                            |h: usize| f32::from(bytes[192 + 2 * b + h] as i8) * f16(&bytes[208..]);
                        ([scale(0), scale(1)], 0.0)
                    }
                    _ => ([f16(bytes); 2], 0.0),
                };
                Block {
                    codes,
                    scales,
                    minimum,
                }
            })
        })
        .collect()
}

/// `[n_tokens, n_rows]`.
pub(super) fn product(matrix: &Matrix, tokens: &Activations, sum: Sum) -> Vec<f32> {
    let (block, cols, n_rows) = (matrix.block, matrix.cols, matrix.n_rows);
    let row_bytes = block.row_bytes(cols).expect("whole blocks");
    let rows: Vec<Vec<Block>> = (0..n_rows)
        .map(|r| {
            let mut row = vec![0; row_bytes];
            let panel = &matrix.panels[r / 16 * 16 * row_bytes..][..16 * row_bytes];
            extract_row(block, panel, r % 16, &mut row);
            blocks(block, &row)
        })
        .collect();
    let mut out = vec![0.0; tokens.n_tokens() * n_rows];
    let mut of_tokens: Vec<_> = tokens.token_blocks().collect();
    of_tokens.sort_by_key(|x| (x.token, x.block));
    for x in of_tokens {
        for (row, out) in rows.iter().zip(&mut out[x.token * n_rows..]) {
            let w = &row[x.block];
            let dot = |half: std::ops::Range<usize>| {
                half.map(|k| w.codes[k] * i32::from(x.codes[k]))
                    .sum::<i32>() as f32
            };
            let scaled = match block {
                BlockType::Q6_K => sum(dot(0..16), w.scales[0], dot(16..32) * w.scales[1]),
                _ => dot(0..32) * w.scales[0],
            };
            *out = sum(scaled, x.scale, *out);
            if matches!(block, BlockType::Q4_K | BlockType::Q5_K) {
                *out = sum(-w.minimum, x.sum, *out);
            }
        }
    }
    out
}
