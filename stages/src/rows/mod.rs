//! Rows: plain projections as clusters of matrix rows, in whatever order they are in memory.
//!
//! Any free core may take clusters in memory: a core that has finished its own list takes from the others'. Streamed
//! clusters stay with the core whose window they come through.

mod project;

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_plans::program::{Finish, Item, Matrix, Program, Rows as RowWork, Work};
use forebay_queues::claims::{Claimant, Claims};
use forebay_queues::pages::give_back;
use forebay_queues::slab::Slot;
use forebay_traces::record::Residency as Hit;

use crate::contract::{Outbox, Slice};
use crate::flight::RowFlight;
use crate::frame::Frame;
use crate::head_input::HeadInput;

pub use project::project;

/// Clusters in memory of all cores' row phases, which any core may take.
#[derive(Debug)]
pub struct SharedRows {
    claims: Claims,
    /// `[threads][phases]`
    lists: Vec<Vec<Vec<Item>>>,
}

impl SharedRows {
    /// The clusters of the cores' programs.
    pub fn new(programs: &[Program]) -> Self {
        Self {
            claims: Claims::new(programs.len()),
            lists: programs.iter().map(Program::pinned_rows).collect(),
        }
    }
}

/// The stage.
#[derive(Debug)]
pub struct Rows {
    shared: Arc<SharedRows>,
    /// Its rounds are the phases of rows since the start; the same on all cores.
    claimant: Claimant,
    /// Streamed clusters of the phase that have not been computed.
    streamed: usize,
    inbox: VecDeque<RowFlight>,
    head_input: HeadInput,
    /// One cluster's result, `[n_tokens, rows]`.
    out: Vec<f32>,
    /// Clusters of the phase that a device failed to compute.
    failed: Vec<Item>,
}

impl Rows {
    /// With at most `max_clusters` streamed clusters of a phase, of at most `max_rows` rows, for steps of up to
    /// `max_tokens` tokens. Heads with their own input have at most `head_columns` columns.
    pub fn new(
        shared: Arc<SharedRows>,
        max_clusters: usize,
        max_tokens: usize,
        (max_rows, head_columns): (usize, usize),
    ) -> Self {
        Self {
            shared,
            claimant: Claimant::default(),
            streamed: 0,
            inbox: VecDeque::with_capacity(max_clusters),
            head_input: HeadInput::new(max_tokens, head_columns),
            out: vec![0.0; max_tokens * max_rows],
            failed: Vec::new(),
        }
    }

    /// Room for clusters that a device fails to compute, at most `most` in a phase.
    pub fn reserve_for_device(&mut self, most: usize) {
        self.failed.reserve(most);
    }

    /// A device has failed to compute these clusters of the phase: this core does it.
    pub fn make_good(&mut self, items: &[Item]) {
        self.failed.extend(items.iter().rev());
    }

    /// Bytes of heads' inputs, which [`Self::new`] allocates and [`Self::give_back`] keeps, for memory budgets.
    pub fn bytes_kept(max_tokens: usize, head_columns: usize) -> usize {
        HeadInput::bytes_for(max_tokens, head_columns)
    }

    /// Bytes of a step's results, which it gives back.
    pub fn bytes_of_steps(max_tokens: usize, max_rows: usize) -> usize {
        max_tokens * max_rows * size_of::<f32>()
    }

    /// Gives the memory of results back to the system until a step needs it.
    pub fn give_back(&mut self) {
        give_back(&mut self.out);
    }

