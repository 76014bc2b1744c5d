//! A compute core: interprets its program, phase by phase, gives its stages turns, and accounts for every nanosecond.
//!
//! It knows no architecture: the program decides what is computed, the graph decides how clusters move. It waits for
//! the other cores only between phases; inside a phase it computes whichever cluster is in memory, and if none is, it
//! waits for its own reads.

mod arrivals;
mod census;
mod device;
mod experts;
mod mix;
mod parts;
mod phases;
mod recorder;
mod residual;
mod resize;
mod scratch;
mod surroundings;
mod thread;

use std::sync::Arc;

use forebay_models::bundle::HotNeuron;
use forebay_plans::program::Program;
use forebay_queues::doorbell::Bell;
use forebay_queues::exchange::Member;
use forebay_queues::lane::{LaneRx, LaneTx, SendError};
use forebay_stages::contract::{Outbox, Turn};
use forebay_stages::expert_input::ExpertInput;
use forebay_stages::weights::Weights;
use forebay_traces::lane::TraceLane;
use forebay_traces::record::Reason;

use crate::device::DeviceLink;
use crate::fault::Fault;
use crate::io::ReadFault;
use crate::io_link::IoLink;
use crate::prefill::{PrefillGraph, Prompts};
use crate::shared::Shared;
use crate::step::{Sizes, Step, StepDone};
use crate::wiring::{Stages, Wiring};
use mix::Mixers;
use recorder::Recorder;
use residual::Residual;

pub use census::Census;
pub use parts::max_rows;
pub(crate) use parts::{CoreParts, build_core, most_reads};
pub use scratch::scratch_bytes_for;

/// What a core is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between two steps.
    Idle,
    /// It has published its rows of the input of the phase of this number; others may not have.
    AwaitRows { epoch: u64, phase: usize },
    /// In the phase of this number.
    Phase(usize),
    /// It has finished the phase of this number; others may not have.
    Await { epoch: u64, phase: usize },
    /// Between two steps, until nothing is read into what the caches give back.
    ResizeCaches,
    /// Between two steps, until a device has the clusters of the first `keep` phases and no others.
    ResizeDevice { keep: usize },
    /// Between two steps, while clusters are evicted or read back.
    Resize,
    /// It has ended.
    Finished,
}

/// A compute core without its thread: the caller decides when it gets a turn, and how it sleeps.
#[derive(Debug)]
pub struct Core {
    shared: Arc<Shared>,
    rank: usize,
    bell: Bell,
    /// The bell's epoch before the core last looked for work.
    seen: u64,
    blocked: bool,
    state: State,
    step: Step,
    /// What `step` is between steps: even a list of no tokens is allocated, so it is made once.
    no_step: Step,
    /// The decode graph's program.
    program: Program,
    prompts: Prompts,
    decode: Box<dyn Wiring>,
    prefill: PrefillGraph,
    stages: Stages,
    mixers: Mixers,
    residual: Residual,
    expert_input: ExpertInput,
    weights: Weights,
    out: Outbox,
    /// Reads of whole clusters that failed, by directory index.
    unread: Vec<(u32, ReadFault)>,
    recorder: Recorder,
    member: Member,
    io: IoLink,
    /// Core 0's, if there is a device.
    device: Option<Box<DeviceLink>>,
    commands: LaneRx<Step>,
    done: LaneTx<StepDone>,
    /// What is kept in memory.
    sizes: Sizes,
}

impl Core {
    /// Gives the core a turn. [`Turn::Blocked`]: it may sleep until [`Core::is_rung`].
    #[inline]
    pub fn turn(&mut self) -> Turn {
        // Read before looking for work: a ring in between ends the sleep at once.
        self.seen = self.bell.epoch();
        if self.blocked {
            self.recorder.wake();
        }
        let turn = self.work();
        let layer = self.layer();
        match turn {
            Turn::Progress => {
                // Between two steps, it idles until the next one begins.
                if !matches!(self.state, State::Idle) {
                    self.recorder.end_stall(layer);
                }
                self.blocked = false;
            }
            Turn::Blocked(reason) => {
                self.recorder.begin_stall(reason, layer);
                self.blocked = true;
            }
            Turn::Finished => {}
        }
        turn
    }

