//! The UDC actor: computes Up and Down of whichever cluster is here, and retires it.

use std::collections::VecDeque;

use forebay_models::bundle::FfnLayout;
use forebay_stages::gathered::first_rows;
use forebay_stages::kernels::Gather;
use forebay_stages::neuron_rows::NeuronRows;
use forebay_stages::neuron_store::NeuronStore;
use forebay_stages::udc::{ClusterWork, UdcScratch, up_down};
use forebay_traces::record::{Residency as Hit, Stage};

use super::context::{CoreContext, Flight};
use super::gc::gate_rows;
use super::gio::GioActor;
use super::prefill::hand_over;
use super::program::Source;
use crate::fault::Fault;

#[derive(Debug)]
pub(super) struct UdcActor {
    inbox: VecDeque<Flight>,
    scratch: UdcScratch,
}

impl UdcActor {
    pub fn new(max_flights: usize, scratch: UdcScratch) -> Self {
        Self {
            inbox: VecDeque::with_capacity(max_flights),
            scratch,
        }
    }

    pub fn push(&mut self, flight: Flight) {
        self.inbox.push_back(flight);
    }

    /// Clusters that are here.
    pub fn waiting(&self) -> usize {
        self.inbox.len()
    }

    /// Computes one cluster, adds its share to the accumulator and gives its memory back. The Gates of `next` are
    /// asked for meanwhile.
    pub fn turn(
        &mut self,
        cx: &mut CoreContext,
        gio: &mut GioActor,
        store: &mut NeuronStore,
        next: Option<&Flight>,
    ) -> bool {
        let Some(mut flight) = self.inbox.pop_front() else {
            return false;
        };
        let cluster = flight.item.cluster;
        let shared = std::sync::Arc::clone(&cx.shared);
        let geometry = &shared.bundle.meta.layers[cx.layer].ffn;
        let cached = matches!(
            flight.item.source,
            Source::Neurons { .. } | Source::GatePinned { .. }
        );
        let rows = match &flight.buffer {
            _ if cached => NeuronRows::Cached {
                store,
                flight: flight.number,
            },
            Some(slot) => NeuronRows::Whole(slot),
            None => NeuronRows::Whole(cx.giving.bytes(&shared.resident, cluster)),
        };
        let next = next.filter(|_| geometry.layout == FfnLayout::Neuron);
        let (next, n_next) = next.map_or(([&[][..]; Gather::NEXT], 0), |next| {
            let rows = gate_rows(&cx.giving, &shared, next, store);
            first_rows(&next.live, |i| rows.gate(geometry, i))
        });
        let gates = &cx.gates[cx.gate_range(&flight)];
        let early = cx.early.of(flight.number, cx.gate_start[flight.number]);
        let work = ClusterWork {
            geometry,
            n: flight.count,
            live: flight.live,
            gates,
            rows,
            ups: (early.upped, early.ups),
            next: &next[..n_next],
        };
        let early_bytes = early.upped.count() * geometry.up_row();
        let done = up_down(
            &shared.kernels,
            &work,
            &cx.x,
            shared.pred.activation(),
            &mut self.scratch,
            &mut cx.acc,
        );
        match done {
            Ok(pairs) => cx.live.add(flight.live.count(), pairs),
            Err(_) => cx.fault(Fault::OutOfRange { layer: cx.layer }),
        }
        let bytes = (flight.live.count() * geometry.touched_per_neuron() - early_bytes) as u64;
        let (hit, flow) = match (flight.flow, cached) {
            (0, _) => (Hit::Hit, 0),
            (flow, true) => (Hit::Miss, flow),
            (_, false) => (Hit::Miss, 0),
        };
        cx.record(Stage::Udc, cluster, 1, bytes, hit, flow);
        hand_over(cx, &flight, store);
        if cached {
            store.release(flight.number);
        } else if flight.buffer.is_some() {
            cx.counts.misses += flight.live.count() as u64;
        } else {
            cx.counts.hits += flight.live.count() as u64;
        }
        gio.release(&mut flight);
        cx.retired += 1;
        true
    }
}
