//! Panels times many tokens on a unit that multiplies matrices of bytes.
//!
//! One block of a panel and one piece of tokens are one product of matrices: `[tokens, 32] x [32, 16 rows]`, exact in
//! i32. A panel's planes are already in the order in which such units take the right operand. What is left to the
//! vectors is scaling and adding, as in [`super::panels`] and with its bits: 3 or 4 instructions per block, token and
//! 16 rows instead of 12, so that they are the bound.
//!
//! Codes are unpacked once for all tokens, a chunk of columns at a time, and the sums of all tokens of a round wait in
//! memory for the next chunk. Only pieces of 16 tokens are multiplied in this way: for narrower ones vectors are
//! faster.

use std::ops::Range;

use forebay_numbers::panel::PANEL_ROWS;

use super::panel_formats::PanelFormat;
use super::panels::{PanelMatmul, prefetch};
use super::prefetch::DISTANCE;
use super::quantised_panels::{add, add_halves};
use super::simd::{GROUPS, Kernel, LANES, Simd, unrolled};
use super::tokens::{BLOCK, PanelTokens, Piece};

/// Tokens of a product.
pub(super) const WIDE: usize = 16;
/// Tokens whose sums are kept while a panel is gone through.
const ROUND: usize = 16 * WIDE;
/// Blocks of a chunk: whole tiles of any format. Their codes take 16 KiB, so they stay in the first cache.
const CHUNK: usize = 32;

/// Codes of a block: per group of four elements, 16 rows.
pub(super) type Codes = [[i8; 4 * PANEL_ROWS]; GROUPS];
/// A block of each token.
pub(super) type Tokens = [[i8; BLOCK]; WIDE];
/// Products of all tokens with 16 rows.
pub(super) type Tile = [[i32; PANEL_ROWS]; WIDE];

/// A unit that multiplies matrices of bytes, ready to do so in this thread.
pub(super) trait TileUnit {
    /// `out[t][r] = sum(x[t][k] * codes[k / 4][4 * r + k % 4])`.
    fn multiply(&self, x: &Tokens, codes: &Codes, out: &mut Tile);

    /// The same for the first and the last 16 elements.
    fn multiply_halves(&self, x: &Tokens, codes: &Codes, out: [&mut Tile; 2]);
}

/// [`PanelMatmul`] with a unit, of all whole pieces of 16 tokens.
pub(super) struct Tiled<'j, 'a, F, U>(pub(super) &'j mut PanelMatmul<'a, F>, pub(super) U);

impl<F: PanelFormat, U: TileUnit> Kernel for Tiled<'_, '_, F, U> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> bool {
        let Self(job, unit) = self;
        let mut chunk = Chunk::new();
        let mut products = TwoSteps::default();
        let mut sums = [[0.0; PANEL_ROWS]; ROUND];
        let mut in_range = true;
        let tile_bytes = CHUNK / F::BLOCKS * F::TILE;
        let n_tokens = job.x.n_tokens() / WIDE * WIDE;
        for start in (0..n_tokens).step_by(ROUND) {
            let tokens = start..n_tokens.min(start + ROUND);
            for first in (0..job.w.n_rows).step_by(PANEL_ROWS) {
                let panel = &job.w.bytes[first / PANEL_ROWS * job.panel_bytes..][..job.panel_bytes];
                for (i, tiles) in panel.chunks(tile_bytes).enumerate() {
                    chunk.unpack::<S, F>(s, tiles, i, job.prefetches);
                    let pieces = pieces(tokens.clone()).map(|piece| job.x.piece(piece));
                    chunk.add::<S, F, U>(s, &unit, pieces, &mut products, &mut sums);
                }
                for (piece, sums) in pieces(tokens.clone()).zip(sums.chunks_exact(WIDE)) {
                    in_range &= job.put(s, first, piece, sums);
                }
            }
        }
        in_range
    }
}

fn pieces(tokens: Range<usize>) -> impl Iterator<Item = Piece> {
    let width = WIDE;
    tokens
        .step_by(WIDE)
        .map(move |first| Piece { first, width })
}

#[inline(always)]
fn load<S: Simd>(s: S, sums: &[[f32; PANEL_ROWS]; WIDE]) -> [S::F; WIDE] {
    let mut lanes = [s.zero(); WIDE];
    unrolled!(t in 0..16 => { lanes[t] = s.load(&sums[t]); });
    lanes
}

/// Consecutive blocks of a panel, unpacked. Rows of a unit's tiles must not cross cache lines: loading would take twice
/// as long.
#[repr(align(64))]
struct Chunk {
    codes: [Codes; CHUNK],
    scales: [[[f32; LANES]; 2]; CHUNK],
    mins: [[[f32; LANES]; 2]; CHUNK],
    /// Which of the panel's chunks.
    index: usize,
    n_blocks: usize,
}

impl Chunk {
    fn new() -> Self {
        Self {
            codes: [[[0; 4 * PANEL_ROWS]; GROUPS]; CHUNK],
            scales: [[[0.0; LANES]; 2]; CHUNK],
            mins: [[[0.0; LANES]; 2]; CHUNK],
            index: 0,
            n_blocks: 0,
        }
    }