    /// Whether the bell was rung since the last turn began.
    pub fn is_rung(&self) -> bool {
        self.bell.epoch() != self.seen
    }

    fn work(&mut self) -> Turn {
        self.collect_arrivals();
        let wiring = self.wiring();
        if wiring.starts_reads() {
            self.start_reads();
        }
        let reading = self.is_reading();
        let turn = match self.wiring_mut().waits(reading) {
            true => Turn::Blocked(self.waits_for()),
            false => {
                let turn = self.take_turn();
                self.wiring_mut().after(turn)
            }
        };
        if matches!(turn, Turn::Blocked(_)) && self.member.is_aborted() {
            // Another thread has ended: this core would wait for ever.
            self.state = State::Finished;
            return Turn::Finished;
        }
        turn
    }

    fn take_turn(&mut self) -> Turn {
        match self.state {
            State::Idle => self.take_command(),
            State::AwaitRows { epoch, phase } => self.await_rows_turn(epoch, phase),
            State::Phase(phase) => self.phase_turn(phase),
            State::Await { epoch, phase } => self.await_turn(epoch, phase),
            State::ResizeCaches => self.cache_resize_turn(),
            State::ResizeDevice { keep } => self.device_resize_turn(keep),
            State::Resize => self.resize_turn(),
            State::Finished => Turn::Finished,
        }
    }

    fn take_command(&mut self) -> Turn {
        let Some(step) = self.commands.try_recv() else {
            if self.commands.is_closed() {
                self.state = State::Finished;
                return Turn::Finished;
            }
            return Turn::Blocked(Reason::Idle);
        };
        self.recorder.begin_step();
        self.step = step;
        debug_assert!(self.step.tokens.places.len() <= self.sizes.max_tokens);
        if let Some(sizes) = self.step.resize {
            self.begin_resize(sizes);
            return Turn::Progress;
        }
        let tokens = self.step.tokens.places.len();
        self.recorder.mark_step(self.step.kind(), tokens);
        self.weights.view.look();
        // Done now if something was in the way when it was requested.
        self.resize_caches();
        self.begin_graph();
        let clusters = self.program().streamed(self.step.wants_logits());
        if self.step.read_again {
            self.unread.clear();
            self.stages.gio.reader.distrust();
            self.stages.preload.reader.distrust();
        }
        // A draft uses nothing of the window, which is filled for the next step meanwhile.
        self.reader().window().begin_pass(clusters);
        self.mixers.begin_step(&self.step);
        self.begin_phase(0);
        Turn::Progress
    }

    /// Chooses the graph for the step.
    fn begin_graph(&mut self) {
        let of_step = (self.step.tokens.places.len(), self.step.more);
        let store = &mut self.weights.neurons;
        let handed_over = self.prompts.begin_step(of_step, &mut self.stages, store);
        if let Some(slice) = handed_over {
            self.recorder.record(slice, 0);
        }
    }

    /// What to do until all cores have arrived at an exchange of phase `phase`; `None` once they have.
    fn wait_for_all(&mut self, epoch: u64, phase: usize) -> Option<Turn> {
        match self.member.complete(epoch) {
            Ok(true) => None,
            Ok(false) => Some(Turn::Blocked(self.barrier(phase))),
            Err(_aborted) => {
                self.state = State::Finished;
                Some(Turn::Finished)
            }
        }
    }

    /// Begins the phase's work once all cores have published their rows of its input.
    fn await_rows_turn(&mut self, epoch: u64, phase: usize) -> Turn {
        if let Some(turn) = self.wait_for_all(epoch, phase) {
            return turn;
        }
        self.state = State::Phase(phase);
        self.begin_work(phase);
        Turn::Progress
    }

