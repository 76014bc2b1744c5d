//! Rows of weights added to accumulators: Down in neuron layout.
//!
//! Rows are added in the order in which they are given, `j = 0, 1, 2, …`, with one definition per kind of format: `acc
//! = fma(h, w, acc)` for numbers; `acc = fma(h * scale, code - bias, acc)` for codes, and after that `acc = acc - h *
//! minimum` if there are minima. The products `h * scale` and `h * minimum` are rounded, once per group instead of once
//! per element.
//!
//! A strip of columns stays in registers while a group of rows goes through it, so that accumulators are
//! loaded and stored once per group instead of once per row.

use std::marker::PhantomData;

use super::formats::{CHUNK, PAIR};
use super::numbers::{Numbers, add_part};
use super::rows::{Ahead, Gather, Rows, ask};
use super::simd::{Kernel, LANES, Simd, load_part, store_part, unrolled};

/// Rows in a group. With fewer, accumulators are loaded and stored too often: on AVX-512, Q4_0 in the nearest cache
/// reaches 20 GB/s with 8 rows, 17 with 4, 15 with 2 and 11 with 1.
const GROUP: usize = 8;

/// `acc[t] += sum_j h[t, j] * row_j`.
pub(super) struct Axpy<'a, N> {
    gather: Gather<'a>,
    h: &'a [f32],       // [n_tokens, n_rows]
    acc: &'a mut [f32], // [n_tokens, cols]
    cols: usize,
    format: PhantomData<N>,
}

impl<'a> Axpy<'a, ()> {
    /// Shapes are checked by the table.
    pub(super) fn new(gather: Gather<'a>, h: &'a [f32], acc: &'a mut [f32], cols: usize) -> Self {
        Self {
            gather,
            h,
            acc,
            cols,
            format: PhantomData,
        }
    }

    /// The same for rows in the format `N`.
    pub(super) fn of<N: Numbers>(self) -> Axpy<'a, N> {
        Axpy {
            gather: self.gather,
            h: self.h,
            acc: self.acc,
            cols: self.cols,
            format: PhantomData,
        }
    }
}

impl<N: Numbers> Kernel for Axpy<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let all = self.gather.rows;
        let (n_rows, row_bytes, cols) = (all.len(), all[0].len(), self.cols);
        let (n_chunks, n_tokens) = (cols / CHUNK, self.h.len() / n_rows);
        let ahead = Ahead::start(s, Rows::Gathered(self.gather), 0, row_bytes, GROUP);
        let mut live = Live {
            rows: [&[]; GROUP],
            scales: [N::NO_SCALES; GROUP],
            len: 0,
        };
        for (g, rows) in all.chunks(GROUP).enumerate() {
            let later = ahead.beside::<GROUP>(g * GROUP);
            for c in 0..n_chunks {
                for t in 0..n_tokens {
                    let h = &self.h[t * n_rows + g * GROUP..][..rows.len()];
                    let acc = &mut self.acc[t * cols + c * CHUNK..][..CHUNK];
                    live.select::<S, N>(s, rows, c, h);
                    // Only a chunk's first pass prefetches later ones.
                    let asked = (t == 0).then_some((&later, c * N::BYTES));
                    if const { S::ACCUMULATORS >= 12 } {
                        chunk::<S, N, 4>(s, &live, acc, asked);
                    } else {
                        chunk::<S, N, 1>(s, &live, acc, asked);
                    }
                }
            }
            if !N::WHOLE && n_chunks * CHUNK < cols {
                for t in 0..n_tokens {
                    let h = &self.h[t * n_rows + g * GROUP..][..rows.len()];
                    let acc = &mut self.acc[t * cols..][..cols][n_chunks * CHUNK..];
                    tail::<S, N>(s, rows, n_chunks, h, acc);
                }
                for row in later {
                    ask(s, row, n_chunks * N::BYTES, N::BYTES);
                }
            }
        }
    }
}

/// A chunk of the rows that a token uses, and their factors.
struct Live<'a, C> {
    rows: [&'a [u8]; GROUP],
    scales: [C; GROUP],
    len: usize,
}

impl<'a, C> Live<'a, C> {
    #[inline(always)]
    fn select<S: Simd, N: Numbers<Scales = C>>(
        &mut self,
        s: S,
        rows: &[&'a [u8]],
        c: usize,
        h: &[f32], // [rows.len()]
    ) {
        let mut n = 0;
        for (row, &h) in rows.iter().zip(h) {
            // Without a branch: unused entries are overwritten.
            let (place, bytes) = (n % GROUP, &row[c * N::BYTES..][..N::BYTES]);
            N::scales(s, bytes, true, h, &mut self.scales[place]);
            self.rows[place] = bytes;
            n += usize::from(h != 0.0);
        }
        self.len = n;
    }
}

/// Adds a chunk of rows, in strips of `64 * P` columns.
#[inline(always)]
fn chunk<S: Simd, N: Numbers, const P: usize>(
    s: S,
    live: &Live<'_, N::Scales>,
    acc: &mut [f32], // [256]
    asked: Option<(&[&[u8]; GROUP], usize)>,
) {
    let acc = acc.as_chunks_mut::<LANES>().0;
    let n = live.len.min(GROUP);
    unrolled!(first in 0..4 => {
        if first % P == 0 {
            let acc = &mut acc[4 * first..][..4 * P];
            let mut sums = [[s.zero(); 4]; P];
            unrolled!(i in 0..P, max 4 => {
                unrolled!(j in 0..4 => { sums[i][j] = s.load(&acc[4 * i + j]); });
            });
            for r in 0..n {
                if let (0, Some((later, offset))) = (first, asked) {
                    ask(s, later[r], offset, N::BYTES);
                }
                // One check of the length instead of one per load.
                let bytes = &live.rows[r][..N::BYTES];
                unrolled!(i in 0..P, max 4 => {
                    sums[i] = N::add(s, bytes, &live.scales[r], first + i, sums[i]);
                });
            }
            unrolled!(i in 0..P, max 4 => {
                unrolled!(j in 0..4 => { s.store(sums[i][j], &mut acc[4 * i + j]); });
            });
        }
    });
    if let Some((later, offset)) = asked {
        for row in &later[n..] {
            ask(s, row, offset, N::BYTES);
        }
    }
}

/// Adds what follows the last whole chunk.
#[inline(always)]
fn tail<S: Simd, N: Numbers>(
    s: S,
    rows: &[&[u8]],
    n_chunks: usize,
    h: &[f32],       // [rows.len()]
    acc: &mut [f32], // [cols - 256 * n_chunks]
) {
    for (p, acc) in acc.chunks_mut(PAIR).enumerate() {
        let mut sums = [s.zero(); 4];
        for (sum, acc) in sums.iter_mut().zip(acc.chunks(LANES)) {
            *sum = load_part(s, acc);
        }
        for (row, &h) in rows.iter().zip(h) {
            if h == 0.0 {
                continue;
            }
            let bytes = &row[n_chunks * N::BYTES + p * N::PART_BYTES..];
            sums = add_part::<S, N>(s, bytes, h, sums);
        }
        for (&sum, acc) in sums.iter().zip(acc.chunks_mut(LANES)) {
            store_part(s, sum, acc);
        }
    }
}
