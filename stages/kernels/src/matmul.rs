//! Rows of weights times activations.
//!
//! The order of additions of one (row, token) pair depends on the number of columns only, never on
//! which rows or tokens are computed together: two accumulators of 16 lanes take turns, then their
//! lanes are summed.

use std::marker::PhantomData;
use std::ops::Range;

use super::activations::{Activations, Form, Token};
use super::formats::{CHUNK, Float, Format, GROUP, MAX_PAIR_BYTES, PAIR};
use super::rows::{Ahead, Rows, ask};
use super::simd::{Kernel, LANES, Simd, unrolled};

/// Rows that are multiplied together when there is one token: their chains of additions overlap.
const ROWS: usize = 2;
/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 4;
/// Elements per step of the floating-point formats.
const STEP: usize = 2 * LANES;

/// `out[t, r] = w[r] . x[t]` for weights in the format `F`.
pub(super) struct Matmul<'a, F> {
    w: Rows<'a>,
    row_bytes: usize,
    x: &'a Activations,
    tokens: Range<usize>,
    out: &'a mut [f32],
    out_stride: usize,
    format: PhantomData<F>,
}

impl<'a> Matmul<'a, ()> {
    /// Shapes are checked by the table.
    pub(super) fn new(
        w: Rows<'a>,
        row_bytes: usize,
        x: &'a Activations,
        out: &'a mut [f32],
        out_stride: usize,
    ) -> Self {
        Self {
            w,
            row_bytes,
            x,
            tokens: 0..x.n_tokens(),
            out,
            out_stride,
            format: PhantomData,
        }
    }

    /// The same for only the token `t`, which is the first one of `out`.
    pub(super) fn of_token(self, t: usize) -> Self {
        Self {
            tokens: t..t + 1,
            ..self
        }
    }

    /// Whether the rows are laned.
    pub(super) fn is_laned(&self) -> bool {
        self.x.form() == Form::Lanes
    }

    /// The same for weights in the format `F`.
    pub(super) fn of<F>(self) -> Matmul<'a, F> {
        Matmul {
            w: self.w,
            row_bytes: self.row_bytes,
            x: self.x,
            tokens: self.tokens,
            out: self.out,
            out_stride: self.out_stride,
            format: PhantomData,
        }
    }
}

impl<F> Matmul<'_, F> {
    /// Goes through rows and tokens in tiles.
    #[inline(always)]
    pub(super) fn tiles<S: Simd, D: Dot>(self, s: S) {
        let (w, n_tokens) = (self.w, self.tokens.len());
        let token = |t: usize| D::token(self.x, self.tokens.start + t);
        let mut out = Out {
            values: self.out,
            stride: self.out_stride,
        };
        let row = |r: usize| w.row(r, self.row_bytes);
        let mut r = 0;
        if n_tokens == 1 {
            let x = [token(0)];
            let ahead = Ahead::start(s, w, 0, self.row_bytes, ROWS);
            while r + ROWS <= w.len() {
                let rows = [row(r), row(r + 1)];
                out.put(r, 0, D::dot::<S, ROWS, 1>(s, rows, x, ahead.beside(r)));
                r += ROWS;
            }
        }
        if r == w.len() {
            return;
        }
        let ahead = Ahead::start(s, w, r, self.row_bytes, 1);
        for r in r..w.len() {
            let rows = [row(r)];
            let mut t = 0;
            // Only the first product with a row prefetches later ones.
            let mut asked = ahead.beside(r);
            while t + TOKENS <= n_tokens {
                let x = [token(t), token(t + 1), token(t + 2), token(t + 3)];
                out.put(r, t, D::dot::<S, 1, TOKENS>(s, rows, x, asked));
                t += TOKENS;
                asked = rows;
            }
            for t in t..n_tokens {
                out.put(r, t, D::dot::<S, 1, 1>(s, rows, [token(t)], asked));
                asked = rows;
            }
        }
    }
}

/// `[n_tokens, n_rows]`, rows of a token `stride` apart.
struct Out<'a> {
    values: &'a mut [f32],
    stride: usize,
}

impl Out<'_> {
    #[inline(always)]
    fn put<const R: usize, const T: usize>(&mut self, r: usize, t: usize, tile: [[f32; T]; R]) {
        for (i, row) in tile.into_iter().enumerate() {
            for (j, v) in row.into_iter().enumerate() {
                self.values[(t + j) * self.stride + r + i] = v;
            }
        }
    }
}

