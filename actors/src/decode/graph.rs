//! The decode graph: how a neuron cluster moves when tokens are generated. `deliver` is the diagram.
//!
//! ```text
//!   Pred ─┬─ here ───────────────▶ GC ─┬─ here ───────────────▶ UDC ─ done ─▶ the core's share of the FFN
//!         └─ away ─▶ GIO ─ here ──▶ ▲  └─ away ─▶ UDIO ─ here ──▶ ▲
//!                    │ ▲ part           part │ ▲
//!                    ▼ │                     ▼ │
//!                    Early ◀─────────────▶ Early      Gate and Up of neurons in memory, while others are read
//! ```
//!
//! Clusters of experts go to GIO whether they are in the cache or not, and by UDIO if Up or Down of a live neuron is
//! missing in theirs. GIO and UDIO request what is missing from the single I/O actor. Of experts that are read whole, GIO
//! offers a few of those that are here to all cores (`lend.rs`). Nothing else leaves the core.

use forebay_stages::contract::{Outbox, Port, StageActor};
use forebay_stages::frame::Frame;
use forebay_stages::gio::Reader;

use super::lend;
use crate::wiring::{Stages, Wiring, begin, begin_ahead, retire};

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Station {
    Udc,
    Udio,
    Early,
    Gc,
    Gio,
    Pred,
}

/// Downstream first, so that buffers come back early.
const DOWNSTREAM_FIRST: [Station; 6] = [
    Station::Udc,
    Station::Udio,
    Station::Early,
    Station::Gc,
    Station::Gio,
    Station::Pred,
];
/// If single neurons are read, or experts in parts, the stages that request them come first: all of a layer's reads are in flight while its
/// clusters are computed.
const REQUESTS_FIRST: [Station; 6] = [
    Station::Udio,
    Station::Gio,
    Station::Pred,
    Station::Early,
    Station::Gc,
    Station::Udc,
];

/// With experts, all clusters are requested before the first of them is computed; then buffers come back early.
pub(super) const EXPERTS: [Station; 6] = [
    Station::Pred,
    Station::Udc,
    Station::Udio,
    Station::Early,
    Station::Gc,
    Station::Gio,
];

/// The graph.
#[derive(Debug, Default)]
pub struct DecodeGraph {
    /// Whether single neurons are read in the current phase.
    by_neuron: bool,
}

/// Streamed clusters come through GIO.
pub(crate) fn reader(stages: &mut Stages) -> &mut Reader {
    &mut stages.gio.reader
}

/// Which stage receives what, sink first.
pub(crate) fn deliver(from: Station, stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) {
    while let Some((port, flight)) = out.flights.pop_front() {
        match (from, port) {
            (_, Port::Done) => retire(stages, frame, flight, reader),
            (Station::Udio, Port::Here) => stages.udc.push(flight),
            (Station::Gc, Port::Here) => stages.udc.push(flight),
            (Station::Gc, _) => stages.udio.push(flight),
            (Station::Gio, Port::Here) => stages.gc.push(flight),
            (Station::Pred, Port::Here) => stages.gc.push(flight),
            (Station::Pred, _) => stages.gio.push(frame, flight),
            (Station::Gio | Station::Udio, _) => stages.early.push(flight),
            // Back to where it waits; it leaves from there at once if the rest has arrived
            // meanwhile.
            (Station::Early, Port::Here) if flight.gated => stages.udc.push(flight),
            (Station::Early, Port::Here) => stages.gc.push(flight),
            (Station::Early, _) if flight.gated => stages.udio.waiting.take_back(flight, out),
            (Station::Early, _) => stages.gio.waiting.take_back(flight, out),
            (Station::Udc, _) => retire(stages, frame, flight, reader),
        }
    }
}

/// Gives one stage a turn.
pub(super) fn take_turn(
    station: Station,
    stages: &mut Stages,
    frame: &mut Frame<'_>,
    out: &mut Outbox,
) -> bool {
    match station {
        Station::Udc => stages.udc.turn_before(frame, stages.gc.next(), out),
        Station::Udio => stages.udio.turn(frame, out),
        Station::Early => stages.early.turn(frame, out),
        Station::Gc => stages.gc.turn(frame, out),
        Station::Gio => stages.gio.turn(frame, out),
        Station::Pred => stages.pred.turn(frame, out),
    }
}

