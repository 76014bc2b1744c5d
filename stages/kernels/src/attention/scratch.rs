//! Buffers of the attention kernel: one block of positions and one tile of rows.

use super::super::simd::LANES;
use crate::kv::BLOCK;

/// Query rows of a tile, for which a block's keys and values are widened once.
pub(super) const ROWS: usize = 96;

/// 16 numbers on a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub [f32; LANES]);

/// One row's scores of a block, then its weights.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Scores(pub [f32; BLOCK]);

/// A block of positions that a tile uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Its index in the sequence.
    pub index: usize,
    /// Its index in the cache.
    pub place: usize,
    /// How many blocks further on in the cache the tile's next block is; wraps for those before.
    pub ahead: usize,
}

/// A query row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Where its query begins.
    pub q: usize,
    /// Where its result begins.
    pub out: usize,
    /// First position it sees.
    pub from: usize,
    /// The position after the last one.
    pub to: usize,
    /// Which of the heads it is.
    pub head: usize,
}

impl Row {
    /// The part of a block that it sees: positions in the block.
    #[inline(always)]
    pub fn within(&self, block: Block) -> (usize, usize) {
        let start = block.index * BLOCK;
        let from = self.from.saturating_sub(start).min(BLOCK);
        (from, self.to.saturating_sub(start).min(BLOCK))
    }
}

/// Running softmax of a tile's rows.
#[derive(Debug)]
pub(super) struct State {
    pub max: [f32; ROWS],
    pub sum: [f32; ROWS],
    /// What the sums so far are multiplied by, since the maximum grew.
    pub correction: [f32; ROWS],
    /// Sums of a block's weights.
    pub added: [f32; ROWS],
    /// Factors of the scores, if they differ by row.
    pub factor: [f32; ROWS],
    /// Sums of the high and of the low parts of a query's codes.
    pub code_sums: [[i32; ROWS]; 2],
}

/// Buffers of [`KernelTable::attend`](super::super::KernelTable::attend), allocated once.
#[derive(Debug)]
pub struct AttendScratch {
    pub(super) rows: Vec<Row>,      // [ROWS]
    pub(super) scores: Vec<Scores>, // [ROWS][BLOCK]
    /// Keys or values of a block, which stay in the first-level cache: `[BLOCK / 16][head_dim]` of 16 positions, or
    /// `[BLOCK][value_dim / 16]` of 16 elements.
    pub(super) wide: Vec<Line>,
    /// `[ROWS][head_dim / 16]` of 16 query codes each: high parts and low parts.
    pub(super) codes: [Vec<[i8; LANES]>; 2],
    /// Queries with the origin of keys, `[ROWS][head_dim]` each: as they are, and as of a block.
    pub(super) origin: [Vec<f32>; 2],
    /// The rows, with the places of their queries in `origin`.
    pub(super) origin_rows: Vec<Row>, // [ROWS]
    /// A query that is spread, `[head_dim]`.
    pub(super) query: Vec<f32>,
    pub(super) state: Box<State>,
}

impl AttendScratch {
    /// Buffers for heads whose keys and values have up to `head_dim` elements.
    pub fn new(head_dim: usize) -> Self {
        let parts = head_dim.div_ceil(LANES);
        Self {
            rows: Vec::with_capacity(ROWS),
            scores: vec![Scores([0.0; BLOCK]); ROWS],
            wide: vec![Line([0.0; LANES]); BLOCK * parts],
            codes: [(); 2].map(|()| vec![[0; LANES]; ROWS * parts]),
            origin: [(); 2].map(|()| vec![0.0; ROWS * head_dim]),
            origin_rows: Vec::with_capacity(ROWS),
            query: vec![0.0; head_dim],
            state: Box::new(State {
                max: [0.0; ROWS],
                sum: [0.0; ROWS],
                correction: [0.0; ROWS],
                added: [0.0; ROWS],
                factor: [0.0; ROWS],
                code_sums: [[0; ROWS]; 2],
            }),
        }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets.
    pub fn bytes_for(head_dim: usize) -> usize {
        let parts = head_dim.div_ceil(LANES);
        let codes = 2 * parts * LANES;
        let origin = 2 * head_dim * size_of::<f32>();
        let row = 2 * size_of::<Row>() + size_of::<Scores>() + codes + origin;
        let query = head_dim * size_of::<f32>();
        ROWS * row + query + BLOCK * parts * size_of::<Line>() + size_of::<State>()
    }

    /// Elements of the largest head for which there is room.
    pub(in super::super) fn room(&self) -> usize {
        self.wide.len() / BLOCK * LANES
    }

    /// Nothing is seen yet but the sinks of the heads, if there are any.
    #[inline(always)]
    pub(super) fn begin(&mut self, sinks: &[f32]) {
        self.state.max.fill(f32::NEG_INFINITY);
        self.state.sum.fill(0.0);
        if !sinks.is_empty() {
            for (r, row) in self.rows.iter().enumerate() {
                self.state.max[r] = sinks[row.head] * std::f32::consts::LOG2_E;
                self.state.sum[r] = 1.0;
            }
        }
    }
}
