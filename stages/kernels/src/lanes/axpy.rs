//! Laned rows added to accumulators: Down in neuron layout.
//!
//! Eight rows at a time, as sums of integers: see [`KernelTable::axpy_laned`](crate::table::KernelTable::axpy_laned). A
//! row with its own factor would need a conversion and a multiplication per code; as integers, two rows' codes share
//! every instruction, and four sums of eight products each are converted together.

use std::marker::PhantomData;

use forebay_numbers::lanes::{BLOCK, LANES};

use super::{Filled, GROUP, LaneFormat, LanedRow, MAX_FIELDS, RowGroup, VECTOR};
use crate::rows::{Ahead, Gather, Rows, ask};
use crate::simd::{Kernel, Simd, load_part, store_part, unrolled};

/// Rows in one sum of integers: with `15 * 2^8` times 16383, eight of them fit into 31 bits.
const ROWS: usize = 8;

/// The largest factor as an integer.
const MOST: f32 = 16383.0;

/// Below this magnitude `MOST / max` might not be finite; such factors count as 0.
const TINY: f32 = 1e-33;

/// `acc[t] += sum_j h[t, j] * row_j`, with `acc` in lane order.
pub(crate) struct LanedAxpy<'a, F> {
    gather: Gather<'a>,
    h: &'a [f32],       // [n_tokens, n_rows]
    acc: &'a mut [f32], // [n_tokens, cols]
    n_tokens: usize,
    format: PhantomData<F>,
}

impl<'a> LanedAxpy<'a, ()> {
    /// Shapes are checked by the table.
    pub(crate) fn new(
        gather: Gather<'a>,
        h: &'a [f32],
        acc: &'a mut [f32],
        n_tokens: usize,
    ) -> Self {
        Self {
            gather,
            h,
            acc,
            n_tokens,
            format: PhantomData,
        }
    }

    /// The same for rows in the format `F`.
    pub(crate) fn of<F: LaneFormat>(self) -> LanedAxpy<'a, F> {
        LanedAxpy {
            gather: self.gather,
            h: self.h,
            acc: self.acc,
            n_tokens: self.n_tokens,
            format: PhantomData,
        }
    }
}

/// Eight rows and their factors.
struct Eight<'a> {
    rows: [LanedRow<'a>; ROWS],
    h: [f32; ROWS],
    /// How many there are; the others are like the first one, times 0.
    len: usize,
}

impl<F: LaneFormat> Kernel for LanedAxpy<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.gather.rows;
        let (n_rows, row_bytes) = (rows.len(), rows[0].len());
        let ahead = Ahead::start(s, Rows::Gathered(self.gather), 0, row_bytes, ROWS);
        let tokens = self.h.chunks_exact(n_rows);
        let accs = self.acc.chunks_exact_mut(self.acc.len() / self.n_tokens);
        for (t, (h, acc)) in tokens.zip(accs).enumerate() {
            let mut next = 0;
            while let Some(eight) = Eight::next::<F>(rows, h, &mut next) {
                // Only the first token prefetches later rows.
                let later = ahead.beside::<ROWS>(next - eight.len);
                eight.add::<S, F>(s, acc, (t == 0).then_some(&later));
            }
        }
    }
}

