//! The GC actor: computes Gate of whichever cluster is here.

use std::collections::VecDeque;

use forebay_stages::gc::{GateRows, gate};
use forebay_traces::record::{Residency as Hit, Stage};

use super::context::{CoreContext, Flight};
use super::gio::GioActor;
use super::program::Source;
use super::udc::UdcActor;
use super::udio::UdioActor;

#[derive(Debug, Default)]
pub(super) struct GcActor {
    inbox: VecDeque<Flight>,
}

impl GcActor {
    pub fn new(max_flights: usize) -> Self {
        Self {
            inbox: VecDeque::with_capacity(max_flights),
        }
    }

    pub fn push(&mut self, flight: Flight) {
        self.inbox.push_back(flight);
    }

    /// Computes one cluster's Gate and sends it on: to UDC with its data, to UDIO for its neurons, or
    /// nowhere if no neuron is alive.
    pub fn turn(
        &mut self,
        cx: &mut CoreContext,
        gio: &mut GioActor,
        udio: &mut UdioActor,
        udc: &mut UdcActor,
    ) -> bool {
        let Some(mut flight) = self.inbox.pop_front() else {
            return false;
        };
        let cluster = flight.item.cluster;
        let shared = std::sync::Arc::clone(&cx.shared);
        let geometry = &shared.bundle.meta.layers[cx.layer].ffn;
        let rows = match (&flight.buffer, flight.item.source) {
            (Some(slot), _) => GateRows::Whole(slot),
            (None, Source::Neurons { .. }) => {
                GateRows::Compact(shared.resident.bytes(cluster as usize))
            }
            (None, _) => GateRows::Whole(shared.resident.bytes(cluster as usize)),
        };
        let range = cx.gate_range(&flight);
        let gates = &mut cx.gates[range];
        flight.live = gate(
            &shared.kernels,
            geometry,
            rows,
            flight.count,
            &cx.x,
            &shared.pred,
            gates,
        );
        let hit = if flight.buffer.is_some() {
            Hit::Miss
        } else {
            Hit::Hit
        };
        let bytes = (flight.count * geometry.gate_row()) as u64;
        cx.record(Stage::Gc, cluster, 1, bytes, hit, flight.flow);
        if flight.live.is_empty() {
            gio.release(&mut flight);
            cx.retired += 1;
        } else if matches!(flight.item.source, Source::Neurons { .. }) {
            udio.want(cx, flight, udc);
        } else {
            udc.push(flight);
        }
        true
    }
}
