//! Preload and HandOver: used by prompts instead of GIO and UDIO. A batch of tokens wants most neurons, so whole
//! clusters are read in long reads, one after the other, layers ahead of the computation, each weight once per batch
//! (PowerInfer-2, section 4.1). When the prompt is over, neurons that were alive for its last tokens go into the neuron
//! cache: decoding begins with a warm cache.

use forebay_plans::program::Source;
use forebay_traces::record::Stage;

use crate::contract::{Outbox, Slice, StageActor};
use crate::expert_flights::ExpertFlights;
use crate::flight::Flight;
use crate::frame::Frame;
use crate::gio::Reader;

/// HandOver moves the neurons of this many last tokens into a cache of half of all neurons, and
/// those of fewer tokens into smaller caches: too many would push out those that came before.
const RECENT: f64 = 8.0;

/// The stage that reads.
#[derive(Debug)]
pub struct Preload {
    /// The window.
    pub reader: Reader,
    /// Waiting clusters of experts.
    pub experts: ExpertFlights,
}

impl Preload {
    /// Takes a cluster that is on flash, or perhaps in the expert cache.
    pub fn push(&mut self, frame: &mut Frame<'_>, flight: Box<Flight>) {
        match flight.item.source {
            Source::Cached { .. } => self.experts.push(frame, flight, true),
            _ => self.reader.wait_for(flight),
        }
    }
}

impl StageActor for Preload {
    fn turn(&mut self, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        self.reader.hand_on(frame, Stage::Preload, out)
            || self.experts.hand_on(frame, Stage::Preload, out)
    }
}

/// HandOver: moves those neurons of a preloaded cluster into the cache that were alive for the prompt's last tokens.
/// They are verified like neurons that are read one by one: a cluster that failed continues to the end of the step, and
/// must not be in the cache afterwards.
pub fn hand_over(frame: &mut Frame<'_>, flight: &Flight, out: &mut Outbox) {
    let (Source::Preloaded { base, .. }, Some(bytes), false) =
        (flight.item.source, &flight.buffer, frame.more)
    else {
        return;
    };
    let (geometry, n_tokens) = (*frame.geometry(&flight.item), frame.n_tokens());
    let activation = frame.rule.activation();
    let store = &mut frame.weights.neurons;
    let tokens = (RECENT * (2.0 * store.share()).min(1.0)).max(1.0) as usize;
    let recent = &flight.gates(n_tokens)[n_tokens.saturating_sub(tokens) * flight.count..];
    for neuron in flight.live.iter() {
        let mut tokens = recent.chunks_exact(flight.count);
        if tokens.any(|token| activation.gate(token[neuron]) != 0.0) {
            let cluster = flight.item.cluster as usize;
            let bundle = &bytes[neuron * geometry.bundle_stride()..][..geometry.bundle_bytes()];
            if let Some(sums) = frame.bundle.neuron_sums(cluster, neuron) {
                store.adopt(base as usize + neuron, &geometry, bundle, sums);
            }
        }
    }
    out.record(Slice::plain(Stage::HandOver, flight.item.cluster, 1));
}