    /// Goes on with the next phase once all cores have finished this one.
    fn await_turn(&mut self, epoch: u64, phase: usize) -> Turn {
        if let Some(turn) = self.wait_for_all(epoch, phase) {
            return turn;
        }
        let next = self.program().phases.get(phase + 1);
        let skips = |only_for_logits: bool| only_for_logits && !self.step.wants_logits();
        if next.is_some_and(|next| !skips(next.only_for_logits)) {
            self.begin_phase(phase + 1);
            return Turn::Progress;
        }
        self.state = State::Idle;
        self.weights.experts.end_step();
        let store = &mut self.weights.neurons;
        store.end_step();
        self.prompts
            .end_step(self.step.more, &mut self.stages, store);
        self.report();
        Turn::Progress
    }

    /// Tells the engine thread that the step is over, and reports it.
    fn report(&mut self) {
        let neurons = self.weights.neurons.take_counts();
        let stages = &mut self.stages;
        let whole = std::mem::take(&mut stages.udc.counts);
        let gated = std::mem::take(&mut stages.gc.computed);
        let early = std::mem::take(&mut stages.early.computed);
        let live = std::mem::take(&mut stages.udc.computed);
        let left_out = std::mem::take(&mut stages.pred.left_out);
        let layer = self.layer();
        let (charged_before, charged) = self.recorder.end_step(layer);
        // The engine thread takes the tokens back for the next step.
        self.step = self.no_step.clone();
        let report = StepDone {
            rank: self.rank,
            hits: neurons.hits + whole.hits,
            misses: neurons.misses + whole.misses,
            left_out,
            guesses: std::mem::take(&mut self.weights.experts.guess_counts),
            gated: gated.plus(early),
            live,
            charged_before,
            charged,
        };
        match self.done.send(report) {
            // If the engine thread is gone, the command lane is also closed, which ends the core.
            Ok(()) | Err(SendError::Closed { .. }) => {}
            Err(full @ SendError::Full { .. }) => {
                let (rank, cause) = (self.rank, full.to_string());
                self.shared
                    .faults
                    .report(Fault::CoreStopped { rank, cause });
                self.state = State::Finished;
            }
        }
    }

    /// The program in force.
    fn program(&self) -> &Program {
        self.prompts.program().unwrap_or(&self.program)
    }

    /// The graph in force.
    fn wiring(&self) -> &dyn Wiring {
        match self.prompts.is_active() {
            true => &self.prefill,
            false => self.decode.as_ref(),
        }
    }

    /// The graph in force.
    fn wiring_mut(&mut self) -> &mut dyn Wiring {
        match self.prompts.is_active() {
            true => &mut self.prefill,
            false => self.decode.as_mut(),
        }
    }

    /// The window in force.
    fn reader(&mut self) -> &mut forebay_stages::gio::Reader {
        match self.prompts.is_active() {
            true => self.prefill.reader(&mut self.stages),
            false => self.decode.reader(&mut self.stages),
        }
    }

    /// The layer of the current phase.
    fn layer(&self) -> usize {
        match self.state {
            State::AwaitRows { phase, .. } | State::Phase(phase) | State::Await { phase, .. } => {
                self.program().phases[phase].layer
            }
            State::Idle
            | State::ResizeCaches
            | State::ResizeDevice { .. }
            | State::Resize
            | State::Finished => 0,
        }
    }

    /// The core's trace, and the neurons in its cache, best first.
    pub(crate) fn into_record(self) -> (TraceLane, Vec<HotNeuron>) {
        let mut cached = Vec::new();
        self.weights.neurons.contents(&mut cached);
        let clusters = self.program.clusters_by_neuron();
        let place = |&i: &u32| {
            let (cluster, base) = clusters[clusters.partition_point(|c| c.1 <= i) - 1];
            HotNeuron {
                cluster,
                neuron: i - base,
            }
        };
        let mut hot: Vec<HotNeuron> = cached.iter().map(place).collect();
        cached.clear();
        self.weights.experts.contents(&mut cached);
        // A cluster of an expert is kept as a whole.
        let whole = |&key: &u32| HotNeuron {
            cluster: self.program.cached_clusters[key as usize],
            neuron: 0,
        };
        hot.extend(cached.iter().map(whole));
        (self.recorder.trace, hot)
    }
}
