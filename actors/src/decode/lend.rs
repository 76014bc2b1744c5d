//! Clusters of experts that any core may compute. An expert has few clusters, and each belongs to the core that caches
//! it, so that of a token's experts one core may own far more than another. A core therefore offers those that are
//! here, a few at a time, and one that has nothing else to do takes them. The owner's phase ends when it has all of
//! them back.

use forebay_stages::contract::{Outbox, Port, StageActor};
use forebay_stages::frame::Frame;

use super::stations::{EXPERTS, Station, deliver, reader, take_turn};
use crate::wiring::{Stages, retire};

/// Whether the phase has clusters that cores may lend.
pub(super) fn is_possible(frame: &Frame<'_>) -> bool {
    let is_whole = !frame.weights.experts.gates_first;
    frame.phase.is_routed() && is_whole && frame.lending.has_takers()
}

/// Gives the stages of such a phase their turns until one has done something.
pub(super) fn work(stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
    for station in EXPERTS {
        let worked = match station {
            Station::Gio => take_back(stages, frame) || offer(stages, frame, out),
            _ => take_turn(station, stages, frame, out),
        };
        if worked {
            deliver(station, stages, frame, out);
            return true;
        }
    }
    let taken = take(stages, frame) || stages.pred.take(frame, out);
    if taken {
        deliver(Station::Pred, stages, frame, out);
        // A cluster in memory is computed at once: small ones take hardly longer than a turn.
        if stages.gc.turn(frame, out) {
            deliver(Station::Gc, stages, frame, out);
        }
    }
    taken
}

/// Offers a cluster that is here, if there is room for one.
fn offer(stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
    let (lending, rank) = (frame.lending, frame.rank);
    if !lending.has_room(rank) || !stages.gio.turn(frame, out) {
        return false;
    }
    while let Some((port, flight)) = out.flights.pop_front() {
        debug_assert!(port == Port::Here, "clusters are read whole");
        // What all tokens use beside the experts comes through the stream window.
        let refused = match flight.item.source.key() {
            Some(_) => lending.offer(rank, flight).err(),
            None => Some(flight),
        };
        refused
            .into_iter()
            .for_each(|flight| stages.gc.push(flight));
    }
    true
}

/// Takes a cluster that is offered, the core's own first.
fn take(stages: &mut Stages, frame: &Frame<'_>) -> bool {
    let Some((owner, mut flight)) = frame.lending.take(frame.rank) else {
        return false;
    };
    flight.owner = (owner != frame.rank).then_some(owner);
    stages.gc.push(flight);
    true
}

/// Takes back a cluster that another core has computed.
fn take_back(stages: &mut Stages, frame: &mut Frame<'_>) -> bool {
    let Some(flight) = frame.lending.take_back(frame.rank) else {
        return false;
    };
    retire(stages, frame, flight, reader);
    true
}
