//! The rows actor: plain projections as clusters of matrix rows, in whatever order they are here.
//!
//! Clusters in memory belong to whoever is free: a core that is through with its own takes from the others' lists.
//! Streamed ones stay with the core whose window they come through.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_models::block::BlockType;
use forebay_models::bundle::ClusterKind;
use forebay_queues::board::F32Board;
use forebay_queues::claims::Claims;
use forebay_stages::live_mask::LiveMask;
use forebay_stages::projection::project;
use forebay_traces::record::{Residency as Hit, Stage};

use super::context::{CoreContext, Flight};
use super::gio::GioActor;
use super::program::{Item, Program, Source};

/// What the rows of a phase belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    Qkv,
    Output,
    Predictor,
    Head,
}

/// Clusters in memory of all cores' row phases, to be shared.
#[derive(Debug)]
pub(super) struct SharedRows {
    claims: Claims,
    /// `[threads]`
    lists: Vec<Program>,
}

impl SharedRows {
    /// Those of the cores' programs.
    pub fn new(programs: &[Program]) -> Self {
        Self {
            claims: Claims::new(programs.len()),
            lists: programs.iter().map(Program::pinned_rows).collect(),
        }
    }
}

#[derive(Debug)]
pub(super) struct RowsActor {
    shared: Arc<SharedRows>,
    /// Number of the phase; all cores count alike.
    round: u64,
    /// Cores whose lists were found at their end in this round, from the own one on.
    finished: usize,
    /// Streamed clusters of the phase that have not been computed.
    streamed: usize,
    inbox: VecDeque<Flight>,
    /// One cluster's result, `[n_tokens, rows]`.
    out: Vec<f32>,
}

impl RowsActor {
    pub fn new(shared: Arc<SharedRows>, max_clusters: usize, out_len: usize) -> Self {
        Self {
            shared,
            round: 0,
            finished: 0,
            streamed: 0,
            inbox: VecDeque::with_capacity(max_clusters),
            out: vec![0.0; out_len],
        }
    }

    /// Takes in the clusters of a phase; streamed ones go through GIO.
    pub fn begin(&mut self, cx: &CoreContext, items: &[Item], gio: &mut GioActor) {
        (self.round, self.finished, self.streamed) = (self.round + 1, 0, 0);
        for (number, item) in items.iter().enumerate() {
            if item.source == Source::Pinned {
                continue;
            }
            let count = cx.shared.entry(item.cluster).count as usize;
            let live = LiveMask::default();
            let flight = Flight {
                item: *item,
                number,
                count,
                live,
                gated: false,
                buffer: None,
                flow: 0,
            };
            self.streamed += 1;
            gio.wait_for(flight);
        }
    }

    pub fn push(&mut self, flight: Flight) {
        self.inbox.push_back(flight);
    }

    /// Whether clusters are still to come.
    pub fn awaits_reads(&self) -> bool {
        self.streamed > 0
    }

    /// Clusters that are here.
    pub fn waiting(&self) -> usize {
        self.inbox.len()
    }

    /// Computes one cluster of rows and publishes it.
    pub fn turn(&mut self, cx: &mut CoreContext, gio: &mut GioActor, site: Site) -> bool {
        if let Some(mut flight) = self.inbox.pop_front() {
            let bytes = flight.buffer.as_deref().unwrap_or_default();
            let read = (Hit::Miss, flight.flow);
            self.compute(cx, site, flight.item.cluster, bytes, read);
            gio.release(&mut flight);
            self.streamed -= 1;
            return true;
        }
        let Some(cluster) = self.claim(cx, site) else {
            return false;
        };
        let shared = Arc::clone(&cx.shared);
        let bytes = shared.resident.bytes(cluster as usize);
        self.compute(cx, site, cluster, bytes, (Hit::Hit, 0));
        true
    }

    /// The next cluster in memory, of the own list while it lasts.
    fn claim(&mut self, cx: &CoreContext, site: Site) -> Option<u32> {
        let threads = self.shared.lists.len();
        while self.finished < threads {
            let rank = (cx.rank + self.finished) % threads;
            let list = site.items(&self.shared.lists[rank], cx.layer);
            if let Some(place) = self.shared.claims.claim(rank, self.round, list.len()) {
                return Some(list[place].cluster);
            }
            self.finished += 1;
        }
        None
    }

