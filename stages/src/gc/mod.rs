//! GC: computes Gate of whichever cluster is in memory, and finds which neurons are alive.

mod gate;

use std::collections::VecDeque;

use forebay_traces::record::{Residency as Hit, Stage};

use crate::computed::Computed;
use crate::contract::{Outbox, Port, Slice, StageActor};
use crate::flight::Flight;
use crate::frame::Frame;
use crate::gathered::Gathered;

pub use gate::{add_bias, gate};

/// The stage.
#[derive(Debug)]
pub struct Gc {
    inbox: VecDeque<Box<Flight>>,
    gathered: Gathered,
    /// Gates computed since the counts were last taken, but those of hot neurons.
    pub computed: Computed,
}

impl Gc {
    /// With at most `flights` clusters of a phase, for `by_neuron` tokens whose neurons may be computed one by one.
    pub fn new(flights: usize, by_neuron: usize) -> Self {
        Self {
            inbox: VecDeque::with_capacity(flights),
            gathered: Gathered::new(by_neuron),
            computed: Computed::default(),
        }
    }

    /// Takes a cluster whose Gate rows are in memory.
    pub fn push(&mut self, flight: Box<Flight>) {
        self.inbox.push_back(flight);
    }

    /// Clusters in the inbox.
    pub fn held(&self) -> usize {
        self.inbox.len()
    }

    /// The next cluster.
    pub fn next(&self) -> Option<&Flight> {
        self.inbox.front().map(Box::as_ref)
    }

    /// Computes the gates of a flight's neurons that may be alive, and finds which are.
    fn compute(&mut self, frame: &mut Frame<'_>, flight: &mut Flight) -> u64 {
        let (geometry, item) = (*frame.geometry(&flight.item), flight.item);
        let (layer, cluster) = (frame.phase.layer, item.cluster);
        let n_tokens = frame.tokens_of(&item).n;
        let (count, candidates) = (flight.count, flight.live);
        let mut wanted = candidates;
        wanted.remove(&flight.early.gated);
        // The rows borrow the flight's buffer while the gates are written.
        let buffer = flight.buffer.take();
        let [bias, _] = frame.biases(&item);
        let kernels = frame.kernels;
        let tokens = (item.expert, frame.tokens_of(&item));
        let input = frame.input_of(&item);
        let input = frame.expert_input.select(tokens, &geometry, input);
        let rows = frame.weights.gate_rows_of(buffer.as_deref(), flight);
        let (gates, named, early) = flight.gates_mut(n_tokens);
        let products = gate(
            kernels,
            &geometry,
            rows,
            (count, &wanted, named),
            input,
            &mut self.gathered,
            gates,
        );
        // Gates that a token skips get it too: the rule sets them to 0 afterwards.
        add_bias(bias, &wanted, gates);
        early.gated.iter().for_each(|i| gates[i] = early.gates[i]);
        if !frame.is_hot(&item) {
            self.computed.add(wanted.count(), products);
        }
        let rule = frame.rule;
        let live = rule.survivors(layer, gates, count, &candidates, named);
        match (frame.observer, item.expert) {
            (Some(observer), None) => {
                let first = frame.entry(cluster).first as usize;
                observer.gates(layer, frame.position(), (first, count), gates);
            }
            (Some(observer), Some(_)) => observer.expert_gates(layer, count, gates),
            (None, _) => {}
        }
        (flight.live, flight.gated, flight.buffer) = (live, true, buffer);
        (wanted.count() * geometry.gate_row()) as u64
    }
}

/// Whether Up or Down of a live neuron of an expert is not in memory.
fn lacks_some(frame: &Frame<'_>, flight: &Flight) -> bool {
    let missing = |key| frame.weights.experts.lacks(key, &flight.live);
    let key = flight.item.source.key();
    key.is_some_and(|key| !missing(key).is_empty())
}

impl StageActor for Gc {
    /// Computes one cluster's Gate. The cluster continues if any neuron is alive.
    fn turn(&mut self, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        let Some(mut flight) = self.inbox.pop_front() else {
            return false;
        };
        let bytes = self.compute(frame, &mut flight);
        let hit = match flight.flow {
            0 => Hit::Hit,
            _ => Hit::Miss,
        };
        out.record(Slice {
            stage: Stage::Gc,
            cluster: flight.item.cluster,
            count: 1,
            bytes,
            hit,
            flow: flight.flow,
        });
        let port = match flight.live.is_empty() {
            true => Port::Done,
            // What another core lends is whole.
            false if flight.owner.is_some() => Port::Here,
            false if flight.is_by_neuron() || lacks_some(frame, &flight) => Port::Away,
            false => Port::Here,
        };
        out.send(port, flight);
        true
    }
}
