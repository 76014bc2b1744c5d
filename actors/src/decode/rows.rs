//! The rows actor: plain projections as clusters of matrix rows, in whatever order they are here.

use std::collections::VecDeque;

use forebay_models::block::BlockType;
use forebay_models::bundle::ClusterKind;
use forebay_queues::board::F32Board;
use forebay_stages::live_mask::LiveMask;
use forebay_stages::projection::project;
use forebay_traces::record::{Residency as Hit, Stage};

use super::context::{CoreContext, Flight};
use super::gio::GioActor;
use super::program::{Item, Source};

/// What the rows of a phase belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    Qkv,
    Output,
    Predictor,
    Head,
}

#[derive(Debug)]
pub(super) struct RowsActor {
    inbox: VecDeque<Flight>,
    /// One cluster's result, `[n_tokens, rows]`.
    out: Vec<f32>,
}

impl RowsActor {
    pub fn new(max_clusters: usize, out_len: usize) -> Self {
        Self {
            inbox: VecDeque::with_capacity(max_clusters),
            out: vec![0.0; out_len],
        }
    }

    /// Takes in the clusters of a phase; streamed ones go through GIO.
    pub fn begin(&mut self, cx: &CoreContext, items: &[Item], gio: &mut GioActor) {
        for (number, item) in items.iter().enumerate() {
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
            match item.source {
                Source::Streamed { .. } | Source::Preloaded { .. } => gio.wait_for(flight),
                _ => self.inbox.push_back(flight),
            }
        }
    }

    pub fn push(&mut self, flight: Flight) {
        self.inbox.push_back(flight);
    }

    /// Clusters that are here.
    pub fn waiting(&self) -> usize {
        self.inbox.len()
    }

    /// Computes one cluster of rows and publishes it.
    pub fn turn(&mut self, cx: &mut CoreContext, gio: &mut GioActor, site: Site) -> bool {
        let Some(mut flight) = self.inbox.pop_front() else {
            return false;
        };
        let cluster = flight.item.cluster;
        let shared = std::sync::Arc::clone(&cx.shared);
        let bytes = match &flight.buffer {
            Some(slot) => slot,
            None => shared.resident.bytes(cluster as usize),
        };
        let len = shared.entry(cluster).len;
        let place = place(cx, cluster);
        let vectors = shared.bundle.vectors.layers.get(cx.layer);
        let bias = vectors.map_or(&[][..], |v| &v.qkv_bias[place.bias.clone()]);
        let n_tokens = cx.x.n_tokens();
        let out = &mut self.out[..n_tokens * flight.count];
        project(
            &shared.kernels,
            place.block,
            &bytes[..len as usize],
            flight.count,
            &cx.x,
            bias,
            out,
        );
        let board: &F32Board = match site {
            Site::Qkv => &shared.boards.qkv,
            Site::Output => &shared.boards.output,
            Site::Predictor => &shared.boards.predictor,
            Site::Head => &shared.boards.logits,
        };
        for (t, rows) in out.chunks_exact(flight.count).enumerate() {
            board.write(t * place.width + place.column, rows);
        }
        let (stage, hit) = (
            site.stage(),
            if flight.buffer.is_some() {
                Hit::Miss
            } else {
                Hit::Hit
            },
        );
        cx.record(stage, cluster, 1, u64::from(len), hit, flight.flow);
        gio.release(&mut flight);
        cx.retired += 1;
        true
    }
}

impl Site {
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
