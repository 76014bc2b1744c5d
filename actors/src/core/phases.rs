//! One phase: its preparation, its turns, and its end.

use forebay_plans::program::{Part, Prepare, Work};
use forebay_stages::contract::{Outbox, Slice, Turn};
use forebay_stages::frame::Frame;
use forebay_traces::record::{Counter, Reason, Stage};

use super::experts::drop_cold;
use super::surroundings::Surroundings;
use super::{Core, State};
use crate::wiring::{Stages, Wiring, release};

/// A core taken apart, so that its stages can work within the frame of the phase. Borrow it where it is made: to move
/// the frame is to read what has just been written in smaller pieces, and the CPU waits for that.
pub(super) struct Apart<'a> {
    pub frame: Frame<'a>,
    pub stages: &'a mut Stages,
    pub wiring: &'a mut dyn Wiring,
    pub out: &'a mut Outbox,
}

impl Core {
    /// The frame of phase `number`, and the stages that work in it.
    pub(super) fn apart(&mut self, number: usize) -> Apart<'_> {
        let Self {
            shared,
            prompts,
            program,
            stages,
            decode,
            prefill,
            residual,
            expert_input,
            weights,
            step,
            out,
            rank,
            ..
        } = self;
        let program = prompts.program().unwrap_or(program);
        let drop_cold = drop_cold(shared, step);
        let frame = Frame {
            bundle: &shared.bundle,
            kernels: &shared.kernels,
            rule: &shared.rule,
            observer: shared.observer.as_deref(),
            boards: &shared.boards,
            lending: &shared.lending,
            rank: *rank,
            phase: &program.phases[number],
            number,
            tokens: &step.tokens.places,
            more: step.more,
            drafts: step.drafts,
            drop_cold,
            input: &residual.input,
            hot_input: &residual.hot_input,
            routes: &residual.routes,
            expert_input,
            hidden: &residual.hidden,
            on_device: shared.device_places(step, number),
            weights,
        };
        let wiring: &mut dyn Wiring = match prompts.is_active() {
            true => prefill,
            false => decode.as_mut(),
        };
        Apart {
            frame,
            stages,
            wiring,
            out,
        }
    }

    /// Prepares phase `number`, and begins its work if that takes no rows of other cores.
    pub(super) fn begin_phase(&mut self, number: usize) {
        self.state = State::Phase(number);
        match self.prepare(number) {
            true => {
                self.state = State::AwaitRows {
                    epoch: self.member.arrive(),
                    phase: number,
                }
            }
            false => self.begin_work(number),
        }
    }

    /// Phase `number` has been prepared by all cores.
    pub(super) fn begin_work(&mut self, number: usize) {
        self.take_published(number);
        self.give_to_device(number);
        let Apart {
            frame,
            stages,
            wiring,
            ..
        } = &mut self.apart(number);
        wiring.begin(stages, frame);
        if let Some(later) = self.program().named_ahead(number) {
            let Apart {
                frame,
                stages,
                wiring,
                ..
            } = &mut self.apart(later);
            wiring.begin_ahead(stages, frame);
        }
    }

    /// Takes the input of phase `number` from the boards, if the cores have published it.
    fn take_published(&mut self, number: usize) {
        let program = self.prompts.program().unwrap_or(&self.program);
        let around = Surroundings::of((&self.shared, program), &self.step, self.rank, number);
        if self.residual.take_published(&around) {
            let slice = Slice::plain(Stage::Norm, 0, around.n_tokens);
            self.recorder.record(slice, around.phase.layer);
        }
    }

    /// What every core does of phase `number` before its work. True if it has published rows of the input that all
    /// cores take.
    fn prepare(&mut self, number: usize) -> bool {
        let shared = &self.shared;
        let program = self.prompts.program().unwrap_or(&self.program);
        let around = Surroundings::of((shared, program), &self.step, self.rank, number);
        let phase = around.phase;
        let d_model = shared.network().d_model;
        let routes = |prepare: &Prepare| matches!(prepare, Prepare::Route { .. });
        let is_routing = phase.prepare.iter().any(routes);
        let (n_own, mut published) = (around.own.len(), false);
        for prepare in &phase.prepare {
            published |= self.residual.prepare(&around, prepare);
            let n_tokens = around.n_tokens;
            match prepare {
                Prepare::JoinShares { layer, .. } => {
                    let slice = Slice::plain(Stage::Fold, 0, n_own);
                    self.recorder.record(slice, *layer);
                }
                Prepare::Norm { norm: Some(_), .. } => {
                    let slice = Slice::plain(Stage::Norm, 0, n_own);
                    self.recorder.record(slice, phase.layer);
                }
                // With an observer, all cores have the stream of all tokens; one of them shows it.
                Prepare::ShowResidual { before_layer } => {
                    if let (0, Some(observer)) = (self.rank, &shared.observer) {
                        let position = self.step.tokens.position();
                        let x = self.residual.stream(n_tokens, d_model);
                        match before_layer {
                            true => observer.layer_input(phase.layer, position, x),
                            false => observer.residual(phase.layer, position, x),
                        }
                    }
                }
                Prepare::Route { .. } => {
                    if let (0, Some(observer)) = (self.rank, &shared.observer) {
                        let position = self.step.tokens.position();
                        observer.routed(phase.layer, position, self.residual.routes.all());
                    }
                }
                _ => {}
            }
            if let (0, true, Some(observer)) = (self.rank, prepare.makes_input(), &shared.observer)
            {
                self.residual
                    .show_input(phase, shared.network(), observer.as_ref());
            }
        }
        if is_routing {
            self.ask_for_experts(number);
        }
        published
    }

    /// Does a little work of phase `number`, or ends it.
    pub(super) fn phase_turn(&mut self, number: usize) -> Turn {
        if self.take_from_device(number) || self.ask_ahead() || self.copy_ahead(number) {
            return Turn::Progress;
        }
        let worked = match &self.program().phases[number].work {
            Work::Mixer { .. } => self.mixer_turn(number),
            Work::Rows(_) => self.rows_turn(number),
            Work::Neurons { .. } => self.neurons_turn(number),
        };
        if worked {
            return Turn::Progress;
        }
        match self.is_done(number) {
            true => {
                self.end_phase(number);
                Turn::Progress
            }
            false => self.wait_in_phase(),
        }
    }

    /// Asks for neurons of a later phase, so that they are read while those before it are computed; false if all have
    /// been asked for.
    fn ask_ahead(&mut self) -> bool {
        let Some(later) = self.stages.ahead else {
            return false;
        };
        let Apart {
            frame,
            stages,
            wiring,
            out,
        } = &mut self.apart(later);
        let asked = wiring.turn_ahead(stages, frame, out);
        self.publish(later);
        asked
    }

    fn rows_turn(&mut self, number: usize) -> bool {
        let Apart {
            frame,
            stages,
            wiring,
            out,
        } = &mut self.apart(number);
        let worked = match stages.rows.turn(frame, out) {
            Some(returned) => {
                release(wiring.reader(stages), returned);
                true
            }
            // Rows that have arrived are computed next.
            None => {
                let stage = wiring.reading_stage();
                wiring.reader(stages).hand_on(frame, stage, out)
            }
        };
        while let Some(rows) = out.rows.pop_front() {
            stages.rows.push(rows);
        }
        self.publish(number);
        worked
    }

    fn neurons_turn(&mut self, number: usize) -> bool {
        let Apart {
            frame,
            stages,
            wiring,
            out,
        } = &mut self.apart(number);
        let worked = wiring.turn(stages, frame, out);
        if let Some(owner) = stages.gave_back_to.take() {
            self.member.ring(owner);
        }
        self.publish(number);
        worked
    }

    /// All neurons of a flight are in the cache: passes it on.
    pub(super) fn flight_is_ready(&mut self, flight: usize) {
        let number = match (self.stages.ahead, self.state) {
            (Some(later), _) => later,
            (None, State::Phase(number)) => number,
            _ => return,
        };
        let Apart {
            frame,
            stages,
            wiring,
            out,
        } = &mut self.apart(number);
        wiring.ready(flight, stages, frame, out);
    }

    /// Records and reports what the stages have produced.
    pub(super) fn publish(&mut self, number: usize) {
        if self.out.slices.is_empty() && self.out.faults.is_empty() {
            return;
        }
        let layer = self.program().phases[number].layer;
        while let Some(slice) = self.out.slices.pop_front() {
            self.recorder.record(slice, layer);
        }
        while let Some(fault) = self.out.faults.pop() {
            self.report_fault(fault, layer);
        }
    }

    fn is_done(&self, number: usize) -> bool {
        if self.awaits_device() {
            return false;
        }
        let phase = &self.program().phases[number];
        match &phase.work {
            Work::Mixer { .. } => !self.mixers.is_under_way,
            Work::Rows(_) => !self.stages.rows.awaits_reads(),
            Work::Neurons { .. } => self.wiring().is_done(&self.stages, phase),
        }
    }

    /// If experts in memory are preferred: tells all cores which clusters this one has, before they choose.
    fn publish_held(&mut self, number: usize) {
        let program = self.prompts.program().unwrap_or(&self.program);
        let layer = program.phases[number].layer;
        let (Some(preference), Some(phase)) = (
            &mut self.residual.preference,
            program
                .routed_after(number, layer)
                .filter(|_| self.step.decodes),
        ) else {
            return;
        };
        let routed = self.shared.network().experts(phase.layer);
        let items = (phase.neurons(), routed.map_or(0, |e| e.count));
        let board = (&self.shared.boards.held, self.rank);
        let experts = &self.weights.experts;
        preference.publish(items, |key| experts.has(key), board);
    }

    /// Publishes the core's part, and waits for the others.
    fn end_phase(&mut self, number: usize) {
        if let Work::Neurons { part, .. } = &self.program().phases[number].work
            && *part != Part::Gates
        {
            self.shared.boards.shares[self.rank].write(0, self.stages.udc.share());
            self.count_queues();
        }
        if self.residual.preference.is_some() && self.program().phases[number].is_router() {
            self.publish_held(number);
        }
        self.state = State::Await {
            epoch: self.member.arrive(),
            phase: number,
        };
    }

    /// Counters of the trace, once per layer.
    fn count_queues(&mut self) {
        let store = &self.weights.neurons;
        let counters = [
            (Counter::CacheLive, store.cached()),
            (Counter::QueueDepth, store.queued()),
            (
                Counter::StreamReady,
                self.stages.gio.reader.window_ref().ready(),
            ),
        ];
        self.recorder.count(counters);
    }

    /// What the core waits for after phase `number`.
    pub(super) fn barrier(&self, number: usize) -> Reason {
        match &self.program().phases[number].work {
            Work::Rows(rows) if rows.stage == Stage::Pred => Reason::Pred,
            _ => Reason::Barrier,
        }
    }
}