/// Dot products of `R` rows with `T` tokens, while the rows `later` are prefetched.
pub(super) trait Dot {
    /// A token's activations.
    type Token<'a>: Copy;

    /// Token `t`.
    fn token(x: &Activations, t: usize) -> Self::Token<'_>;

    fn dot<S: Simd, const R: usize, const T: usize>(
        s: S,
        rows: [&[u8]; R],
        x: [Self::Token<'_>; T],
        later: [&[u8]; R],
    ) -> [[f32; T]; R];
}

/// Accumulators of a tile.
type Sums<S, const R: usize, const T: usize> = [[[<S as Simd>::F; 2]; T]; R];

#[inline(always)]
fn reduce<S: Simd, const R: usize, const T: usize>(s: S, sums: Sums<S, R, T>) -> [[f32; T]; R] {
    let mut out = [[0.0; T]; R];
    unrolled!(r in 0..R, max 2 => {
        unrolled!(t in 0..T, max 4 => {
            out[r][t] = s.reduce_add(s.add(sums[r][t][0], sums[r][t][1]));
        });
    });
    out
}

/// Quantised formats: integer products of codes, scaled per group.
struct Quantised<F>(PhantomData<F>);

impl<F: Format> Kernel for Matmul<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.tiles::<S, Quantised<F>>(s);
    }
}

impl<F: Format> Dot for Quantised<F> {
    type Token<'a> = Token<'a>;

    #[inline(always)]
    fn token(x: &Activations, t: usize) -> Token<'_> {
        x.token(t)
    }

    #[inline(always)]
    fn dot<S: Simd, const R: usize, const T: usize>(
        s: S,
        rows: [&[u8]; R],
        x: [Token<'_>; T],
        later: [&[u8]; R],
    ) -> [[f32; T]; R] {
        let mut sums = [[[s.zero(); 2]; T]; R];
        let n_chunks = rows[0].len() / F::BYTES;
        let mut chunks = [Chunks::of(&x[0], n_chunks); T];
        for t in 1..T {
            chunks[t] = Chunks::of(&x[t], n_chunks);
        }
        for c in 0..n_chunks {
            unrolled!(r in 0..R, max 2 => {
                ask(s, later[r], c * F::BYTES, F::BYTES);
                let bytes = &rows[r][c * F::BYTES..][..F::BYTES];
                chunk::<S, F, T>(s, bytes, &chunks, c, &mut sums[r]);
            });
        }
        if F::BLOCK.block_len() < CHUNK && n_chunks * F::BYTES < rows[0].len() {
            unrolled!(r in 0..R, max 2 => {
                ask(s, later[r], n_chunks * F::BYTES, F::BYTES);
                tail::<S, F, T>(s, &rows[r][n_chunks * F::BYTES..], n_chunks, &x, &mut sums[r]);
            });
        }
        reduce(s, sums)
    }
}

/// A token in whole chunks.
#[derive(Clone, Copy)]
struct Chunks<'a> {
    codes: &'a [[i8; CHUNK]],
    scales: &'a [[f32; CHUNK / GROUP]],
    sums: &'a [[f32; CHUNK / GROUP]],
}

impl<'a> Chunks<'a> {
    fn of(x: &Token<'a>, n: usize) -> Self {
        Self {
            codes: &x.codes.as_chunks().0[..n],
            scales: &x.scales.as_chunks().0[..n],
            sums: &x.sums.as_chunks().0[..n],
        }
    }
}

