//! Panels: 16 rows of a weight matrix regrouped so that a vector unit finds one row in every SIMD
//! lane.
//!
//! In a row, the 32 or 256 elements of a block are adjacent, so a product with a vector ends in a sum across SIMD
//! lanes. In a panel (the `[oc / pack, ic / pack, pack, pack]` layout of mnn-llm, section 4.1) the lanes of a vector
//! belong to 16 rows: sums stay in their lanes, the scales of 16 rows are one load, and a batch of tokens shares all
//! unpacking. Nothing is re-quantised: every bit of a block moves to its place in the panel and can be moved back
//! ([`extract_row`]), and a panel has the size of its rows.
//!
//! A panel is a sequence of *tiles*, one per block of the format (16 rows x 32 or 256 elements). A tile holds first the
//! block's scales, one after the other, each for the 16 rows; then, for every 32 elements, the *planes* of code bits. A
//! plane of `w` bits per code is `w` vectors of 64 bytes: the group `g` of four elements `4g ..` is in vector `g % w`
//! at bit `w * (g / w)`, and byte `4 * row + k % 4` belongs to element `k`. So a vector shifted and masked is 16 rows x
//! 4 elements, the operand of the integer dot products of x86 (`vpdpbusd`) and ARM (`sdot`). Formats without blocks are
//! tiles of 16 numbers.

use crate::block::BlockType;

/// Rows of a panel.
pub const PANEL_ROWS: usize = 16;

/// Elements whose planes are together.
pub const PLANE_LEN: usize = 32;

/// Bytes of a vector of a plane.
const VECTOR: usize = 4 * PANEL_ROWS;

/// Parts of a block that are moved unchanged: `count` of `size` bytes each, from byte `at` of the
/// block.
#[derive(Clone, Copy, Debug)]
struct Head {
    at: usize,
    size: usize,
    count: usize,
}

/// Where ggml has `width` bits of every code: element `k` of a block at bit `width * (k % period /
/// modulus)` of byte `at + span * (k / period) + k % period % modulus`.
#[derive(Clone, Copy, Debug)]
struct Plane {
    width: usize,
    at: usize,
    span: usize,
    period: usize,
    modulus: usize,
}

/// The codes of 32 elements, one per byte: four elements per word.
type Groups = [u32; PLANE_LEN / 4];

/// Elements whose bits are in consecutive bytes of a block, at the same position in the byte. Single bits of
/// consecutive elements (`BITS`) are the exception.
const RUN: usize = 16;

impl Plane {
    /// Byte and bit of element `k` in ggml's block.
    #[inline(always)]
    fn in_block(&self, k: usize) -> (usize, usize) {
        let within = k % self.period;
        let byte = self.at + self.span * (k / self.period) + within % self.modulus;
        (byte, self.width * (within / self.modulus))
    }

    /// This plane's bits in each of 16 bytes.
    #[inline(always)]
    fn mask(&self) -> u128 {
        u128::from_le_bytes([(0xff_u16 >> (8 - self.width)) as u8; RUN])
    }

    /// Whether the bits of eight elements share a byte.
    #[inline(always)]
    fn is_bitmap(&self) -> bool {
        self.width == 1 && self.modulus == 1
    }