/// While all stages wait for reads: sends a cluster that waits to Early; false if none has anything for it.
fn send_part(stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
    let station = if stages.gio.waiting.send_part(frame, out) {
        Station::Gio
    } else if stages.udio.waiting.send_part(frame, out) {
        Station::Udio
    } else {
        return false;
    };
    deliver(station, stages, frame, out);
    true
}

/// Gives the stages their turns until one has done something, and has it delivered.
pub(crate) fn work(
    by_neuron: bool,
    stages: &mut Stages,
    frame: &mut Frame<'_>,
    out: &mut Outbox,
    deliver: &mut dyn FnMut(Station, &mut Stages, &mut Frame<'_>, &mut Outbox),
) -> bool {
    let order = match by_neuron {
        true => REQUESTS_FIRST,
        false if frame.phase.is_routed() => match frame.weights.experts.gates_first {
            true => REQUESTS_FIRST,
            false => EXPERTS,
        },
        false => DOWNSTREAM_FIRST,
    };
    for station in order {
        if take_turn(station, stages, frame, out) {
            deliver(station, stages, frame, out);
            return true;
        }
    }
    let taken = stages.pred.take(frame, out);
    if taken {
        deliver(Station::Pred, stages, frame, out);
        // A cluster in memory is computed at once: small ones take hardly longer than a turn.
        if !by_neuron && stages.gc.turn(frame, out) {
            deliver(Station::Gc, stages, frame, out);
        }
    }
    taken
}

/// A cluster that waited for room in the cache may have all of its neurons by now.
pub(crate) fn retry(
    stages: &mut Stages,
    frame: &mut Frame<'_>,
    out: &mut Outbox,
    deliver: &mut dyn FnMut(Station, &mut Stages, &mut Frame<'_>, &mut Outbox),
) -> bool {
    let Some(number) = frame.weights.neurons.retry_blocked() else {
        return false;
    };
    ready(number, stages, frame, out, deliver);
    true
}

/// All neurons of flight `number` are in memory.
pub(crate) fn ready(
    number: usize,
    stages: &mut Stages,
    frame: &mut Frame<'_>,
    out: &mut Outbox,
    deliver: &mut dyn FnMut(Station, &mut Stages, &mut Frame<'_>, &mut Outbox),
) {
    if stages.gio.waiting.ready(number, out) {
        deliver(Station::Gio, stages, frame, out);
    } else if stages.udio.waiting.ready(number, out) {
        deliver(Station::Udio, stages, frame, out);
    }
}

impl Wiring for DecodeGraph {
    fn reader<'a>(&self, stages: &'a mut Stages) -> &'a mut Reader {
        reader(stages)
    }

    fn begin(&mut self, stages: &mut Stages, frame: &mut Frame<'_>) {
        self.by_neuron = frame.phase.is_by_neuron();
        begin(reader, stages, frame);
    }

    fn begin_ahead(&mut self, stages: &mut Stages, frame: &Frame<'_>) {
        if frame.phase.can_ask_ahead() {
            begin_ahead(stages, frame);
        }
    }

    fn turn_ahead(&mut self, stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        let station = if stages.gio.ask(frame, out) {
            Station::Gio
        } else if stages.pred.turn(frame, out) {
            Station::Pred
        } else {
            return false;
        };
        deliver(station, stages, frame, out);
        true
    }

    fn turn(&mut self, stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
        if !self.by_neuron {
            return match lend::is_possible(frame) {
                true => lend::work(stages, frame, out),
                false => work(false, stages, frame, out, &mut deliver),
            };
        }
        let worked =
            retry(stages, frame, out, &mut deliver) || work(true, stages, frame, out, &mut deliver);
        // Reads that are due are started before the next turn.
        if worked || frame.weights.neurons.can_read() {
            return true;
        }
        frame.n_tokens() == 1 && send_part(stages, frame, out)
    }

    fn ready(
        &mut self,
        number: usize,
        stages: &mut Stages,
        frame: &mut Frame<'_>,
        out: &mut Outbox,
    ) {
        ready(number, stages, frame, out, &mut deliver);
    }
}