/// Adds the products of one chunk.
#[inline(always)]
fn chunk<S: Simd, F: Format, const T: usize>(
    s: S,
    bytes: &[u8],
    x: &[Chunks<'_>; T],
    c: usize,
    sums: &mut [[S::F; 2]; T],
) {
    let (scale, offset) = F::scales(s, bytes, 8);
    let mut factors = [scale; T];
    unrolled!(t in 0..T, max 4 => {
        factors[t] = s.mul(scale, s.load(&x[t].scales[c]));
        if F::OFFSET {
            sums[t][1] = s.fnma(offset, s.load(&x[t].sums[c]), sums[t][1]);
        }
    });
    unrolled!(p in 0..4 => {
        let codes = F::codes(s, bytes, p);
        unrolled!(t in 0..T, max 4 => {
            let x = &x[t].codes[c].as_chunks().0[p];
            let product = s.to_f32(dot_codes::<S, F>(s, codes, x));
            sums[t][p % 2] = s.fma(product, s.spread(factors[t], p), sums[t][p % 2]);
        });
    });
}

#[inline(always)]
fn dot_codes<S: Simd, F: Format>(s: S, codes: S::B, x: &[i8; PAIR]) -> S::I {
    if F::SIGNED {
        s.dot_i8(codes, s.bytes(x))
    } else {
        s.dot_u8(codes, s.bytes(x))
    }
}

/// The blocks of 32 after the last whole chunk, two by two.
#[inline(always)]
fn tail<S: Simd, F: Format, const T: usize>(
    s: S,
    rest: &[u8],
    n_chunks: usize,
    x: &[Token<'_>; T],
    sums: &mut [[S::F; 2]; T],
) {
    let mut p = n_chunks * (CHUNK / PAIR);
    let mut pairs = rest.chunks_exact(F::PAIR_BYTES);
    for bytes in pairs.by_ref() {
        pair::<S, F, T>(s, bytes, p, x, sums);
        p += 1;
    }
    let last = pairs.remainder();
    if !last.is_empty() {
        let mut padded = [0; MAX_PAIR_BYTES];
        padded[..last.len()].copy_from_slice(last);
        pair::<S, F, T>(s, &padded[..F::PAIR_BYTES], p, x, sums);
    }
}

/// Adds the products of the 64 elements from `64 * p` on.
#[inline(always)]
fn pair<S: Simd, F: Format, const T: usize>(
    s: S,
    bytes: &[u8],
    p: usize,
    x: &[Token<'_>; T],
    sums: &mut [[S::F; 2]; T],
) {
    let (scale, offset) = F::scales(s, bytes, 2);
    let codes = F::codes(s, bytes, 0);
    unrolled!(t in 0..T, max 4 => {
        let factors = s.mul(scale, s.load4(&x[t].scales.as_chunks().0[p]));
        if F::OFFSET {
            sums[t][1] = s.fnma(offset, s.load4(&x[t].sums.as_chunks().0[p]), sums[t][1]);
        }
        let product = s.to_f32(dot_codes::<S, F>(s, codes, &x[t].codes.as_chunks().0[p]));
        sums[t][0] = s.fma(product, s.spread(factors, 0), sums[t][0]);
    });
}

/// Floating-point formats.
struct Floats<F>(PhantomData<F>);

/// `out[t, r] = w[r] . x[t]` for weights that are plain numbers.
pub(super) struct FloatMatmul<'a, F>(pub(super) Matmul<'a, F>);

impl<F: Float> Kernel for FloatMatmul<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.tiles::<S, Floats<F>>(s);
    }
}

impl<F: Float> Dot for Floats<F> {
    type Token<'a> = Token<'a>;

    #[inline(always)]
    fn token(x: &Activations, t: usize) -> Token<'_> {
        x.token(t)
    }

    #[inline(always)]
    fn dot<S: Simd, const R: usize, const T: usize>(
        s: S,
        rows: [&[u8]; R],
        x: [Token<'_>; T],
        later: [&[u8]; R],
    ) -> [[f32; T]; R] {
        let mut sums = [[[s.zero(); 2]; T]; R];
        let bytes = STEP * F::BYTES;
        let n_steps = rows[0].len() / bytes;
        let steps = x.map(|x| x.values.as_chunks().0);
        for c in 0..n_steps {
            unrolled!(r in 0..R, max 2 => {
                ask(s, later[r], c * bytes, bytes);
                let w = &rows[r][c * bytes..][..bytes];
                step::<S, F, T>(s, w, &steps, c, &mut sums[r]);
            });
        }
        if n_steps * bytes < rows[0].len() {
            unrolled!(r in 0..R, max 2 => {
                ask(s, later[r], n_steps * bytes, bytes);
                let last = &rows[r][n_steps * bytes..];
                let mut padded = [0; STEP * 4];
                padded[..last.len()].copy_from_slice(last);
                step::<S, F, T>(s, &padded[..bytes], &steps, n_steps, &mut sums[r]);
            });
        }
        reduce(s, sums)
    }
}

/// Adds the products of 32 elements.
#[inline(always)]
fn step<S: Simd, F: Float, const T: usize>(
    s: S,
    w: &[u8],
    x: &[&[[f32; STEP]]; T],
    c: usize,
    sums: &mut [[S::F; 2]; T],
) {
    unrolled!(i in 0..2 => {
        let w = F::widen(s, &w[i * LANES * F::BYTES..]);
        unrolled!(t in 0..T, max 4 => {
            sums[t][i] = s.fma(w, s.load(&x[t][c].as_chunks().0[i]), sums[t][i]);
        });
    });
}
