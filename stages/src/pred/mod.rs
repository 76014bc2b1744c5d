//! Pred: at the start of an FFN all of the layer's clusters are here. It leaves out experts that no token uses, and on
//! request clusters that would have to be read and change little. Where there are predictors, it asks them which
//! neurons are worth computing; the others are not even read.

mod shared;

use std::sync::Arc;

use forebay_models::block::BlockType;
use forebay_models::bundle::MAX_NEURONS;
use forebay_models::network::Content;
use forebay_models::tensor::{LayerTensor, TensorId};
use forebay_plans::program::{Item, Phase, Source};
use forebay_traces::record::Stage;

use crate::contract::{Outbox, Port, Slice, StageActor};
use crate::flight::Flight;
use crate::frame::Frame;
use crate::live_mask::LiveMask;
use crate::rule::{Rule, scores};

use shared::{Takes, is_shared};

pub use shared::SharedClusters;

/// Clusters examined per turn, so that reads of the first ones start meanwhile.
const PER_TURN: usize = 8;

/// The stage.
#[derive(Debug)]
pub struct Pred {
    /// The phase's next cluster.
    next: usize,
    /// Clusters of the phase that were sent on.
    sent: usize,
    /// Clusters that were left out although a token uses their expert, since that was last taken.
    pub left_out: u64,
    /// Flights that are not under way. The last one back is the next to leave: its gates are still in the cache.
    #[allow(
        clippy::vec_box,
        reason = "they travel in their boxes, and are not copied out of them here"
    )]
    free: Vec<Box<Flight>>,
    /// The predictor's second matrix by layer, as cluster, with its format; empty where neurons are not predicted.
    fc2: Vec<(u32, BlockType)>,
    /// Scores of one cluster, `[max_tokens, MAX_NEURONS]`.
    scores: Vec<f32>,
    /// Clusters that any core may take, if there are any.
    takes: Option<Takes>,
    /// Clusters of the phase that a device failed to compute and that are still to be sent on.
    failed: Vec<Item>,
}