    /// Computes a cluster of rows out of `bytes` and publishes it.
    fn compute(
        &mut self,
        cx: &mut CoreContext,
        site: Site,
        cluster: u32,
        bytes: &[u8],
        (hit, flow): (Hit, u64),
    ) {
        let shared = Arc::clone(&cx.shared);
        let entry = shared.entry(cluster);
        let (len, count) = (entry.len, entry.count as usize);
        let place = place(cx, cluster);
        let vectors = shared.bundle.vectors.layers.get(cx.layer);
        let bias = vectors.map_or(&[][..], |v| &v.qkv_bias[place.bias.clone()]);
        let n_tokens = cx.x.n_tokens();
        let out = &mut self.out[..n_tokens * count];
        let bytes = &bytes[..len as usize];
        let kernels = &shared.kernels;
        project(kernels, place.block, bytes, count, &cx.x, bias, out);
        let board: &F32Board = match site {
            Site::Qkv => &shared.boards.qkv,
            Site::Output => &shared.boards.output,
            Site::Predictor => &shared.boards.predictor,
            Site::Head => &shared.boards.logits,
        };
        for (t, rows) in out.chunks_exact(count).enumerate() {
            board.write(t * place.width + place.column, rows);
        }
        cx.record(site.stage(), cluster, 1, u64::from(len), hit, flow);
    }
}

impl Site {
    /// The phase's work in a program.
    pub fn items(self, program: &Program, layer: usize) -> &[Item] {
        match self {
            Self::Qkv => &program.qkv[layer],
            Self::Output => &program.output[layer],
            Self::Predictor => &program.predictor[layer],
            Self::Head => &program.head,
        }
    }

    fn stage(self) -> Stage {
        match self {
            Self::Qkv => Stage::Qkv,
            Self::Output => Stage::Output,
            Self::Predictor => Stage::Pred,
            Self::Head => Stage::Head,
        }
    }
}

/// Where a cluster's rows go on its board.
struct Place {
    block: BlockType,
    /// First column of the cluster within a token's row of the board.
    column: usize,
    /// Columns of the board.
    width: usize,
    /// Columns of the bias that belong to the cluster; empty where the projection has none.
    bias: std::ops::Range<usize>,
}

fn place(cx: &CoreContext, cluster: u32) -> Place {
    let e = cx.shared.entry(cluster);
    let meta = &cx.shared.bundle.meta;
    let c = &meta.config;
    let formats = e.layer.map(|l| &meta.layers[usize::from(l)]);
    let (first, count) = (e.first as usize, e.count as usize);
    let qkv_width = c.q_dim() + 2 * c.kv_dim();
    let (block, offset, width) = match (e.kind, formats) {
        (ClusterKind::Q, Some(f)) => (f.q, 0, qkv_width),
        (ClusterKind::K, Some(f)) => (f.k, c.q_dim(), qkv_width),
        (ClusterKind::V, Some(f)) => (f.v, c.q_dim() + c.kv_dim(), qkv_width),
        (ClusterKind::O, Some(f)) => (f.o, 0, c.d_model),
        (ClusterKind::PredictorHidden, Some(_)) => {
            let layer = usize::from(e.layer.unwrap_or(0));
            let block = meta.predictors.as_ref().map(|p| p[layer].fc1);
            let rank = cx.shared.predictor_rank();
            // The next layer's are beside this one's.
            (
                block.unwrap_or(meta.head),
                (layer - cx.layer) * rank,
                2 * rank,
            )
        }
        _ => (meta.head, 0, c.vocab_size),
    };
    let column = offset + first;
    let biased = c.qkv_bias && matches!(e.kind, ClusterKind::Q | ClusterKind::K | ClusterKind::V);
    let bias = if biased { column..column + count } else { 0..0 };
    Place {
        block,
        column,
        width,
        bias,
    }
}
