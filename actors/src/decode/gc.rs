//! The GC actor: computes Gate of whichever cluster is here.

use std::collections::VecDeque;

use forebay_stages::gathered::Gathered;
use forebay_stages::gc::gate;
use forebay_stages::neuron_rows::NeuronRows;
use forebay_stages::neuron_store::NeuronStore;
use forebay_traces::record::{Residency as Hit, Stage};

use super::context::{CoreContext, Flight};
use super::gio::GioActor;
use super::giving_way::GivingClusters;
use super::neurons::NeuronActor;
use super::program::Source;
use super::shared::Shared;

/// Where a flight's Gate rows are.
pub(super) fn gate_rows<'a>(
    giving: &'a GivingClusters,
    shared: &'a Shared,
    flight: &'a Flight,
    store: &'a NeuronStore,
) -> NeuronRows<'a> {
    let resident = giving.bytes(&shared.resident, flight.item.cluster);
    match (&flight.buffer, flight.item.source) {
        (Some(slot), _) => NeuronRows::Whole(slot),
        (None, Source::GatePinned { .. }) => NeuronRows::Gates(resident),
        (None, Source::Neurons { .. }) => NeuronRows::Cached {
            store,
            flight: flight.number,
        },
        (None, _) => NeuronRows::Whole(resident),
    }
}

#[derive(Debug)]
pub(super) struct GcActor {
    inbox: VecDeque<Flight>,
    gathered: Gathered,
}

impl GcActor {
    pub fn new(max_flights: usize, max_tokens: usize) -> Self {
        Self {
            inbox: VecDeque::with_capacity(max_flights),
            gathered: Gathered::new(max_tokens),
        }
    }

    pub fn push(&mut self, flight: Flight) {
        self.inbox.push_back(flight);
    }

    /// Clusters that are here.
    pub fn waiting(&self) -> usize {
        self.inbox.len()
    }

    /// Whether a cluster is here.
    pub fn is_ready(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// The cluster that comes next.
    pub fn next(&self) -> Option<&Flight> {
        self.inbox.front()
    }

    /// Computes one cluster's Gate; returns it if any neuron is alive, else its way ends here.
    pub fn turn(
        &mut self,
        cx: &mut CoreContext,
        gio: &mut GioActor,
        neurons: &mut NeuronActor,
    ) -> Option<Flight> {
        let mut flight = self.inbox.pop_front()?;
        let cluster = flight.item.cluster;
        let shared = std::sync::Arc::clone(&cx.shared);
        let geometry = &shared.bundle.meta.layers[cx.layer].ffn;
        let rows = gate_rows(&cx.giving, &shared, &flight, neurons.store());
        let (range, named) = (cx.gate_range(&flight), cx.named_range(flight.number));
        let gates = &mut cx.gates[range];
        let named = named.map(|range| &cx.named[range]);
        let early = cx.early.of(flight.number, cx.gate_start[flight.number]);
        let mut wanted = flight.live;
        wanted.remove(early.gated);
        let products = gate(
            &shared.kernels,
            geometry,
            rows,
            (flight.count, &wanted, named),
            &cx.x,
            &mut self.gathered,
            gates,
        );
        early.gated.iter().for_each(|i| gates[i] = early.gates[i]);
        let computed = wanted.count();
        cx.gated.add(computed, products);
        let bytes = (computed * geometry.gate_row()) as u64;
        let pred = &shared.pred;
        let cached = match flight.item.source {
            Source::GatePinned { base } if pred.prefers_cached() => {
                Some(neurons.store().cached_of(base as usize, flight.count))
            }
            _ => None,
        };
        let candidates = &flight.live;
        flight.live = pred.survivors(
            cx.layer,
            gates,
            flight.count,
            candidates,
            named,
            cached.as_ref(),
        );
        flight.gated = true;
        if let Some(observer) = &shared.observer {
            let neurons = (shared.entry(cluster).first as usize, flight.count);
            observer.gates(cx.layer, cx.step.position, neurons, gates);
        }
        let hit = if flight.flow == 0 {
            Hit::Hit
        } else {
            Hit::Miss
        };
        cx.record(Stage::Gc, cluster, 1, bytes, hit, flight.flow);
        if !flight.live.is_empty() {
            return Some(flight);
        }
        neurons.store().release(flight.number);
        gio.release(&mut flight);
        cx.retired += 1;
        None
    }
}