    /// A phase of rows begins; returns the clusters that have to be read.
    pub fn begin<'a>(&mut self, work: &'a RowWork) -> impl Iterator<Item = Item> + 'a {
        self.claimant.begin();
        self.head_input.begin();
        let streamed = |item: &&Item| !item.source.is_in_memory();
        self.streamed = work.items.iter().filter(streamed).count();
        work.items.iter().filter(streamed).copied()
    }

    /// Takes a cluster that has been read.
    pub fn push(&mut self, flight: RowFlight) {
        self.inbox.push_back(flight);
    }

    /// Whether clusters are still being read.
    pub fn awaits_reads(&self) -> bool {
        self.streamed > 0
    }

    /// Clusters in the inbox.
    pub fn held(&self) -> usize {
        self.inbox.len()
    }

    /// Computes one cluster of rows and publishes it; the buffer of a streamed one is to be returned to the window.
    /// `None` if no cluster is in memory.
    pub fn turn(&mut self, frame: &Frame<'_>, out: &mut Outbox) -> Option<Option<(Item, Slot)>> {
        let Work::Rows(work) = &frame.phase.work else {
            return None;
        };
        if let Some(flight) = self.inbox.pop_front() {
            let read = (Hit::Miss, flight.flow);
            self.compute(frame, work, flight.item, &flight.buffer, read, out);
            self.streamed -= 1;
            return Some(Some((flight.item, flight.buffer)));
        }
        let item = match self.failed.pop() {
            Some(item) => item,
            None => self.claim(frame, work)?,
        };
        let bytes = frame.weights.shared_bytes(item.cluster);
        self.compute(frame, work, item, bytes, (Hit::Hit, 0), out);
        Some(None)
    }

    /// The next cluster in memory, from this core's list first.
    fn claim(&mut self, frame: &Frame<'_>, work: &RowWork) -> Option<Item> {
        let SharedRows { claims, lists } = &*self.shared;
        let of = |rank: usize| &lists[rank][frame.number];
        // Those that a device computes come last, and so do guesses, of which it computes none. Without either, no
        // entry is read: a core looks at all lists.
        let guesses = frame.n_tokens() > 1 && work.of_several < work.matrices.len();
        let is_guess = |item: &Item| guesses && usize::from(item.matrix) >= work.of_several;
        let len = |rank| match guesses || frame.on_device > 0 {
            false => of(rank).len(),
            true => of(rank).partition_point(|item| !frame.is_on_device(item) && !is_guess(item)),
        };
        let (rank, place) = self.claimant.next(claims, frame.rank, len)?;
        Some(of(rank)[place])
    }

    /// Computes a cluster of rows from `bytes` and publishes it.
    fn compute(
        &mut self,
        frame: &Frame<'_>,
        work: &RowWork,
        item: Item,
        bytes: &[u8],
        (hit, flow): (Hit, u64),
        out: &mut Outbox,
    ) {
        let entry = frame.entry(item.cluster);
        let (first, count) = (entry.first as usize, entry.count as usize);
        let matrix = &work.matrices[usize::from(item.matrix)];
        let (input, column) = match &matrix.heads {
            None => (frame.input, first),
            Some(heads) => {
                let (head, row) = (first / heads.rows, first % heads.rows);
                let around = (frame.kernels, frame.boards);
                let n_tokens = frame.n_tokens();
                let input = self.head_input.select(around, heads, head, n_tokens);
                (input, head * heads.out_stride + row)
            }
        };
        let rows = &mut self.out[..input.n_tokens() * count];
        let bytes = &bytes[..entry.len as usize];
        let bias = bias(frame, matrix, (first, count));
        project(frame.kernels, matrix.block, bytes, count, input, bias, rows);
        let board = frame.boards.board(work.board);
        for (t, rows) in rows.chunks_exact_mut(count).enumerate() {
            finish(matrix.finish, rows);
            board.write(t * work.width + matrix.column + column, rows);
        }
        out.record(Slice {
            stage: work.stage,
            cluster: item.cluster,
            count: 1,
            bytes: u64::from(entry.len),
            hit,
            flow,
        });
    }
}

/// Publishes what a device has computed: the results of `items` side by side, `[n_tokens, rows of all items]`, which
/// are finished in place.
pub fn publish(frame: &Frame<'_>, items: &[Item], results: &mut [f32]) {
    let Work::Rows(work) = &frame.phase.work else {
        return;
    };
    let width = results.len() / frame.input.n_tokens().max(1);
    let board = frame.boards.board(work.board);
    // Token by token, as they lie in memory, where another core has written them.
    for (t, mut results) in results.chunks_exact_mut(width.max(1)).enumerate() {
        for item in items {
            let entry = frame.entry(item.cluster);
            let (first, count) = (entry.first as usize, entry.count as usize);
            let matrix = &work.matrices[usize::from(item.matrix)];
            let (rows, rest) = results.split_at_mut(count);
            let bias = bias(frame, matrix, (first, count));
            rows.iter_mut().zip(bias).for_each(|(r, b)| *r += b);
            finish(matrix.finish, rows);
            board.write(t * work.width + matrix.column + first, rows);
            results = rest;
        }
    }
}

/// The bias of rows `first..first + count` of a matrix; empty if it has none.
fn bias<'a>(frame: &Frame<'a>, matrix: &Matrix, (first, count): (usize, usize)) -> &'a [f32] {
    match matrix.bias.is_empty() {
        true => &[],
        false => &frame.bundle.vectors.values()[matrix.bias.clone()][first..first + count],
    }
}

/// What is done with results before they are published: `softcap * tanh(scale * x / softcap)`, or only the factor.
fn finish(how: Finish, rows: &mut [f32]) {
    let Finish::Scaled { scale, softcap } = how else {
        return;
    };
    for x in rows {
        *x *= scale;
        if let Some(cap) = softcap {
            *x = cap * (*x / cap).tanh();
        }
    }
}
