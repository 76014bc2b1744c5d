//! What a core does while it would wait: Gate and Up of those neurons that are here, of clusters that wait for
//! others. PowerInfer-2 lets a matrix's clusters overtake each other; this lets a cluster's neurons do so, up to
//! Down, whose sum has an order.
//!
//! Only one token's: prompts want most of a cluster, and come through the prefill graph.

use std::sync::Arc;

use forebay_plans::residency::Pipeline;
use forebay_stages::gathered::Gathered;
use forebay_stages::gc::gate;
use forebay_stages::live_mask::LiveMask;
use forebay_stages::neuron_rows::NeuronRows;
use forebay_stages::neuron_store::Parts;
use forebay_traces::record::{Residency as Hit, Stage};

use super::context::{CoreContext, Flight};
use super::neurons::NeuronActor;

/// Gates and Ups that GC and UDC find computed already.
#[derive(Debug)]
pub(super) struct EarlyProducts {
    /// Gates before the activation, `[first neuron of the flight..][n]`.
    gates: Vec<f32>,
    /// Likewise.
    ups: Vec<f32>,
    /// Whose Gates are known, `[flights]`.
    gated: Vec<LiveMask>,
    /// Whose Ups are: live ones.
    upped: Vec<LiveMask>,
}

/// The same of one flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early<'a> {
    /// `[n]`, where `gated`.
    pub gates: &'a [f32],
    /// `[n]`, where `upped`.
    pub ups: &'a [f32],
    pub gated: &'a LiveMask,
    pub upped: &'a LiveMask,
}

impl EarlyProducts {
    /// For at most `flights` clusters of a layer, with `neurons` in all.
    pub fn new(flights: usize, neurons: usize) -> Self {
        Self {
            gates: vec![0.0; neurons],
            ups: vec![0.0; neurons],
            gated: vec![LiveMask::NONE; flights],
            upped: vec![LiveMask::NONE; flights],
        }
    }

    /// A new layer begins: nothing is known of it.
    pub fn clear(&mut self) {
        self.gated.fill(LiveMask::NONE);
        self.upped.fill(LiveMask::NONE);
    }

    /// What is known of a flight whose first neuron is the layer's `start`th.
    pub fn of(&self, flight: usize, start: usize) -> Early<'_> {
        Early {
            gates: &self.gates[start..],
            ups: &self.ups[start..],
            gated: &self.gated[flight],
            upped: &self.upped[flight],
        }
    }
}

#[derive(Debug)]
pub(super) struct EarlyActor {
    gathered: Gathered,
}

impl EarlyActor {
    pub fn new() -> Self {
        Self {
            gathered: Gathered::new(1),
        }
    }

    /// Computes what it can of one cluster that waits; false if there is none that it has not looked at.
    pub fn turn(&mut self, cx: &mut CoreContext, neurons: &mut NeuronActor) -> bool {
        if cx.step.n_tokens > 1 || cx.shared.neurons.pipeline != Pipeline::Cluster {
            return false;
        }
        let Some((flight, parts, here, store)) = neurons.next_waiting() else {
            return false;
        };
        let rows = NeuronRows::Cached {
            store,
            flight: flight.number,
        };
        let live = match flight.gated {
            true => here,
            false => self.gates(cx, flight, here, rows),
        };
        if parts.has(Parts::UP_DOWN) && !live.is_empty() {
            self.ups(cx, flight, live, rows);
        }
        true
    }

    /// Gates of the neurons `here`; returns those that are alive.
    fn gates(
        &mut self,
        cx: &mut CoreContext,
        flight: &Flight,
        here: LiveMask,
        rows: NeuronRows<'_>,
    ) -> LiveMask {
        let shared = Arc::clone(&cx.shared);
        let (n, number) = (flight.count, flight.number);
        let geometry = &shared.bundle.meta.layers[cx.layer].ffn;
        let gates = &mut cx.early.gates[cx.gate_start[number]..][..n];
        let wanted = (n, &here, None);
        let gathered = &mut self.gathered;
        let products = gate(
            &shared.kernels,
            geometry,
            rows,
            wanted,
            &cx.x,
            gathered,
            gates,
        );
        let live = shared.pred.survivors(cx.layer, gates, n, &here, None, None);
        cx.early.gated[number] = here;
        cx.gated.add(here.count(), products);
        let bytes = (here.count() * geometry.gate_row()) as u64;
        cx.record(Stage::Gc, flight.item.cluster, 0, bytes, Hit::Hit, 0);
        live
    }

    /// Ups of the neurons `live`.
    fn ups(&mut self, cx: &mut CoreContext, flight: &Flight, live: LiveMask, rows: NeuronRows<'_>) {
        let shared = Arc::clone(&cx.shared);
        let (n, number) = (flight.count, flight.number);
        let geometry = &shared.bundle.meta.layers[cx.layer].ffn;
        let row = |i| rows.up(geometry, i);
        let ups = &mut cx.early.ups[cx.gate_start[number]..][..n];
        let gathered = &mut self.gathered;
        let rows = (row, |_| &[][..]);
        gathered.dot(&shared.kernels, geometry.up, rows, (n, &live), &cx.x, ups);
        cx.early.upped[number] = live;
        let bytes = (live.count() * geometry.up_row()) as u64;
        cx.record(Stage::Udc, flight.item.cluster, 0, bytes, Hit::Hit, 0);
    }
}
