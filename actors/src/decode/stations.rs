//! The stations of the decode graph: how a neuron cluster moves from one to the next when tokens are generated.
//! `deliver` is the diagram.
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
//! missing in theirs. GIO and UDIO request what is missing from the single I/O actor. Of experts that are read whole,
//! GIO offers a few of those that are here to all cores (`lend.rs`). Nothing else leaves the core.

use forebay_stages::contract::{Outbox, Port, StageActor};
use forebay_stages::frame::Frame;
use forebay_stages::gio::Reader;

use crate::wiring::{Stages, retire};

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
pub(super) const DOWNSTREAM_FIRST: [Station; 6] = [
    Station::Udc,
    Station::Udio,
    Station::Early,
    Station::Gc,
    Station::Gio,
    Station::Pred,
];
/// If single neurons are read, or experts in parts, the stages that request them come first: all of a layer's reads are
/// in flight while its clusters are computed.
pub(super) const REQUESTS_FIRST: [Station; 6] = [
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
