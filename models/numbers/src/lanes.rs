//! Laned rows: one row of a weight matrix regrouped so that a vector unit finds one block in every SIMD lane.
//!
//! If single rows are wanted from anywhere, panels ([`crate::panel`]) are of no use, since they keep 16 rows together.
//! A laned row is kept separately, with its blocks regrouped: sums of products stay in their SIMD lanes, and the scales
//! of 16 blocks are one load. Nothing is re-quantised: every bit of a block moves to its place, and a laned row has the
//! size of the row.
//!
//! Blocks are in groups of [`LANES`]; the last group may be smaller. First come the codes, group by group: word `v` of
//! every block of the group, for each `v` in turn, 4 bytes each. If codes have 4 bits, word `v` holds elements `8v ..`:
//! element `8v + 4h + b` at bit `8b + 4h`. If they have 8 bits, element `4v + b` is byte `b`. Then come the scales of
//! all blocks, and then their minima, if there are any, each as f16.
//!
//! Sums over laned rows, element by element, come in *lane order*: element `e` of block `l` of a group of `k` blocks
//! is at `k * e + l` of the group ([`add_to_columns`]).

use crate::block::BlockType;

/// Blocks in a group.
pub const LANES: usize = 16;

/// Elements in a block.
pub const BLOCK: usize = 32;

/// Words of codes in a block; `None` for formats without laned rows.
pub const fn words(block: BlockType) -> Option<usize> {
    match block {
        BlockType::Q4_0 | BlockType::Q4_1 => Some(4),
        BlockType::Q8_0 => Some(8),
        _ => None,
    }
}

/// Appends `row`, blocks as in ggml, to `out` as a laned row.
///
/// # Panics
/// The format has no laned rows, or the row is not whole blocks.
pub fn append_laned(block: BlockType, row: &[u8], out: &mut Vec<u8>) {
    let Some(words) = words(block) else {
        panic!("{block} has no laned rows");
    };
    let (bytes, heads) = (block.block_bytes(), block.block_bytes() - 4 * words);
    assert!(row.len().is_multiple_of(bytes), "row of half a block");
    for group in row.chunks(LANES * bytes) {
        for v in 0..words {
            for block in group.chunks_exact(bytes) {
                out.extend(word(&block[heads..], v));
            }
        }
    }
    for head in (0..heads).step_by(2) {
        for block in row.chunks_exact(bytes) {
            out.extend(&block[head..head + 2]);
        }
    }
}

/// Word `v` of a block whose codes are in ggml's order.
fn word(codes: &[u8], v: usize) -> [u8; 4] {
    std::array::from_fn(|b| match codes.len() {
        BLOCK => codes[4 * v + b],
        _ => {
            let nibble = |e: usize| codes[e % 16] >> (4 * (e / 16)) & 0x0f;
            nibble(8 * v + b) | nibble(8 * v + 4 + b) << 4
        }
    })
}

/// Writes the blocks of a laned row, as in ggml, to `row`.
///
/// # Panics
/// The format has no laned rows, or `row` has another length or is not whole blocks.
pub fn extract_row(block: BlockType, laned: &[u8], row: &mut [u8]) {
    let Some(words) = words(block) else {
        panic!("{block} has no laned rows");
    };
    let (bytes, heads) = (block.block_bytes(), block.block_bytes() - 4 * words);
    assert!(row.len().is_multiple_of(bytes), "row of half a block");
    assert_eq!(laned.len(), row.len(), "row of another length");
    let (codes, mut scales) = laned.split_at(row.len() / bytes * 4 * words);
    for head in (0..heads).step_by(2) {
        let (these, rest) = scales.split_at(row.len() / bytes * 2);
        for (block, scale) in row.chunks_exact_mut(bytes).zip(these.chunks_exact(2)) {
            block[head..head + 2].copy_from_slice(scale);
        }
        scales = rest;
    }
    let groups = row.chunks_mut(LANES * bytes);
    for (group, codes) in groups.zip(codes.chunks(LANES * 4 * words)) {
        let k = group.len() / bytes;
        for (l, block) in group.chunks_exact_mut(bytes).enumerate() {
            for v in 0..words {
                put_word(&codes[4 * (k * v + l)..][..4], v, &mut block[heads..]);
            }
        }
    }
}

