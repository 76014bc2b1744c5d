//! The Pred actor: at the start of an FFN block all of the layer's clusters are here. Where there are
//! predictors, it asks them which neurons are worth computing. A cluster goes on to GC if its Gate rows are
//! in memory, else to GIO, or to the neuron cache for its neurons.

use forebay_models::bundle::{ClusterKind, MAX_NEURONS};
use forebay_stages::kernels::Activations;
use forebay_stages::live_mask::LiveMask;
use forebay_stages::pred::{Pred, scores};
use forebay_traces::record::{Residency as Hit, Stage};

use super::context::{CoreContext, Flight};
use super::gio::GioActor;
use super::neurons::{NeuronActor, Onward};
use super::program::{Item, Source};
use super::shared::Shared;

/// Clusters looked at per turn, so that reads of the first ones start meanwhile.
const PER_TURN: usize = 8;

#[derive(Debug)]
pub(super) struct PredActor {
    next: usize,
    /// Clusters of the next layer that have been looked at.
    ahead: usize,
    looks_ahead: bool,
    /// The predictor's second matrix by layer, as cluster; empty where neurons are not predicted.
    fc2: Vec<u32>,
    /// Scores of one cluster, `[max_batch, MAX_NEURONS]`.
    scores: Vec<f32>,
}

impl PredActor {
    pub fn new(cx: &CoreContext) -> Self {
        let shared = &cx.shared;
        let predicted = shared.pred.is_predicted();
        let clusters = shared.bundle.clusters.iter().enumerate();
        let fc2 = clusters.filter(|(_, e)| predicted && e.kind == ClusterKind::PredictorScore);
        Self {
            next: 0,
            ahead: 0,
            looks_ahead: shared.looks_ahead(),
            fc2: fc2.map(|(i, _)| i as u32).collect(),
            scores: vec![
                0.0;
                if predicted {
                    shared.max_batch * MAX_NEURONS
                } else {
                    0
                }
            ],
        }
    }

    /// Takes in the clusters of a new layer.
    pub fn begin(&mut self, cx: &mut CoreContext, items: &[Item]) {
        (self.next, self.ahead) = (0, 0);
        cx.early.clear();
        cx.gate_start.clear();
        let mut start = 0;
        for item in items {
            cx.gate_start.push(start);
            start += cx.shared.entry(item.cluster).count as usize;
        }
    }

    /// Sends a few clusters on.
    pub fn turn(
        &mut self,
        cx: &mut CoreContext,
        items: &[Item],
        gio: &mut GioActor,
        neurons: &mut NeuronActor,
        onward: &mut Onward<'_>,
    ) -> bool {
        let from = self.next;
        for item in items.iter().skip(from).take(PER_TURN) {
            let number = self.next;
            self.next += 1;
            let count = cx.shared.entry(item.cluster).count as usize;
            let live = self.predict(cx, item, number, count);
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
                // Its place in the window has to be given back even if nothing of it is wanted.
                Source::Streamed { .. } | Source::Preloaded { .. } => gio.wait_for(flight),
                _ if live.is_empty() => cx.retired += 1,
                Source::Neurons { .. } => neurons.want(cx, flight, onward),
                Source::Pinned | Source::GatePinned { .. } => onward.gc.push(flight),
            }
        }
        if self.next > from && !self.fc2.is_empty() {
            let first = items[from].cluster;
            cx.record(
                Stage::Pred,
                first,
                self.next - from,
                0,
                Hit::NotApplicable,
                0,
            );
        }
        self.next > from
    }

    /// Asks the next layer's predictor about a few of its clusters, with the residual stream as it is before
    /// this layer's FFN, which changes little from layer to layer (Deja Vu's look-ahead, arXiv 2310.17157). What
    /// it names is read while there is nothing else to read. True if there was anything to do.
    pub fn look_ahead(
        &mut self,
        cx: &mut CoreContext,
        next: &[Item],
        neurons: &mut NeuronActor,
    ) -> bool {
        if !self.looks_ahead || cx.step.n_tokens > 1 || self.ahead >= next.len() {
            return false;
        }
        let from = self.ahead;
        for item in next.iter().skip(from).take(PER_TURN) {
            self.ahead += 1;
            let mut named = [LiveMask::NONE];
            let hidden = &cx.hidden_ahead;
            let probable = self.name(&cx.shared, cx.layer + 1, item.cluster, hidden, &mut named);
            if let Some(probable) = probable {
                neurons.read_ahead(cx, item, &probable);
            }
        }
        let looked = self.ahead - from;
        cx.record(
            Stage::Pred,
            next[from].cluster,
            looked,
            0,
            Hit::NotApplicable,
            0,
        );
        true
    }

    /// The cluster's neurons that are worth computing for any token, and which token wants which.
    fn predict(
        &mut self,
        cx: &mut CoreContext,
        item: &Item,
        number: usize,
        count: usize,
    ) -> LiveMask {
        let Some(range) = cx.named_range(number) else {
            return LiveMask::first(count);
        };
        let (shared, layer) = (&cx.shared, cx.layer);
        let named = &mut cx.named[range];
        let Some(union) = self.name(shared, layer, item.cluster, &cx.hidden, named) else {
            return LiveMask::first(count);
        };
        if let Some(observer) = &shared.observer {
            let first = shared.entry(item.cluster).first as usize;
            observer.named(layer, cx.step.position, first, named);
        }
        union
    }

    /// Which neurons of a cluster the predictor of `layer` names for each token of `hidden`, in `named`,
    /// `[n_tokens]`, and for any of them; `None` where there is no predictor.
    fn name(
        &mut self,
        shared: &Shared,
        layer: usize,
        cluster: u32,
        hidden: &Activations,
        named: &mut [LiveMask],
    ) -> Option<LiveMask> {
        let predictor = &shared.bundle.meta.predictors.as_ref()?[layer];
        let fc2 = shared.resident.bytes(*self.fc2.get(layer)? as usize);
        let entry = shared.entry(cluster);
        let (first, count) = (entry.first as usize, entry.count as usize);
        let out = &mut self.scores[..named.len() * count];
        let rows = (first, count);
        scores(&shared.kernels, predictor, fc2, rows, hidden, out);
        Some(Pred::named(predictor, out, count, named))
    }
}
