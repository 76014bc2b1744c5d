//! Rows of weights anywhere in memory, and prefetching them before they are needed.

use super::aligned::LINE;
use super::simd::Simd;
use super::weights::WeightRows;

/// Minimum bytes prefetched ahead of those in use. With more, a call's first burst costs more than it gains: with 24
/// KiB, 25 rows of 2 KiB took a tenth longer.
const AHEAD: usize = 12 << 10;

/// Rows of the same length.
#[derive(Clone, Copy)]
pub(super) enum Rows<'a> {
    /// At equal distances.
    Strided(WeightRows<'a>),
    /// Anywhere.
    Gathered(Gather<'a>),
}

/// Rows anywhere in memory, and what is needed after them.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    pub(super) rows: &'a [&'a [u8]],
    next: &'a [&'a [u8]],
}

impl<'a> Gather<'a> {
    /// Maximum number of rows that are prefetched for the next call.
    pub const NEXT: usize = 8;

    /// Rows, of which later ones are prefetched while the first ones are used.
    pub fn new(rows: &'a [&'a [u8]]) -> Self {
        Self { rows, next: &[] }
    }

    /// Also prefetches these, the first rows of the next call, once there are no further ones. They need not be used,
    /// and prefetching never reads beyond what exists.
    #[must_use]
    pub fn then(self, next: &'a [&'a [u8]]) -> Self {
        Self { next, ..self }
    }
}

impl<'a> Rows<'a> {
    #[inline(always)]
    pub(super) fn len(self) -> usize {
        match self {
            Self::Strided(w) => w.n_rows,
            Self::Gathered(gather) => gather.rows.len(),
        }
    }

    /// The first `bytes` bytes of row `i`.
    #[inline(always)]
    pub(super) fn row(self, i: usize, bytes: usize) -> &'a [u8] {
        match self {
            Self::Strided(w) => &w.bytes[i * w.stride..][..bytes],
            Self::Gathered(gather) => &gather.rows[i][..bytes],
        }
    }
}

/// A prefetcher for rows. The hardware's own does not know where the next row is, and takes a good part of a row of
/// 2 KiB to notice that it is one.
///
/// While a piece of a row is used, the same piece of a later row is prefetched: a few lines at a time, since bursts of
/// them would wait for each other and for what is used now.
#[derive(Clone, Copy)]
pub(super) struct Ahead<'a> {
    rows: Rows<'a>,
    row_bytes: usize,
    /// How many rows later.
    by: usize,
}

impl<'a> Ahead<'a> {
    /// For rows from `first` on, of which `side_by_side` are used at a time; prefetches the first ones.
    #[inline(always)]
    pub(super) fn start<S: Simd>(
        s: S,
        rows: Rows<'a>,
        first: usize,
        row_bytes: usize,
        side_by_side: usize,
    ) -> Self {
        let by = side_by_side * AHEAD.div_ceil((side_by_side * row_bytes).max(1));
        for i in first..(first + by).min(rows.len()) {
            ask(s, rows.row(i, row_bytes), 0, row_bytes);
        }
        Self {
            rows,
            row_bytes,
            by,
        }
    }

    /// What is prefetched while the `R` rows from `r` on are used. If there are no later ones, it is the next call's
    /// rows, or a row that is in the cache anyway: a branch would split the caller's loop.
    #[inline(always)]
    pub(super) fn beside<const R: usize>(&self, r: usize) -> [&'a [u8]; R] {
        let mut later = [&[][..]; R];
        for (i, row) in later.iter_mut().enumerate() {
            let at = r + self.by + i;
            *row = match (at.checked_sub(self.rows.len()), self.rows) {
                (None, rows) => rows.row(at, self.row_bytes),
                (Some(at), Rows::Gathered(gather)) if at < gather.next.len() => gather.next[at],
                (Some(_), rows) => rows.row(rows.len() - 1, self.row_bytes),
            };
        }
        later
    }
}

/// Prefetches the lines of `len` bytes of a row from `offset` on, or after its end.
#[inline(always)]
pub(super) fn ask<S: Simd>(s: S, row: &[u8], offset: usize, len: usize) {
    let mut line = 0;
    while line < len {
        s.prefetch(row, offset + line);
        line += LINE;
    }
}