/// Writes word `v` of a block to where ggml has its codes.
fn put_word(word: &[u8], v: usize, codes: &mut [u8]) {
    for (b, &byte) in word.iter().enumerate() {
        if codes.len() == BLOCK {
            codes[4 * v + b] = byte;
            continue;
        }
        for (e, nibble) in [(8 * v + b, byte & 0x0f), (8 * v + 4 + b, byte >> 4)] {
            let shift = 4 * (e / 16);
            let to = &mut codes[e % 16];
            *to = *to & !(0x0f << shift) | nibble << shift;
        }
    }
}

/// The groups of a row of `cols` columns: first column and number of blocks.
pub fn groups(cols: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..cols)
        .step_by(LANES * BLOCK)
        .map(move |first| (first, ((cols - first) / BLOCK).min(LANES)))
}

/// The columns of a row of `cols` in lane order.
pub fn lane_order(cols: usize) -> impl Iterator<Item = usize> {
    groups(cols).flat_map(|(first, blocks)| {
        (0..blocks * BLOCK).map(move |i| first + i % blocks * BLOCK + i / blocks)
    })
}

/// Adds `lanes`, sums in lane order, to `columns`, both `[cols]`, whole blocks.
pub fn add_to_columns(lanes: &[f32], columns: &mut [f32]) {
    for (first, blocks) in groups(columns.len()) {
        let columns = &mut columns[first..][..blocks * BLOCK];
        let lanes = &lanes[first..][..blocks * BLOCK];
        for (l, block) in columns.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            match lanes.as_chunks::<LANES>() {
                (elements, []) if blocks == LANES => add_lane(block, elements.iter().map(|e| e[l])),
                _ => add_lane(block, lanes.chunks_exact(blocks).map(|e| e[l])),
            }
        }
    }
}

/// Adds a SIMD lane to its block.
#[inline(always)]
fn add_lane(block: &mut [f32; BLOCK], lane: impl Iterator<Item = f32>) {
    for (column, element) in block.iter_mut().zip(lane) {
        *column += element;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits of element `e` of a laned row of `n` blocks.
    fn code(block: BlockType, row: &[u8], n: usize, e: usize) -> u8 {
        let words = words(block).unwrap();
        let (b, e) = (e / BLOCK, e % BLOCK);
        let (group, lane) = (b / LANES, b % LANES);
        let k = (n - group * LANES).min(LANES);
        let at = |v: usize| group * LANES * 4 * words + 4 * (k * v + lane);
        match words {
            4 => row[at(e / 8) + e % 4] >> (4 * (e / 4 % 2)) & 0x0f,
            _ => row[at(e / 4) + e % 4],
        }
    }

    #[test]
    fn every_bit_has_the_place_that_the_description_says() {
        for block in [BlockType::Q4_0, BlockType::Q4_1, BlockType::Q8_0] {
            for n in [1, 3, 16, 17, 40] {
                let bytes = block.block_bytes();
                let row: Vec<u8> = (0..n * bytes).map(|i| (i * 151 + i / 7) as u8).collect();
                let mut laned = vec![];
                append_laned(block, &row, &mut laned);
                assert_eq!(laned.len(), row.len());
                let mut back = vec![0xff; row.len()];
                extract_row(block, &laned, &mut back);
                assert_eq!(back, row);
                let heads = bytes - 4 * words(block).unwrap();
                for (b, source) in row.chunks(bytes).enumerate() {
                    for e in 0..BLOCK {
                        let expected = match bytes - heads {
                            16 => source[heads + e % 16] >> (4 * (e / 16)) & 0x0f,
                            _ => source[heads + e],
                        };
                        let place = b * BLOCK + e;
                        assert_eq!(
                            code(block, &laned, n, place),
                            expected,
                            "{block} {n} {b} {e}"
                        );
                    }
                    for head in 0..heads / 2 {
                        let at = n * (bytes - heads) + 2 * (head * n + b);
                        assert_eq!(laned[at..at + 2], source[2 * head..2 * head + 2]);
                    }
                }
            }
        }
    }

    #[test]
    fn lane_order_goes_back_to_columns() {
        for n in [1, 16, 18, 35] {
            let cols = n * BLOCK;
            let mut lanes = vec![0.0; cols];
            for (first, k) in groups(cols) {
                for i in 0..k * BLOCK {
                    let (e, l) = (i / k, i % k);
                    lanes[first + i] = (first + l * BLOCK + e) as f32;
                }
            }
            let order: Vec<f32> = lane_order(cols).map(|column| column as f32).collect();
            assert_eq!(lanes, order);
            let mut columns = vec![0.5; cols];
            add_to_columns(&lanes, &mut columns);
            let expected: Vec<f32> = (0..cols).map(|i| i as f32 + 0.5).collect();
            assert_eq!(columns, expected);
        }
    }
}