impl Pred {
    /// With `flights` for the clusters of a layer, for `max_tokens` tokens. Clusters in memory are `shared`, if the
    /// graph calls [`Self::take`].
    pub fn new(
        bundle: &forebay_models::bundle::Bundle,
        predicted: bool,
        (flights, max_neurons): (usize, usize),
        max_tokens: usize,
        shared: Option<Arc<SharedClusters>>,
    ) -> Self {
        let clusters = bundle.clusters.iter().enumerate();
        let fc2 = clusters.filter_map(|(i, e)| match e.content {
            Content::Rows(id @ TensorId::Layer(_, LayerTensor::PredictorFc2)) if predicted => {
                Some((i as u32, bundle.meta.matrix(id)?.block))
            }
            _ => None,
        });
        let flight = || Box::new(Flight::new(max_tokens, max_neurons, predicted));
        Self {
            next: 0,
            sent: 0,
            left_out: 0,
            free: (0..flights).map(|_| flight()).collect(),
            fc2: fc2.collect(),
            scores: vec![
                0.0;
                match predicted {
                    true => max_tokens * MAX_NEURONS,
                    false => 0,
                }
            ],
            takes: shared.map(Takes::new),
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

    /// Between two steps, when all flights are here: gives the memory of their gates back to the system.
    pub fn give_back(&mut self) {
        self.free.iter_mut().for_each(|flight| flight.give_back());
    }

    /// A phase with neuron clusters begins.
    pub fn begin(&mut self) {
        (self.next, self.sent) = (0, 0);
        self.failed.clear();
        self.takes.iter_mut().for_each(Takes::begin);
    }

    /// Number of clusters sent on, once it is all of the phase's.
    pub fn sent(&self, phase: &Phase) -> Option<usize> {
        let all = self.next >= phase.neurons().len() && self.failed.is_empty();
        (all && self.takes.iter().all(Takes::is_finished)).then_some(self.sent)
    }

    /// Sends a cluster on that any core may compute, this one's or another's; false if there is none. For when the core
    /// has nothing else to do: what it has taken, no other computes.
    pub fn take(&mut self, frame: &Frame<'_>, out: &mut Outbox) -> bool {
        let (Some(takes), false) = (&mut self.takes, self.free.is_empty()) else {
            return false;
        };
        let Some(item) = takes.next(frame) else {
            return false;
        };
        self.send_whole(item, frame, out);
        true
    }

    /// Flights that are not under way.
    pub fn flights(&self) -> usize {
        self.free.len()
    }

    /// A flight has ended.
    pub fn take_back(&mut self, flight: Box<Flight>) {
        self.free.push(flight);
    }

    /// Sends on clusters that a device failed to compute; true if there was any.
    fn send_failed(&mut self, frame: &Frame<'_>, out: &mut Outbox) -> bool {
        let before = self.sent;
        while self.sent - before < PER_TURN && !self.free.is_empty() {
            let Some(item) = self.failed.pop() else {
                break;
            };
            self.send_whole(item, frame, out);
        }
        self.sent > before
    }

    /// Sends on a cluster in memory, all of whose neurons are computed. A flight has to be free.
    fn send_whole(&mut self, item: Item, frame: &Frame<'_>, out: &mut Outbox) {
        let Some(mut flight) = self.free.pop() else {
            return;
        };
        let count = frame.entry(item.cluster).count as usize;
        flight.begin(item, self.sent, count);
        flight.live = all(frame, &mut flight);
        self.sent += 1;
        out.send(Port::Here, flight);
    }

    /// The cluster's neurons that are worth computing for any token, and which token wants which.
    fn predict(&mut self, frame: &Frame<'_>, flight: &mut Flight) -> LiveMask {
        let (layer, entry) = (frame.phase.layer, frame.entry(flight.item.cluster));
        let (first, count) = (entry.first as usize, entry.count as usize);
        if frame.is_hot(&flight.item) {
            return all(frame, flight);
        }
        let (Some(named), Some(predictors), Some(&(fc2, block))) = (
            flight.named_mut(frame.n_tokens()),
            &frame.bundle.meta.predictors,
            self.fc2.get(layer),
        ) else {
            return LiveMask::first(count);
        };
        let predictor = &predictors[layer];
        let fc2 = (frame.weights.shared_bytes(fc2), block);
        let out = &mut self.scores[..named.len() * count];
        scores(
            frame.kernels,
            predictor.rank,
            fc2,
            (first, count),
            frame.hidden,
            out,
        );
        let union = Rule::named(predictor, out, count, named);
        if let Some(observer) = frame.observer {
            observer.named(layer, frame.position(), first, named);
        }
        union
    }
}

/// All neurons of the cluster, which every token wants.
fn all(frame: &Frame<'_>, flight: &mut Flight) -> LiveMask {
    let all = LiveMask::first(flight.count);
    if let Some(named) = flight.named_mut(frame.n_tokens()) {
        named.fill(all);
    }
    all
}

impl StageActor for Pred {
    /// Sends a few clusters on, without those of experts that no token uses.
    fn turn(&mut self, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        let items = frame.phase.neurons();
        let (from, before) = (self.next, self.sent);
        for item in items.iter().skip(from) {
            let taken = self.takes.is_some() && is_shared(frame.bundle, item);
            let elsewhere = taken || frame.is_on_device(item);
            if elsewhere || frame.tokens_of(item).n == 0 || frame.skips(item) {
                self.next += 1;
                continue;
            }
            if frame.leaves_out(item) {
                self.next += 1;
                self.left_out += 1;
                continue;
            }
            if self.sent - before == PER_TURN {
                break;
            }
            let Some(mut flight) = self.free.pop() else {
                break;
            };
            let count = frame.entry(item.cluster).count as usize;
            flight.begin(*item, self.sent, count);
            self.next += 1;
            self.sent += 1;
            flight.live = self.predict(frame, &mut flight);
            let port = match item.source {
                // Its buffer in the window has to be returned even if nothing of it is wanted.
                Source::Streamed { .. } | Source::Preloaded { .. } => Port::Away,
                _ if flight.live.is_empty() => Port::Done,
                Source::Neurons { .. } | Source::Cached { .. } => Port::Away,
                Source::Pinned | Source::Device { .. } | Source::GatePinned { .. } => Port::Here,
            };
            out.send(port, flight);
        }
        if self.next > from && !self.fc2.is_empty() {
            let first = items[from].cluster;
            out.record(Slice::plain(Stage::Pred, first, self.next - from));
        }
        self.next > from || self.send_failed(frame, out)
    }
}