    /// The codes of elements `first..first + 32` of a block as ggml stores it.
    #[inline(always)]
    fn groups(&self, block: &[u8], first: usize) -> Groups {
        let mut groups = Groups::default();
        if self.is_bitmap() {
            let (byte, _) = self.in_block(first);
            let bits = u32::from_le_bytes(word(block, byte));
            for (g, group) in groups.iter_mut().enumerate() {
                // Each of four bits moves to a separate byte.
                *group = (bits >> (4 * g) & 0xf).wrapping_mul(0x0020_4081) & 0x0101_0101;
            }
            return groups;
        }
        for (half, groups) in groups.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let (byte, bit) = self.in_block(first + RUN * half);
            let run = u128::from_le_bytes(word(block, byte)) >> bit & self.mask();
            *groups = [0, 32, 64, 96].map(|shift| (run >> shift) as u32);
        }
        groups
    }

    /// The inverse of [`Self::groups`], into a block whose bits are still zero.
    #[inline(always)]
    fn put_groups(&self, groups: Groups, block: &mut [u8], first: usize) {
        if self.is_bitmap() {
            let (byte, _) = self.in_block(first);
            let gather = |g: &u32| g.wrapping_mul(0x0102_0408) >> 24 & 0xf;
            let bits = groups.iter().rev().fold(0, |bits, g| bits << 4 | gather(g));
            block[byte..byte + 4].copy_from_slice(&bits.to_le_bytes());
            return;
        }
        for (half, groups) in groups.as_chunks::<4>().0.iter().enumerate() {
            let (byte, bit) = self.in_block(first + RUN * half);
            let run = groups
                .iter()
                .rev()
                .fold(0, |run, &g| run << 32 | u128::from(g));
            let held = u128::from_le_bytes(word(block, byte));
            block[byte..byte + RUN].copy_from_slice(&(held | run << bit).to_le_bytes());
        }
    }

    /// Writes the codes of 32 elements of `row` to the panel's plane.
    #[inline(always)]
    fn store(&self, groups: Groups, row: usize, plane: &mut [u8]) {
        match self.width {
            1 => store::<1>(groups, row, plane),
            2 => store::<2>(groups, row, plane),
            4 => store::<4>(groups, row, plane),
            _ => store::<8>(groups, row, plane),
        }
    }

    /// The inverse of [`Self::store`].
    #[inline(always)]
    fn load(&self, plane: &[u8], row: usize) -> Groups {
        match self.width {
            1 => load::<1>(plane, row),
            2 => load::<2>(plane, row),
            4 => load::<4>(plane, row),
            _ => load::<8>(plane, row),
        }
    }
}

/// The `N` bytes from byte `at`.
#[inline(always)]
fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at..at + N]);
    word
}

