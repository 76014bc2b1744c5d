//! The prefill graph: how a neuron cluster moves when a prompt is read. `deliver` is the diagram.
//!
//! ```text
//!   Pred ─┬─ here ─────────────────────▶ GC ─ here ─▶ UDC ─ done ─▶ HandOver ─▶ the core's share of the FFN
//!         └─ away ─▶ Preload ─ here ─────▶ ▲ ◀─ failed ─ Device ─ done ─▶ ▲     │
//!                       ▲ window └─ if there is room ─────▶ ▲                   ▼ neurons of the last tokens
//!                       └──────────────────── neuron cache ◀────────────────────┘
//! ```
//!
//! A device computes some of the streamed clusters, as far as the plan says and its window has room. Then clusters are
//! handed on before one is computed, so that they are copied meanwhile.
//!
//! Preload reads the clusters of the next layers, in the order of use, into a window. If decoding caches neurons and
//! streams nothing, the window's memory is borrowed from the end of the neuron cache (`window.rs`); if decoding streams
//! clusters, Preload takes over GIO's window. Nothing is read by neuron.

use forebay_stages::contract::{Outbox, Port, StageActor};
use forebay_stages::flight::Flight;
use forebay_stages::frame::Frame;
use forebay_stages::gio::Reader;
use forebay_stages::preload::hand_over;
use forebay_traces::record::Stage;

use crate::wiring::{Stages, Wiring, begin, retire};

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Station {
    Device,
    Udc,
    Gc,
    Preload,
    Pred,
}

/// Downstream first, so that buffers come back early.
const ORDER: [Station; 5] = [
    Station::Device,
    Station::Udc,
    Station::Gc,
    Station::Preload,
    Station::Pred,
];

/// A device could have some: they are handed on before one is computed.
const UPLOADS: [Station; 5] = [
    Station::Device,
    Station::Preload,
    Station::Pred,
    Station::Udc,
    Station::Gc,
];

/// With experts, as many clusters as there are flights are requested before the first of them is computed.
const EXPERTS: [Station; 5] = [
    Station::Pred,
    Station::Device,
    Station::Udc,
    Station::Gc,
    Station::Preload,
];

/// The graph.
#[derive(Debug, Default)]
pub struct PrefillGraph;

/// Streamed clusters come through Preload.
fn reader(stages: &mut Stages) -> &mut Reader {
    &mut stages.preload.reader
}

/// Which stage receives what, sink first.
fn deliver(from: Station, stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) {
    while let Some((port, flight)) = out.flights.pop_front() {
        match (from, port) {
            (Station::Udc, _) => {
                hand_over(frame, &flight, out);
                retire(stages, frame, flight, reader);
            }
            (_, Port::Done) => retire(stages, frame, flight, reader),
            (Station::Gc, port) => {
                debug_assert!(port == Port::Here, "clusters are read whole");
                stages.udc.push(flight);
            }
            (Station::Preload, _) => compute(stages, frame, flight),
            (Station::Device, _) => stages.gc.push(flight),
            (Station::Pred, Port::Here) => stages.gc.push(flight),
            (Station::Pred, _) => stages.preload.push(frame, flight),
        }
    }
}

/// A cluster that has been read is computed by the device, or here.
fn compute(stages: &mut Stages, frame: &Frame<'_>, flight: Box<Flight>) {
    let refused = match &mut stages.uploader {
        Some(uploader) => uploader.offer(frame, flight).err(),
        None => Some(flight),
    };
    refused
        .into_iter()
        .for_each(|flight| stages.gc.push(flight));
}

impl Wiring for PrefillGraph {
    fn reader<'a>(&self, stages: &'a mut Stages) -> &'a mut Reader {
        reader(stages)
    }

    fn reading_stage(&self) -> Stage {
        Stage::Preload
    }

    fn begin(&mut self, stages: &mut Stages, frame: &mut Frame<'_>) {
        begin(reader, stages, frame);
    }

    fn turn(&mut self, stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        let uploads = stages.uploader.as_ref().is_some_and(|u| u.asks());
        let order = match frame.phase.is_routed() {
            true => EXPERTS,
            false if uploads => UPLOADS,
            false => ORDER,
        };
        for station in order {
            let worked = match station {
                Station::Device => match &mut stages.uploader {
                    Some(uploader) => uploader.turn(frame, &mut stages.udc, out),
                    None => false,
                },
                Station::Udc => stages.udc.turn_before(frame, stages.gc.next(), out),
                Station::Gc => stages.gc.turn(frame, out),
                Station::Preload => stages.preload.turn(frame, out),
                Station::Pred => stages.pred.turn(frame, out),
            };
            if worked {
                deliver(station, stages, frame, out);
                return true;
            }
        }
        let taken = stages.pred.take(frame, out);
        if taken {
            deliver(Station::Pred, stages, frame, out);
        }
        taken
    }

    fn ready(
        &mut self,
        _number: usize,
        _stages: &mut Stages,
        _frame: &mut Frame<'_>,
        _out: &mut Outbox,
    ) {
        // No flight of this graph waits for single neurons.
    }
}
