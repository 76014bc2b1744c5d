//! The decode graph at work: in what order its stations have their turns, and what a core does between them.

use forebay_stages::contract::{Outbox, StageActor};
use forebay_stages::frame::Frame;
use forebay_stages::gio::Reader;

use super::lend;
use super::stations::{
    DOWNSTREAM_FIRST, EXPERTS, REQUESTS_FIRST, Station, deliver, reader, take_turn,
};
use crate::wiring::{Stages, Wiring, begin, begin_ahead};

/// The graph.
#[derive(Debug, Default)]
pub struct DecodeGraph {
    /// Whether single neurons are read in the current phase.
    by_neuron: bool,
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
    mut deliver: impl FnMut(Station, &mut Stages, &mut Frame<'_>, &mut Outbox),
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
pub(crate) fn retry(stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) -> bool {
    let Some(number) = frame.weights.neurons.retry_blocked() else {
        return false;
    };
    ready(number, stages, frame, out);
    true
}

/// All neurons of flight `number` are in memory.
pub(crate) fn ready(number: usize, stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) {
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
                false => work(false, stages, frame, out, deliver),
            };
        }
        let worked = retry(stages, frame, out) || work(true, stages, frame, out, deliver);
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
        ready(number, stages, frame, out);
    }
}