impl<'a> Eight<'a> {
    /// The next rows from `next` on whose factor is not 0.
    #[inline(always)]
    fn next<F: LaneFormat>(rows: &[&'a [u8]], h: &[f32], next: &mut usize) -> Option<Self> {
        let mut eight = Self {
            rows: [LanedRow::new::<F>(rows[0]); ROWS],
            h: [0.0; ROWS],
            len: 0,
        };
        while *next < rows.len() && eight.len < ROWS {
            if h[*next] != 0.0 {
                eight.rows[eight.len] = LanedRow::new::<F>(rows[*next]);
                eight.h[eight.len] = h[*next];
                eight.len += 1;
            }
            *next += 1;
        }
        (eight.len > 0).then_some(eight)
    }

    #[inline(always)]
    fn add<S: Simd, F: LaneFormat>(&self, s: S, acc: &mut [f32], later: Option<&[&[u8]; ROWS]>) {
        let n = self.rows[0].n;
        let (whole, rest) = acc.as_chunks_mut::<GROUP>();
        for (g, acc) in whole.iter_mut().enumerate() {
            let groups = std::array::from_fn(|j| self.rows[j].group::<F>(g));
            let asked = later.map(|later| (later, F::WORDS * VECTOR * g));
            if let (0, Some(later)) = (g % 2, later) {
                for later in later {
                    ask(s, later, self.rows[0].scales_at(g), 1);
                }
            }
            self.add_group::<S, F>(s, &groups, acc, asked);
        }
        if rest.is_empty() {
            return;
        }
        let k = n % LANES;
        let mut filled = [Filled::EMPTY; ROWS];
        for (filled, row) in filled.iter_mut().zip(&self.rows) {
            row.fill::<F>(filled);
        }
        let mut lanes = [0.0; GROUP];
        for (lanes, acc) in lanes
            .as_chunks_mut::<LANES>()
            .0
            .iter_mut()
            .zip(rest.chunks(k))
        {
            s.store(load_part(s, acc), lanes);
        }
        let groups = std::array::from_fn(|j| filled[j].group(F::WORDS));
        let asked = later.map(|later| (later, F::WORDS * VECTOR * (n / LANES)));
        self.add_group::<S, F>(s, &groups, &mut lanes, asked);
        for (lanes, acc) in lanes.as_chunks::<LANES>().0.iter().zip(rest.chunks_mut(k)) {
            store_part(s, s.load(lanes), acc);
        }
    }

    /// Adds a group of blocks of the rows to their accumulators, `[32, 16]`.
    #[inline(always)]
    fn add_group<S: Simd, F: LaneFormat>(
        &self,
        s: S,
        groups: &[RowGroup<'_>; ROWS],
        acc: &mut [f32; GROUP],
        asked: Option<(&[&[u8]; ROWS], usize)>,
    ) {
        let factors = Factors::new::<F>(s, self, groups);
        let acc = acc.as_chunks_mut::<LANES>().0;
        for v in 0..F::WORDS {
            let asked = asked.map(|(later, at)| (later, at + VECTOR * v));
            if const { S::ACCUMULATORS >= 12 } {
                self.add_halves::<S, F, 2>(s, groups, &factors, (v, 0), acc, asked);
            } else {
                self.add_halves::<S, F, 1>(s, groups, &factors, (v, 0), acc, asked);
                self.add_halves::<S, F, 1>(s, groups, &factors, (v, 1), acc, None);
            }
        }
        if let Some((later, at)) = asked {
            for later in &later[2 * self.len.div_ceil(2)..] {
                ask(s, later, at, F::WORDS * VECTOR);
            }
        }
    }

    /// Adds `P` halves of word `v` of the rows' blocks, from half `first` on: both if there are enough registers.
    #[inline(always)]
    fn add_halves<S: Simd, F: LaneFormat, const P: usize>(
        &self,
        s: S,
        groups: &[RowGroup<'_>; ROWS],
        factors: &Factors<S>,
        (v, first): (usize, usize),
        acc: &mut [[f32; LANES]], // [32]
        asked: Option<(&[&[u8]; ROWS], usize)>,
    ) {
        let mut sums = [factors.origins; P];
        for p in 0..self.len.div_ceil(2) {
            if let Some((later, at)) = asked {
                ask(s, later[2 * p], at, VECTOR);
                ask(s, later[2 * p + 1], at, VECTOR);
            }
            let [a, b] = words::<S, F>(s, groups, p, v);
            let q = s.words(&factors.pairs[p]);
            unrolled!(i in 0..P, max 2 => {
                let halves = if first + i == 0 { low(s, a, b) } else { high(s, a, b) };
                products::<S, F>(s, halves, q, &mut sums[i]);
            });
        }
        unrolled!(i in 0..P, max 2 => { factors.store::<F>(s, &sums[i], (v, first + i), acc); });
    }
}

/// Word `v` of the two rows of pair `p`.
#[inline(always)]
fn words<S: Simd, F: LaneFormat>(
    s: S,
    groups: &[RowGroup<'_>; ROWS],
    p: usize,
    v: usize,
) -> [S::I; 2] {
    [
        F::unsigned(s, s.words(&groups[2 * p].codes[v])),
        F::unsigned(s, s.words(&groups[2 * p + 1].codes[v])),
    ]
}

/// The low halves of `a` and `b`.
#[inline(always)]
fn low<S: Simd>(s: S, a: S::I, b: S::I) -> S::I {
    s.or_i32(s.and(a, 0xffff), s.shift_left(b, 16))
}

/// The high halves of `a` and `b`.
#[inline(always)]
fn high<S: Simd>(s: S, a: S::I, b: S::I) -> S::I {
    s.or_i32(s.shift_right(a, 16), s.and(b, !0xffff))
}

/// Adds the products of the fields of two rows' halves with the rows' factors.
#[inline(always)]
fn products<S: Simd, F: LaneFormat>(s: S, halves: S::I, q: S::I, sums: &mut [S::I; MAX_FIELDS]) {
    unrolled!(i in 0..4 => {
        if i < F::FIELDS {
            sums[i] = s.dot_halves(sums[i], F::field(s, halves, i), q);
        }
    });
}

/// Eight rows' factors in the lanes of a group.
struct Factors<S: Simd> {
    /// Of two rows each, as 16-bit integers.
    pairs: [[u8; VECTOR]; ROWS / 2],
    /// The start of sums of fields: the bias of the codes.
    origins: [S::I; MAX_FIELDS],
    unit: S::F,
    /// The sum of the minima times their factors.
    minimum: S::F,
}

impl<S: Simd> Factors<S> {
    #[inline(always)]
    fn new<F: LaneFormat>(s: S, eight: &Eight<'_>, groups: &[RowGroup<'_>; ROWS]) -> Self {
        let mut factors = [[0.0; LANES]; ROWS];
        let (mut largest, mut minimum) = (s.splat_i32(0), s.zero());
        for j in 0..eight.len {
            let h = s.splat(eight.h[j]);
            let factor = s.mul(s.widen_f16(groups[j].scales), h);
            s.store(factor, &mut factors[j]);
            largest = s.max_i32(largest, s.magnitude_bits(factor));
            if F::MINIMUM {
                minimum = s.fma(h, s.widen_f16(groups[j].minima), minimum);
            }
        }
        // As integers, infinity and NaN are larger than numbers, so they are the maximum.
        let largest = s.bits_as_f32(largest);
        let inverse = s.div(s.splat(MOST), largest);
        let inverse = s.select_gt(largest, s.splat(TINY), inverse, s.zero());
        let mut pairs = [[0; VECTOR]; ROWS / 2];
        let mut sum = s.splat_i32(0);
        for (pair, factors) in pairs.iter_mut().zip(factors.as_chunks::<2>().0) {
            let a = s.round(s.mul(s.load(&factors[0]), inverse));
            let b = s.round(s.mul(s.load(&factors[1]), inverse));
            sum = s.add_i32(sum, s.add_i32(a, b));
            s.store_words(s.or_i32(s.and(a, 0xffff), s.shift_left(b, 16)), pair);
        }
        let mut origins = [s.splat_i32(0); MAX_FIELDS];
        if let Some(bits) = F::BIAS_BITS {
            let negative = s.sub_i32(s.splat_i32(0), sum);
            unrolled!(i in 0..4 => {
                if i < F::FIELDS {
                    origins[i] = s.shift_left(negative, bits + F::shift(i));
                }
            });
        }
        Self {
            pairs,
            origins,
            unit: s.mul(largest, s.splat(1.0 / MOST)),
            minimum,
        }
    }

    /// Adds the sums of the fields of half `half` of word `v` to their elements' accumulators.
    #[inline(always)]
    fn store<F: LaneFormat>(
        &self,
        s: S,
        sums: &[S::I; MAX_FIELDS],
        (v, half): (usize, usize),
        acc: &mut [[f32; LANES]], // [32]
    ) {
        unrolled!(i in 0..4 => {
            if i < F::FIELDS {
                let unit = s.mul(self.unit, s.splat(1.0 / (1_u32 << F::shift(i)) as f32));
                let acc = &mut acc[F::element(v, half, i)];
                let mut old = s.load(acc);
                if F::MINIMUM {
                    old = s.add(old, self.minimum);
                }
                s.store(s.fma(s.to_f32(sums[i]), unit, old), acc);
            }
        });
    }
}

const _: () = assert!(BLOCK * LANES == GROUP);
