//! Memory of jobs of attention, for the budget.

use forebay_devices::{AttentionWork, DeviceJob, KvSpace, Patch, SegmentId, Work};
use forebay_models::network::Network;
use forebay_stages::attention::{Attention, DeviceHeads, KvRoom};
use forebay_stages::kernels::Activations;
use forebay_stages::kernels::kv::{BLOCK, POSITIONS};

use super::kv_copies::{KvCopies, heads, space};
use super::room::JOBS;

/// Positions that a job can bring besides those of its own tokens: after tokens that only the core attended for, the
/// device lacks more.
const CATCH_UP: usize = 4 * BLOCK;

/// Sizes of a core's largest job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttentionRoom {
    /// Elements of queries, and of results.
    queries: usize,
    results: usize,
    heads: usize,
    /// Blocks of a sequence.
    blocks: usize,
    /// Positions of each key/value head that a job brings.
    pub positions: usize,
    patches: usize,
    patched: usize,
}

impl AttentionRoom {
    /// Room for `heads` of all layers, in steps of `batch` tokens and sequences of `context` positions.
    pub fn new(heads: &[Option<DeviceHeads>], batch: usize, context: usize) -> Self {
        let positions = batch.next_multiple_of(BLOCK) + 2 * BLOCK + CATCH_UP;
        let most = |of: fn(&DeviceHeads) -> usize| heads.iter().flatten().map(of).max();
        let most = |of| most(of).unwrap_or(0);
        Self {
            queries: batch * most(|h| h.heads * h.head_dim),
            results: batch * most(|h| h.heads * h.value_dim),
            heads: most(|h| h.heads),
            blocks: context.div_ceil(BLOCK) + 1,
            positions,
            patches: 2 * positions / POSITIONS * most(|h| h.kv_heads),
            patched: positions
                * most(|h| {
                    let space = space(h);
                    space.heads * (space.key_bytes(1) + space.value_bytes(1))
                }),
        }
    }

    /// A job with room for the largest.
    pub fn empty(self) -> DeviceJob {
        let work = AttentionWork {
            kv: KvSpace {
                heads: 0,
                blocks: 0,
                head_dim: 0,
                value_dim: 0,
            },
            patches: Vec::with_capacity(self.patches),
            patched: Vec::with_capacity(self.patched),
            n_tokens: 0,
            heads: 0,
            group: 1,
            first: 0,
            queries: Vec::with_capacity(self.queries),
            blocks: Vec::with_capacity(self.blocks),
            position: 0,
            window: 1,
            scale: 1.0,
            sinks: Vec::with_capacity(self.heads),
            out: Vec::with_capacity(self.results),
        };
        DeviceJob {
            id: 0,
            segment: SegmentId::NONE,
            tokens: Activations::new(0, 0),
            work: Work::Attention(Box::new(work)),
        }
    }

    fn bytes(&self) -> usize {
        let floats = self.queries + self.results + self.heads + self.blocks;
        floats * size_of::<f32>() + self.patches * size_of::<Patch>() + self.patched
    }

    /// Bytes of a driver's buffers for a job: what it brings, also on its way, and its results here and there.
    fn buffers(&self) -> usize {
        let given = (self.queries + self.blocks + self.heads) * size_of::<f32>();
        2 * given + 2 * self.results * size_of::<f32>() + self.patched
    }
}

/// What of a core's attention a device can do.
#[derive(Debug)]
pub(crate) struct OwnAttention {
    /// By layer; `None` where it cannot.
    pub heads: Vec<Option<DeviceHeads>>,
    pub room: AttentionRoom,
}

impl OwnAttention {
    /// That of core `rank` of `threads`, with a cache of this `room`, in steps of `batch` tokens.
    pub fn of(network: &Network, room: &KvRoom, core: (usize, usize), batch: usize) -> Self {
        let heads = heads(network, room, core);
        Self {
            room: AttentionRoom::new(&heads, batch, room.context),
            heads,
        }
    }
}

/// What attention on a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionCosts {
    /// Bytes of the process's memory, wherever the device has its own.
    pub jobs: u64,
    /// Bytes of the device's memory for keys and values.
    pub copies: u64,
    /// And for jobs.
    pub buffers: u64,
}

impl AttentionCosts {
    /// With a cache of this `room` on `threads` cores, in steps of `batch` tokens; `None` if devices do not attend with
    /// the model's heads.
    pub fn of((network, room): (&Network, &KvRoom), threads: usize, batch: usize) -> Option<Self> {
        let copies = KvCopies::bytes(network, room, threads);
        let of_core = |rank| OwnAttention::of(network, room, (rank, threads), batch).room;
        let rooms = || (0..threads).map(of_core);
        let jobs: usize = rooms()
            .map(|r| r.bytes() + Attention::copies_bytes(room))
            .sum();
        let buffers = rooms().map(|room| room.buffers()).max().unwrap_or(0);
        (copies > 0).then_some(Self {
            jobs: jobs as u64,
            copies,
            buffers: JOBS * buffers as u64,
        })
    }
}
