//! Rows of weights as numbers: added to accumulators (Down in neuron layout) or written out.

use std::marker::PhantomData;

use super::formats::{CHUNK, Float, Format, MAX_PAIR_BYTES, PAIR};
use super::simd::{Kernel, LANES, Simd, load_part, store_part, unrolled};

/// Where the numbers of a row go, 64 at a time.
pub(super) trait Sink {
    /// Takes the elements from `first` on.
    fn put<S: Simd>(&mut self, s: S, first: usize, w: [S::F; 4]);

    /// Takes the elements from `first` on, of which the row has fewer than 64 left.
    fn put_last<S: Simd>(&mut self, s: S, first: usize, w: [S::F; 4]);
}

/// `acc[t] += h[t] * w`.
pub(super) struct Axpy<'a> {
    pub(super) h: &'a [f32],       // [n_tokens]
    pub(super) acc: &'a mut [f32], // [n_tokens, cols]
    pub(super) stride: usize,
    pub(super) cols: usize,
}

impl Sink for Axpy<'_> {
    #[inline(always)]
    fn put<S: Simd>(&mut self, s: S, first: usize, w: [S::F; 4]) {
        for (t, &h) in self.h.iter().enumerate() {
            if h != 0.0 {
                let h = s.splat(h);
                let acc = &mut self.acc[t * self.stride + first..][..PAIR];
                let acc = acc.as_chunks_mut().0;
                unrolled!(j in 0..4 => {
                    s.store(s.fma(h, w[j], s.load(&acc[j])), &mut acc[j]);
                });
            }
        }
    }

    #[inline(always)]
    fn put_last<S: Simd>(&mut self, s: S, first: usize, w: [S::F; 4]) {
        let n = self.cols - first;
        for (t, &h) in self.h.iter().enumerate() {
            if h != 0.0 {
                let acc = &mut self.acc[t * self.stride + first..][..n];
                for (acc, &w) in acc.chunks_mut(LANES).zip(&w) {
                    store_part(s, s.fma(s.splat(h), w, load_part(s, acc)), acc);
                }
            }
        }
    }
}

/// `out = w`.
pub(super) struct Dequantise<'a>(pub(super) &'a mut [f32]); // [cols]

impl Sink for Dequantise<'_> {
    #[inline(always)]
    fn put<S: Simd>(&mut self, s: S, first: usize, w: [S::F; 4]) {
        let out = self.0[first..][..PAIR].as_chunks_mut().0;
        unrolled!(j in 0..4 => { s.store(w[j], &mut out[j]); });
    }

    #[inline(always)]
    fn put_last<S: Simd>(&mut self, s: S, first: usize, w: [S::F; 4]) {
        for (out, &w) in self.0[first..].chunks_mut(LANES).zip(&w) {
            store_part(s, w, out);
        }
    }
}

/// Sends the row of weights `row` to `sink`.
pub(super) struct Unpack<'a, F, K> {
    row: &'a [u8],
    sink: K,
    format: PhantomData<F>,
}

impl<'a, F, K: Sink> Unpack<'a, F, K> {
    pub(super) fn new(row: &'a [u8], sink: K) -> Self {
        Self {
            row,
            sink,
            format: PhantomData,
        }
    }
}

impl<F: Format, K: Sink> Kernel for Unpack<'_, F, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mut chunks = self.row.chunks_exact(F::BYTES);
        let mut first = 0;
        for bytes in chunks.by_ref() {
            let (scale, offset) = F::scales(s, bytes, 8);
            unrolled!(p in 0..4 => {
                let w = unpack::<S, F>(s, bytes, scale, offset, p);
                self.sink.put(s, first + p * PAIR, w);
            });
            first += CHUNK;
        }
        if F::BLOCK.block_len() == CHUNK {
            return;
        }
        let mut pairs = chunks.remainder().chunks_exact(F::PAIR_BYTES);
        for bytes in pairs.by_ref() {
            let (scale, offset) = F::scales(s, bytes, 2);
            self.sink
                .put(s, first, unpack::<S, F>(s, bytes, scale, offset, 0));
            first += PAIR;
        }
        let rest = pairs.remainder();
        if !rest.is_empty() {
            let mut padded = [0; MAX_PAIR_BYTES];
            padded[..rest.len()].copy_from_slice(rest);
            let (scale, offset) = F::scales(s, &padded, 2);
            let w = unpack::<S, F>(s, &padded, scale, offset, 0);
            self.sink.put_last(s, first, w);
        }
    }
}

/// `w = scale * code - offset` of the elements `64 * p ..` of a chunk.
///
/// Exact products: an f16 scale has 11 bits, a group's scale at most 7 and a code at most 6 (8 where
/// there is no group scale), together no more than the 24 of f32. So only the subtraction rounds,
/// and the result has the bits of ggml's definition.
#[inline(always)]
fn unpack<S: Simd, F: Format>(
    s: S,
    bytes: &[u8],
    scale: S::F,
    offset: S::F,
    p: usize,
) -> [S::F; 4] {
    let codes = F::codes(s, bytes, p);
    let mut w = [s.zero(); 4];
    unrolled!(j in 0..4 => {
        let scale = s.lane(scale, 4 * p + j);
        if F::SIGNED {
            w[j] = s.mul(s.i8_part(codes, j), scale);
        } else {
            let product = s.mul(s.u8_part(codes, j), scale);
            w[j] = s.sub(product, s.lane(offset, 4 * p + j));
        }
    });
    w
}

/// [`Unpack`] for weights that are numbers.
pub(super) struct FloatUnpack<'a, F, K>(pub(super) Unpack<'a, F, K>);

impl<F: Float, K: Sink> Kernel for FloatUnpack<'_, F, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Unpack { row, mut sink, .. } = self.0;
        let mut steps = row.chunks_exact(PAIR * F::BYTES);
        let mut first = 0;
        for bytes in steps.by_ref() {
            sink.put(s, first, widen::<S, F>(s, bytes));
            first += PAIR;
        }
        let rest = steps.remainder();
        if !rest.is_empty() {
            let mut padded = [0; PAIR * 4];
            padded[..rest.len()].copy_from_slice(rest);
            sink.put_last(s, first, widen::<S, F>(s, &padded));
        }
    }
}

/// 64 elements.
#[inline(always)]
fn widen<S: Simd, F: Float>(s: S, bytes: &[u8]) -> [S::F; 4] {
    let mut w = [s.zero(); 4];
    unrolled!(j in 0..4 => {
        w[j] = F::widen(s, &bytes[j * LANES * F::BYTES..]);
    });
    w
}