    /// Takes over the tiles of chunk `index`; later ones are prefetched meanwhile, if that is wanted.
    #[inline(always)]
    fn unpack<S: Simd, F: PanelFormat>(
        &mut self,
        s: S,
        tiles: &[u8],
        index: usize,
        prefetches: bool,
    ) {
        (self.index, self.n_blocks) = (index, 0);
        for tile in tiles.chunks_exact(F::TILE) {
            if prefetches {
                prefetch(s, tile, DISTANCE);
            }
            let heads = F::heads(s, tile);
            for b in 0..F::BLOCKS {
                let to = self.n_blocks;
                let codes = F::codes(s, &tile[F::PLANES + b * F::BITS * 64..][..F::BITS * 64]);
                unrolled!(g in 0..8 => {
                    let signed = match F::BIAS_BITS {
                        0 => codes[g],
                        bits => s.add_where(codes[g], u64::MAX, (1_u8 << bits).wrapping_neg()),
                    };
                    s.store_bytes(signed, &mut self.codes[to][g]);
                });
                let (scales, mins) = F::scales(s, tile, heads, b);
                unrolled!(h in 0..2 => {
                    s.store(scales[h], &mut self.scales[to][h]);
                    if F::MIN {
                        s.store(mins[h], &mut self.mins[to][h]);
                    }
                });
                self.n_blocks += 1;
            }
        }
    }

    /// Adds the chunk's products with the pieces to their sums, which start with the first chunk.
    #[inline(always)]
    fn add<'a, S: Simd, F: PanelFormat, U: TileUnit>(
        &self,
        s: S,
        unit: &U,
        mut pieces: impl Iterator<Item = PanelTokens<'a, WIDE>>,
        TwoSteps([now, next]): &mut TwoSteps,
        sums: &mut [[f32; PANEL_ROWS]; ROUND],
    ) {
        // The unit is a step ahead of the vectors: units for matrices have a port in common with vectors, so both work
        // a while before the other.
        let (mut now, mut next) = (now, next);
        let step = if F::HALVES { 1 } else { 2 };
        let mut sums = sums.as_chunks_mut().0.iter_mut();
        let mut piece = pieces.next();
        if let Some(x) = &piece {
            self.multiply::<F, U>(unit, x, 0, now);
        }
        while let (Some(x), Some(sums)) = (piece, sums.next()) {
            piece = pieces.next();
            let mut lanes = match self.index {
                0 => [s.zero(); WIDE],
                _ => load(s, sums),
            };
            for b in (0..self.n_blocks).step_by(step) {
                if b + step < self.n_blocks {
                    self.multiply::<F, U>(unit, &x, b + step, next);
                } else if let Some(x) = &piece {
                    self.multiply::<F, U>(unit, x, 0, next);
                }
                self.add_blocks::<S, F>(s, &x, b, now, &mut lanes);
                std::mem::swap(&mut now, &mut next);
            }
            unrolled!(t in 0..16 => { s.store(lanes[t], &mut sums[t]); });
        }
    }

    /// Adds the products of two blocks from `b` on, as far as there are so many, or of the two halves of block `b`.
    #[inline(always)]
    fn add_blocks<S: Simd, F: PanelFormat>(
        &self,
        s: S,
        x: &PanelTokens<'_, WIDE>,
        b: usize,
        products: &[Tile; 2],
        lanes: &mut [S::F; WIDE],
    ) {
        let scales = [s.load(&self.scales[b][0]), s.load(&self.scales[b][1])];
        let mins = [s.load(&self.mins[b][0]), s.load(&self.mins[b][1])];
        let at = self.index * CHUNK + b;
        let lane = |i: usize, t: usize| s.words(bytemuck::cast_ref(&products[i][t]));
        if F::HALVES {
            unrolled!(t in 0..16 => {
                let halves = [lane(0, t), lane(1, t)];
                add_halves::<S, F, WIDE>(s, halves, (scales, mins), x, (at, t), lanes);
            });
            return;
        }
        unrolled!(t in 0..16 => {
            add::<S, F, WIDE>(s, lane(0, t), (scales[0], mins[0]), x, (at, t), lanes);
        });
        if b + 1 < self.n_blocks {
            let (scale, min) = (s.load(&self.scales[b + 1][0]), s.load(&self.mins[b + 1][0]));
            unrolled!(t in 0..16 => {
                add::<S, F, WIDE>(s, lane(1, t), (scale, min), x, (at + 1, t), lanes);
            });
        }
    }

    /// Multiplies what [`Self::add_blocks`] adds.
    #[inline(always)]
    fn multiply<F: PanelFormat, U: TileUnit>(
        &self,
        unit: &U,
        x: &PanelTokens<'_, WIDE>,
        b: usize,
        [first, second]: &mut [Tile; 2],
    ) {
        let x = &x.codes[self.index * CHUNK..][..self.n_blocks];
        if F::HALVES {
            return unit.multiply_halves(&x[b], &self.codes[b], [first, second]);
        }
        unit.multiply(&x[b], &self.codes[b], first);
        if b + 1 < self.n_blocks {
            unit.multiply(&x[b + 1], &self.codes[b + 1], second);
        }
    }
}

/// Products of a step, and of the step before it. All within 4 KiB: a CPU may take a load for one of what is just being
/// stored in the same place of another 4 KiB, and wait.
#[repr(align(64))]
struct TwoSteps([[Tile; 2]; 2]);

impl Default for TwoSteps {
    fn default() -> Self {
        Self([[[[0; PANEL_ROWS]; 16]; 2]; 2])
    }
}
