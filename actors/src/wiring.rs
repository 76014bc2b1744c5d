//! How the stages of a core are connected: the interface of every graph. The graphs are [`crate::decode::graph`] and
//! [`crate::prefill::graph`]; [`crate::baselines`] has those that only benchmarks choose.

use forebay_plans::program::{Item, Part, Phase, Work};
use forebay_queues::slab::Slot;
use forebay_stages::contract::{Outbox, Turn};
use forebay_stages::early::Early;
use forebay_stages::flight::Flight;
use forebay_stages::frame::Frame;
use forebay_stages::gc::Gc;
use forebay_stages::gio::{Gio, Reader};
use forebay_stages::pred::Pred;
use forebay_stages::preload::Preload;
use forebay_stages::rows::Rows;
use forebay_stages::udc::Udc;
use forebay_stages::udio::Udio;
use forebay_traces::record::Stage;

use crate::device::Uploader;

/// The stages of one core.
#[derive(Debug)]
pub struct Stages {
    /// Plain projections.
    pub rows: Rows,
    /// Which neurons are computed.
    pub pred: Pred,
    /// Reads Gate.
    pub gio: Gio,
    /// Reads whole clusters for prompts.
    pub preload: Preload,
    /// Computes Gate.
    pub gc: Gc,
    /// Computes parts of waiting clusters.
    pub early: Early,
    /// Reads Up and Down.
    pub udio: Udio,
    /// Computes Up and Down.
    pub udc: Udc,
    /// Has a device compute streamed clusters of prompts, if there is one.
    pub uploader: Option<Box<Uploader>>,
    /// Neuron clusters of the phase that are done.
    pub retired: usize,
    /// The core to be told that it has a cluster back.
    pub gave_back_to: Option<usize>,
    /// Number of the phase whose neurons are asked for before it begins, if there is one.
    pub ahead: Option<usize>,
}

/// The sink of every graph: a flight's buffer goes back to the window that `reader` names, its lease to the neuron
/// cache or the expert cache, and the flight itself to Pred; or all of it to the core that lent it.
pub fn retire(
    stages: &mut Stages,
    frame: &mut Frame<'_>,
    mut flight: Box<Flight>,
    reader: fn(&mut Stages) -> &mut Reader,
) {
    if let Some(owner) = flight.owner.take() {
        frame.lending.give_back(owner, flight);
        stages.gave_back_to = Some(owner);
        return;
    }
    if flight.is_by_neuron() {
        frame.weights.neurons.release(flight.number);
    }
    if let Some(buffer) = flight.buffer.take() {
        match flight.item.source.key() {
            Some(key) => frame.weights.experts.give_back(key, buffer),
            None => reader(stages).release(flight.item, buffer),
        }
    }
    stages.pred.take_back(flight);
    stages.retired += 1;
}

/// A way of connecting the stages.
pub trait Wiring: std::fmt::Debug + Send {
    /// The window of streamed clusters.
    fn reader<'a>(&self, stages: &'a mut Stages) -> &'a mut Reader;

    /// The stage, in the trace, that passes on what is read through it.
    fn reading_stage(&self) -> Stage {
        Stage::Gio
    }

    /// A phase begins.
    fn begin(&mut self, stages: &mut Stages, frame: &mut Frame<'_>);

    /// Predictors can name the neurons of the frame's phase, which has not begun: they are asked for from now on, if
    /// the graph asks ahead.
    fn begin_ahead(&mut self, _stages: &mut Stages, _frame: &Frame<'_>) {}

    /// Asks for some of these neurons; false if all have been asked for.
    fn turn_ahead(
        &mut self,
        _stages: &mut Stages,
        _frame: &mut Frame<'_>,
        _out: &mut Outbox,
    ) -> bool {
        false
    }

    /// Gives the stages of a phase with neuron clusters a turn, and delivers what they send; true if anything was done.
    fn turn(&mut self, stages: &mut Stages, frame: &mut Frame<'_>, out: &mut Outbox) -> bool;

    /// All neurons of flight `number` are in the cache: it continues.
    fn ready(
        &mut self,
        number: usize,
        stages: &mut Stages,
        frame: &mut Frame<'_>,
        out: &mut Outbox,
    );

    /// Whether all neuron clusters of the phase are done.
    fn is_done(&self, stages: &Stages, phase: &Phase) -> bool {
        let sent = stages.pred.sent(phase);
        sent.is_some_and(|sent| stages.retired >= sent)
    }

    /// Flights that the graph itself holds back.
    fn held(&self) -> usize {
        0
    }

    /// Whether reads that are due are started now.
    fn starts_reads(&self) -> bool {
        true
    }

    /// Whether the core waits although it might have work; `reading` tells whether reads are in flight.
    fn waits(&mut self, _reading: bool) -> bool {
        false
    }

    /// Adjusts a turn's result.
    fn after(&mut self, turn: Turn) -> Turn {
        turn
    }
}

/// Returns the buffer of streamed rows to the window.
pub fn release(reader: &mut Reader, returned: Option<(Item, Slot)>) {
    if let Some((item, buffer)) = returned {
        reader.release(item, buffer);
    }
}

/// What every graph does at the beginning of a phase.
pub fn begin(reader: fn(&mut Stages) -> &mut Reader, stages: &mut Stages, frame: &mut Frame<'_>) {
    match &frame.phase.work {
        Work::Rows(rows) => {
            for item in stages.rows.begin(rows) {
                reader(stages).wait_for_rows(item);
            }
        }
        Work::Neurons { part, .. } => {
            let is_new = stages.ahead.take() != Some(frame.number);
            if is_new {
                begin_waiting(stages);
            }
            if *part != Part::UpDown {
                if is_new {
                    begin_flights(stages);
                }
                frame.expert_input.begin();
                stages
                    .udc
                    .begin(frame.n_tokens() * frame.bundle.meta.network.d_model);
            }
        }
        Work::Mixer { .. } => {}
    }
}

/// The neurons of the frame's phase are asked for before it begins.
pub fn begin_ahead(stages: &mut Stages, frame: &Frame<'_>) {
    begin_waiting(stages);
    begin_flights(stages);
    stages.ahead = Some(frame.number);
}

fn begin_waiting(stages: &mut Stages) {
    stages.gio.waiting.begin();
    stages.udio.waiting.begin();
}

fn begin_flights(stages: &mut Stages) {
    stages.pred.begin();
    stages.retired = 0;
}