/// Puts group `g` into vector `g % W` at bit `W * (g / W)`.
#[inline(always)]
fn store<const W: usize>(groups: Groups, row: usize, plane: &mut [u8]) {
    let plane = &mut plane[..VECTOR * W];
    for v in 0..W {
        let word = (v..groups.len())
            .step_by(W)
            .fold(0, |word, g| word | groups[g] << (g - v));
        plane[VECTOR * v + 4 * row..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

#[inline(always)]
fn load<const W: usize>(plane: &[u8], row: usize) -> Groups {
    let mask = u32::from_le_bytes([(0xff_u16 >> (8 - W)) as u8; 4]);
    std::array::from_fn(|g| {
        let vector = u32::from_le_bytes(word(plane, VECTOR * (g % W) + 4 * row));
        vector >> (W * (g / W)) & mask
    })
}

/// The parts of a block, in the order in which the tile holds them.
struct Layout {
    /// Elements of a block.
    len: usize,
    heads: &'static [Head],
    planes: &'static [Plane],
}

const fn head(at: usize, size: usize, count: usize) -> Head {
    Head { at, size, count }
}

const fn plane(width: usize, at: usize, [span, period, modulus]: [usize; 3]) -> Plane {
    Plane {
        width,
        at,
        span,
        period,
        modulus,
    }
}

/// Nibbles of 32 elements: the second half of them in the high ones.
const HALVES: [usize; 3] = [16, 32, 16];
/// One bit after the other.
const BITS: [usize; 3] = [1, 8, 1];
/// Nibbles of a chunk of 64: the second half in the high ones.
const CHUNKS_64: [usize; 3] = [32, 64, 32];
/// Nibbles of a chunk of 128.
const CHUNKS_128: [usize; 3] = [64, 128, 64];
/// Pairs of bits of a chunk of 128.
const QUARTERS: [usize; 3] = [32, 128, 32];
/// Single bits of 256 elements in 32 bytes.
const EIGHTHS: [usize; 3] = [32, 256, 32];

#[inline(always)]
const fn layout(block: BlockType) -> Layout {
    use BlockType as B;
    // Scales first, then planes of bits; offsets as in `ggml-common.h`.
    const D: Head = head(0, 2, 1);
    const D_M: Head = head(0, 2, 2);
    let (heads, planes): (&[Head], &[Plane]) = match block {
        B::F32 => (const { &[head(0, 4, 1)] }, &[]),
        B::F16 | B::BF16 => (&[D], &[]),
        B::Q4_0 => (&[D], const { &[plane(4, 2, HALVES)] }),
        B::Q4_1 => (&[D_M], const { &[plane(4, 4, HALVES)] }),
        B::Q5_0 => (&[D], const { &[plane(4, 6, HALVES), plane(1, 2, BITS)] }),
        B::Q5_1 => (&[D_M], const { &[plane(4, 8, HALVES), plane(1, 4, BITS)] }),
        B::Q8_0 => (&[D], const { &[plane(8, 2, [1, 1, 1])] }),
        B::Q2_K => const { (&[head(80, 2, 2), head(0, 1, 16)], &[plane(2, 16, QUARTERS)]) },
        B::Q3_K => {
            const {
                (
                    &[head(108, 2, 1), head(96, 1, 12)],
                    &[plane(2, 32, QUARTERS), plane(1, 0, EIGHTHS)],
                )
            }
        }
        B::Q4_K => const { (&[D_M, head(4, 1, 12)], &[plane(4, 16, CHUNKS_64)]) },
        B::Q5_K => {
            const {
                (
                    &[D_M, head(4, 1, 12)],
                    &[plane(4, 48, CHUNKS_64), plane(1, 16, EIGHTHS)],
                )
            }
        }
        B::Q6_K => {
            const {
                (
                    &[head(208, 2, 1), head(192, 1, 16)],
                    &[plane(4, 0, CHUNKS_128), plane(2, 128, QUARTERS)],
                )
            }
        }
        B::IQ4_NL => (&[D], const { &[plane(4, 2, HALVES)] }),
        B::IQ4_XS => const { (&[D, head(2, 1, 6)], &[plane(4, 8, HALVES)]) },
        B::MXFP4 => const { (&[head(0, 1, 1)], &[plane(4, 1, HALVES)]) },
    };
    Layout {
        len: block.block_len(),
        heads,
        planes,
    }
}

/// Copies a scale between block and tile.
#[inline(always)]
fn copy<const N: usize>(from: &[u8], at: usize, to: &mut [u8], place: usize) {
    to[place..place + N].copy_from_slice(&from[at..at + N]);
}

impl Layout {
    /// Bytes of a row that are moved together: a block, or a few numbers of a format without
    /// blocks.
    #[inline(always)]
    fn step(&self, block: BlockType) -> usize {
        block.block_bytes() * if self.planes.is_empty() { PLANE_LEN } else { 1 }
    }

    /// Scales of one kind in `bytes` of a row: those of a block, or all numbers of a format without blocks.
    #[inline(always)]
    fn count(&self, head: &Head, bytes: usize) -> usize {
        if self.planes.is_empty() {
            bytes / head.size
        } else {
            head.count
        }
    }

    /// Moves a block of `row` into its tile, whose bytes for that row are zero.
    #[inline(always)]
    fn pack(&self, from: &[u8], tile: &mut [u8], row: usize) {
        let mut at = 0;
        for head in self.heads {
            let size = head.size;
            for i in 0..self.count(head, from.len()) {
                let (byte, place) = (head.at + i * size, at + row * size);
                match size {
                    1 => tile[place] = from[byte],
                    2 => copy::<2>(from, byte, tile, place),
                    _ => copy::<4>(from, byte, tile, place),
                }
                at += PANEL_ROWS * size;
            }
        }
        for first in (0..self.len).step_by(PLANE_LEN) {
            for plane in self.planes {
                plane.store(plane.groups(from, first), row, &mut tile[at..]);
                at += VECTOR * plane.width;
            }
        }
    }

    /// The inverse of [`Self::pack`], into a block of zeros.
    #[inline(always)]
    fn take(&self, tile: &[u8], row: usize, to: &mut [u8]) {
        let mut at = 0;
        for head in self.heads {
            let size = head.size;
            for i in 0..self.count(head, to.len()) {
                let (byte, place) = (head.at + i * size, at + row * size);
                match size {
                    1 => to[byte] = tile[place],
                    2 => copy::<2>(tile, place, to, byte),
                    _ => copy::<4>(tile, place, to, byte),
                }
                at += PANEL_ROWS * size;
            }
        }
        for first in (0..self.len).step_by(PLANE_LEN) {
            for plane in self.planes {
                plane.put_groups(plane.load(&tile[at..], row), to, first);
                at += VECTOR * plane.width;
            }
        }
    }
}

/// Bytes of a panel with `cols` columns; `None` if they are not whole blocks.
pub fn panel_bytes(block: BlockType, cols: usize) -> Option<usize> {
    block.row_bytes(cols)?.checked_mul(PANEL_ROWS)
}

/// Bytes of `rows` rows in panels, the last one padded; `None` if that is not possible.
pub fn panels_bytes(block: BlockType, rows: usize, cols: usize) -> Option<usize> {
    panel_bytes(block, cols)?.checked_mul(rows.div_ceil(PANEL_ROWS))
}

/// Evaluates `$body` with `$block` as a constant: loops over a layout known at compile time are several times
/// as fast.
macro_rules! for_block {
    ($block:ident, $body:expr) => {
        for_block!($block, $body, F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4)
    };
    ($block:ident, $body:expr, $($name:ident)*) => {
        match $block {
            $(BlockType::$name => {
                let $block = BlockType::$name;
                $body
            })*
        }
    };
}

/// Appends `rows`, whole rows of `row_bytes` as ggml stores them, to `out` in panels. The rows missing
/// in the last panel are zeros, which every format reads as weights of zero.
///
/// # Panics
/// `rows` is not whole rows, or a row is not whole blocks.
pub fn pack_panels(block: BlockType, rows: &[u8], row_bytes: usize, out: &mut Vec<u8>) {
    assert!(
        row_bytes.is_multiple_of(block.block_bytes()) && rows.len().is_multiple_of(row_bytes),
        "rows are not whole blocks"
    );
    for rows in rows.chunks(PANEL_ROWS * row_bytes) {
        let at = out.len();
        out.resize(at + PANEL_ROWS * row_bytes, 0);
        let panel = &mut out[at..];
        for_block!(block, pack_panel(block, rows, row_bytes, panel));
    }
}

/// Moves up to 16 rows into a panel of zeros, tile by tile.
#[inline(always)]
fn pack_panel(block: BlockType, rows: &[u8], row_bytes: usize, panel: &mut [u8]) {
    let layout = layout(block);
    let step = layout.step(block);
    for (i, tile) in panel.chunks_mut(PANEL_ROWS * step).enumerate() {
        let len = tile.len() / PANEL_ROWS;
        for (row, bytes) in (0..PANEL_ROWS).zip(rows.chunks_exact(row_bytes)) {
            layout.pack(&bytes[i * step..][..len], tile, row);
        }
    }
}

/// The row `row` of a panel as ggml stores it: the inverse of [`pack_panels`].
///
/// # Panics
/// `row` is beyond the panel, or `panel` is not 16 times as long as `out`, whole blocks.
pub fn extract_row(block: BlockType, panel: &[u8], row: usize, out: &mut [u8]) {
    assert!(
        row < PANEL_ROWS
            && panel.len() == PANEL_ROWS * out.len()
            && out.len().is_multiple_of(block.block_bytes()),
        "not a row of this panel"
    );
    for_block!(block, take_row(block, panel, row, out));
}

#[inline(always)]
fn take_row(block: BlockType, panel: &[u8], row: usize, out: &mut [u8]) {
    let layout = layout(block);
    let step = layout.step(block);
    out.fill(0);
    let tiles = panel.chunks(PANEL_ROWS * step);
    for (tile, to) in tiles.zip(out.chunks_mut(step)) {
        layout.take(tile, row, to);
    }
}

#[cfg(test)]
mod tests;
