//! Rows of weights wherever they lie, and asking for them before they are needed.

use super::simd::Simd;
use super::weights::WeightRows;

/// Most rows that go through a kernel side by side.
pub(super) const MAX_SIDE_BY_SIDE: usize = 8;
/// Bytes asked for ahead of those in use. Between 6 and 32 KiB no distance was clearly better.
const AHEAD: usize = 12 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Rows of the same length.
#[derive(Clone, Copy)]
pub(super) enum Rows<'a> {
    /// At equal distances.
    Strided(WeightRows<'a>),
    /// Anywhere.
    Gathered(&'a [&'a [u8]]),
}

impl<'a> Rows<'a> {
    #[inline(always)]
    pub(super) fn len(self) -> usize {
        match self {
            Self::Strided(w) => w.n_rows,
            Self::Gathered(rows) => rows.len(),
        }
    }

    /// The first `bytes` bytes of row `i`.
    #[inline(always)]
    pub(super) fn row(self, i: usize, bytes: usize) -> &'a [u8] {
        match self {
            Self::Strided(w) => &w.bytes[i * w.stride..][..bytes],
            Self::Gathered(rows) => &rows[i][..bytes],
        }
    }
}

/// A prefetcher for rows that are used side by side, piece by piece. The hardware's own does not know
/// where the next row is, and takes a good part of a row of 2 KiB to notice that it is one.
///
/// While a row's piece is used, the piece is asked for that comes some KiB later in the same place: a few
/// lines at a time, since bursts of them would wait for each other and for what is used now.
pub(super) struct Ahead<'a> {
    rows: Rows<'a>,
    row_bytes: usize,
    side_by_side: usize,
    /// The rows that are asked for now, from `offset` on; behind them comes row `next`.
    group: [&'a [u8]; MAX_SIDE_BY_SIDE],
    next: usize,
    offset: usize,
}

impl<'a> Ahead<'a> {
    /// Asks for the first bytes of `rows` from row `first` on, which are used in pieces of `piece` bytes.
    #[inline(always)]
    pub(super) fn start<S: Simd>(
        s: S,
        rows: Rows<'a>,
        first: usize,
        row_bytes: usize,
        side_by_side: usize,
        piece: usize,
    ) -> Self {
        let mut ahead = Self {
            rows,
            row_bytes,
            side_by_side,
            group: [&[]; MAX_SIDE_BY_SIDE],
            next: first,
            offset: 0,
        };
        ahead.next_group();
        for _ in 0..AHEAD.div_ceil(side_by_side * piece) {
            for i in 0..side_by_side {
                ahead.ask(s, i, piece);
            }
            ahead.advance(piece);
        }
        ahead
    }

    /// Asks for nothing but `row`, which is in use anyway.
    #[inline(always)]
    pub(super) fn idle(row: &'a [u8]) -> Self {
        Self {
            rows: Rows::Gathered(&[]),
            row_bytes: row.len(),
            side_by_side: 0,
            group: [row; MAX_SIDE_BY_SIDE],
            next: 0,
            offset: 0,
        }
    }

    /// Asks for a piece in the place of row `i` of those side by side. There is no end: a branch here would
    /// cut the caller's loop into pieces, and what is asked for in vain is in the cache.
    #[inline(always)]
    pub(super) fn ask<S: Simd>(&self, s: S, i: usize, piece: usize) {
        let mut line = 0;
        while line < piece {
            s.prefetch(self.group[i], self.offset + line);
            line += LINE;
        }
    }

    /// To the next piece.
    #[inline(always)]
    pub(super) fn advance(&mut self, piece: usize) {
        self.offset += piece;
        if self.offset >= self.row_bytes {
            self.next_group();
        }
    }

    /// Out of line: it would be a good part of the loops that it is called from.
    #[cold]
    #[inline(never)]
    fn next_group(&mut self) {
        let n = self.side_by_side.min(self.rows.len() - self.next);
        self.offset = 0;
        if n > 0 {
            for i in 0..self.side_by_side {
                // A group at the end that is not full asks for its last row more than once.
                self.group[i] = self.rows.row(self.next + i.min(n - 1), self.row_bytes);
            }
            self.next += n;
        }
    }
}
