//! What a core does while it would wait: Gate and Up of neurons in memory, of clusters that wait for other neurons.
//! PowerInfer-2 lets a matrix's clusters overtake each other; this lets a cluster's neurons do so, up to Down, whose
//! sum has an order.
//!
//! Only for steps of one token: prompts want most of a cluster, and take the prefill graph.

use forebay_traces::record::{Residency as Hit, Stage};

use crate::computed::Computed;
use crate::contract::{Outbox, Port, Slice, StageActor};
use crate::flight::Flight;
use crate::frame::Frame;
use crate::gathered::Gathered;
use crate::gc::{add_bias, gate};
use crate::live_mask::LiveMask;
use crate::neuron_store::Parts;

/// The stage.
#[derive(Debug)]
pub struct Early {
    inbox: Option<Box<Flight>>,
    gathered: Gathered,
    /// Gates computed since the counts were last taken.
    pub computed: Computed,
}

impl Default for Early {
    fn default() -> Self {
        Self {
            inbox: None,
            gathered: Gathered::new(1),
            computed: Computed::default(),
        }
    }
}

impl Early {
    /// Takes a waiting cluster.
    pub fn push(&mut self, flight: Box<Flight>) {
        debug_assert!(self.inbox.is_none(), "one at a time");
        self.inbox = Some(flight);
    }

    /// Gates of the neurons `here`; returns those that are alive.
    fn gates(
        &mut self,
        frame: &Frame<'_>,
        flight: &mut Flight,
        here: LiveMask,
        out: &mut Outbox,
    ) -> LiveMask {
        let (geometry, n) = (frame.geometry(&flight.item), flight.count);
        let rows = frame.weights.cached(flight);
        let gates = &mut flight.early.gates[..n];
        let wanted = (n, &here, None);
        let gathered = &mut self.gathered;
        let input = frame.input;
        let products = gate(
            frame.kernels,
            geometry,
            rows,
            wanted,
            input,
            gathered,
            gates,
        );
        add_bias(frame.biases(&flight.item)[0], &here, gates);
        let layer = frame.phase.layer;
        let live = frame.rule.survivors(layer, gates, n, &here, None);
        flight.early.gated = here;
        self.computed.add(here.count(), products);
        let bytes = here.count() * geometry.gate_row();
        out.record(part(Stage::Gc, flight, bytes));
        live
    }

    /// Ups of the neurons `live`, if the FFN is gated.
    fn ups(&mut self, frame: &Frame<'_>, flight: &mut Flight, live: LiveMask, out: &mut Outbox) {
        let (geometry, n) = (frame.geometry(&flight.item), flight.count);
        let Some(up) = geometry.up else {
            return;
        };
        let rows = frame.weights.cached(flight);
        let row = |i| rows.up(geometry, i);
        let ups = &mut flight.early.ups[..n];
        let wanted = (n, &live);
        let rows = (row, |_| &[][..]);
        self.gathered
            .dot(frame.kernels, up, rows, wanted, frame.input, ups);
        flight.early.upped = live;
        let bytes = live.count() * geometry.up_row();
        out.record(part(Stage::Udc, flight, bytes));
    }
}

/// A part of a cluster was computed.
fn part(stage: Stage, flight: &Flight, bytes: usize) -> Slice {
    Slice {
        bytes: bytes as u64,
        hit: Hit::Hit,
        ..Slice::plain(stage, flight.item.cluster, 0)
    }
}

impl StageActor for Early {
    /// Computes what it can of the cluster, which then goes back to where it waited.
    fn turn(&mut self, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        let Some(mut flight) = self.inbox.take() else {
            return false;
        };
        let (parts, here) = frame.weights.neurons.here(flight.number);
        let live = match flight.gated {
            true => here,
            false => self.gates(frame, &mut flight, here, out),
        };
        if parts.has(Parts::UP_DOWN) && !live.is_empty() {
            self.ups(frame, &mut flight, live, out);
        }
        out.send(Port::Away, flight);
        true
    }
}
