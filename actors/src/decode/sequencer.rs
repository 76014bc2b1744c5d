//! One compute core: which phase it is in, and which of its actors runs next (`ffn.rs` has the FFN's part).
//!
//! Within a phase, whatever cluster is here runs, of whichever matrix: downstream actors first, so that memory is
//! given back as early as possible, but what finds out which neurons to read before them. Between phases stand the
//! data dependencies of the transformer itself: attention needs all of Q, K and V; its projection needs all heads;
//! the FFN needs the whole residual stream. There, and only there, a core waits for the others.

use std::collections::VecDeque;

use flume::Sender;
use forebay_models::bundle::{FfnLayout, HotNeuron};
use forebay_plans::residency::Pipeline;
use forebay_queues::exchange::Member;
use forebay_queues::lane::LaneRx;
use forebay_stages::kernels::Form;
use forebay_traces::clock::now_ns;
use forebay_traces::lane::TraceLane;
use forebay_traces::ledger::Charged;
use forebay_traces::record::{Reason, Residency as Hit, Stage};

use super::attend::AttendActor;
use super::context::{CoreContext, Flight};
use super::early::EarlyActor;
use super::gc::GcActor;
use super::neurons::{NeuronActor, Onward};
use super::pred::PredActor;
use super::prefill::{Route, Routes};
use super::rows::{RowsActor, Site};
use super::shared::{Step, StepDone};
use super::udc::UdcActor;
use crate::contract::{Actor, Turn};
use crate::io::ReadDone;
use crate::io_link::{IoLink, ReadTag};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Rows(Site),
    /// Of a layer's FFN the Gate matrix only, where a barrier stands between matrices.
    Gates,
    Ffn,
    Await {
        epoch: u64,
        next: Next,
    },
    /// Between two steps, something is taken out of memory or in again.
    Resize,
    Finished,
}

/// What follows an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Attend,
    Output,
    Predict,
    Ffn,
    UpDown,
    Layer,
    Done,
}

/// Residual stream and temporary rows of one core.
#[derive(Debug)]
pub(super) struct Residual {
    /// `[max_batch, d_model]`
    pub x: Vec<f32>,
    /// Normed or gathered rows, `[max_batch, max(d_model, q_dim)]`
    pub rows: Vec<f32>,
    /// One core's FFN share, `[max_batch, d_model]`
    pub share: Vec<i64>,
}

impl Residual {
    /// Room for `batch` tokens.
    pub fn new(batch: usize, d_model: usize, widest: usize) -> Self {
        Self {
            x: vec![0.0; batch * d_model],
            rows: vec![0.0; batch * widest],
            share: vec![0; batch * d_model],
        }
    }
}

/// All actors of a core, upstream to downstream.
#[derive(Debug)]
pub(super) struct CoreActors {
    pub attend: AttendActor,
    pub rows: RowsActor,
    pub pred: PredActor,
    pub gc: GcActor,
    pub early: EarlyActor,
    pub neurons: NeuronActor,
    pub udc: UdcActor,
}

/// The sequencer of one core.
#[derive(Debug)]
pub struct Sequencer {
    pub(super) cx: CoreContext,
    pub(super) routes: Routes,
    pub(super) actors: CoreActors,
    pub(super) residual: Residual,
    pub(super) member: Member,
    pub(super) io: IoLink,
    pub(super) commands: LaneRx<Step>,
    pub(super) done: Sender<StepDone>,
    /// Accounts at the start of the step.
    charged_before: Charged,
    pub(super) phase: Phase,
    /// Clusters whose Gate is done, while the barrier between matrices has not been passed.
    pub(super) parked: VecDeque<Flight>,
    /// Whether reads are awaited, where reading and computing do not overlap.
    reading: bool,
    /// Slots of the neuron cache that may be used.
    pub(super) cache_slots: usize,
}

impl Sequencer {
    pub(super) fn new(
        cx: CoreContext,
        routes: Routes,
        actors: CoreActors,
        residual: Residual,
        (member, io): (Member, IoLink),
        (commands, done): (LaneRx<Step>, Sender<StepDone>),
    ) -> Self {
        let (charged_before, phase) = (Charged::default(), Phase::Idle);
        let parked = VecDeque::with_capacity(routes.decode().max_flights());
        Self {
            cx,
            routes,
            actors,
            residual,
            member,
            io,
            commands,
            done,
            charged_before,
            phase,
            parked,
            reading: false,
            cache_slots: usize::MAX,
        }
    }

    /// The core is awake again: what it does next began now.
    pub(crate) fn wake(&mut self, now: u64) {
        self.cx.last_ns = now;
    }

    /// A turn did something: a stall, if there was one, ended when the core woke.
    pub(crate) fn end_stall(&mut self) {
        self.cx.end_stall();
    }

    /// A turn found nothing to do.
    pub(crate) fn begin_stall(&mut self, reason: Reason) {
        self.cx.begin_stall(reason);
    }

    /// What the core recorded, and which neurons it has in its cache, best first.
    pub(crate) fn into_record(mut self) -> (TraceLane, Vec<HotNeuron>) {
        let mut cached = Vec::new();
        self.actors.neurons.store().contents(&mut cached);
        let clusters = self.routes.decode().cached_clusters();
        let place = |&i: &u32| {
            let (cluster, base) = clusters[clusters.partition_point(|c| c.1 <= i) - 1];
            HotNeuron {
                cluster,
                neuron: i - base,
            }
        };
        let hot = cached.iter().map(place).collect();
        (self.cx.trace, hot)
    }

    fn collect_arrivals(&mut self) {
        while let Some(done) = self.io.try_done() {
            let ReadDone {
                tag,
                slot,
                result,
                offset,
                ..
            } = done;
            match ReadTag::decode(tag) {
                tag @ (ReadTag::Stream { .. } | ReadTag::Preload { .. }) => {
                    self.routes.arrived(tag, slot, result);
                }
                ReadTag::Neurons { id } => {
                    let CoreActors {
                        neurons, gc, udc, ..
                    } = &mut self.actors;
                    let onward = &mut Onward { gc, udc };
                    neurons.arrived(&self.cx, (id, offset), slot, result, onward);
                }
            }
        }
    }

    fn take_command(&mut self) -> Turn {
        match self.commands.try_recv() {
            Some(step) => {
                self.cx.end_stall();
                self.charged_before = self.cx.ledger.charged();
                self.cx.step = step;
                self.cx.layer = 0;
                if let Some(sizes) = step.resize {
                    self.cache_slots = sizes.cache_slots;
                    return self.begin_resize(&step);
                }
                // Where reads were under way when it was asked for, it is done now.
                self.actors.neurons.store().resize(self.cache_slots);
                self.actors.attend.begin_step(&self.cx);
                self.routes.begin_step(&step, self.actors.neurons.store());
                let Route { program, gio } = self.routes.now_mut();
                gio.begin_step(program.streamed(step.n_logits > 0), step.read_anew);
                if self.cx.shared.neurons.pipeline != Pipeline::Cluster {
                    gio.confine(&[]);
                }
                let len = step.n_tokens * self.d_model();
                self.cx
                    .shared
                    .boards
                    .input
                    .read(0, &mut self.residual.x[..len]);
                self.begin_qkv();
                Turn::Progress
            }
            None if self.commands.is_closed() => {
                self.phase = Phase::Finished;
                Turn::Finished
            }
            None => Turn::Blocked(Reason::Idle),
        }
    }

    pub(super) fn d_model(&self) -> usize {
        self.cx.shared.bundle.meta.config.d_model
    }

    /// Norms tokens `from..n_tokens` of the residual stream into the phase's input.
    pub(super) fn norm(&mut self, final_norm: bool, before_ffn: bool, from: usize) {
        let shared = std::sync::Arc::clone(&self.cx.shared);
        let (d, vectors) = (self.d_model(), &shared.bundle.vectors);
        let weight = match (final_norm, vectors.layers.get(self.cx.layer)) {
            (false, Some(layer)) if before_ffn => &layer.ffn_norm,
            (false, Some(layer)) => &layer.attn_norm,
            _ => &vectors.output_norm,
        };
        let n = self.cx.step.n_tokens - from;
        let eps = shared.bundle.meta.config.rms_eps;
        let x = &self.residual.x[from * d..(from + n) * d];
        let rows = &mut self.residual.rows[..n * d];
        for (token, out) in x.chunks_exact(d).zip(rows.chunks_exact_mut(d)) {
            shared.kernels.rmsnorm(token, weight, eps, out);
        }
        let layer = shared.bundle.meta.layers.get(self.cx.layer);
        let form = match layer.map(|l| &l.ffn) {
            Some(g) if before_ffn && g.has_laned_rows() => Form::Lanes,
            Some(g) if before_ffn && g.layout == FfnLayout::Neuron => Form::Rows,
            _ => Form::Panels,
        };
        self.cx.x.load(&shared.kernels, form, n, d, rows);
        self.cx.record(Stage::Norm, 0, n, 0, Hit::NotApplicable, 0);
    }

    pub(super) fn begin_rows(&mut self, site: Site) {
        let Route { program, gio } = self.routes.now_mut();
        let items = site.items(program, self.cx.layer);
        if self.cx.shared.neurons.pipeline != Pipeline::Cluster {
            gio.confine(items);
        }
        self.actors.rows.begin(&self.cx, items, gio);
        self.phase = Phase::Rows(site);
    }

    fn begin_qkv(&mut self) {
        self.norm(false, false, 0);
        self.begin_rows(Site::Qkv);
    }

    fn begin_output(&mut self) {
        let shared = std::sync::Arc::clone(&self.cx.shared);
        let (n, q_dim) = (self.cx.step.n_tokens, shared.bundle.meta.config.q_dim());
        let rows = &mut self.residual.rows[..n * q_dim];
        shared.boards.attention.read(0, rows);
        self.cx
            .x
            .load(&shared.kernels, Form::Panels, n, q_dim, rows);
        self.begin_rows(Site::Output);
    }

    fn begin_layer_or_head(&mut self) {
        self.add_ffn();
        self.cx.record(
            Stage::Fold,
            0,
            self.cx.step.n_tokens,
            0,
            Hit::NotApplicable,
            0,
        );
        self.cx.layer += 1;
        if self.cx.layer < self.routes.decode().ffn.len() {
            self.begin_qkv();
        } else if self.cx.step.n_logits > 0 {
            self.norm(true, false, self.cx.step.n_tokens - self.cx.step.n_logits);
            self.begin_rows(Site::Head);
        } else {
            self.arrive(Next::Done);
        }
    }

    pub(super) fn arrive(&mut self, next: Next) {
        let epoch = self.member.arrive();
        self.phase = Phase::Await { epoch, next };
    }

    fn rows_turn(&mut self, site: Site) -> Turn {
        let (rows, gio) = (&mut self.actors.rows, &mut self.routes.now_mut().gio);
        if rows.turn(&mut self.cx, gio, site) {
            return Turn::Progress;
        }
        if let Some(flight) = gio.turn(&self.cx) {
            rows.push(flight);
            return Turn::Progress;
        }
        if rows.awaits_reads() {
            return Turn::Blocked(Reason::IoGate);
        }
        self.arrive(match site {
            Site::Qkv => Next::Attend,
            Site::Output if self.cx.shared.pred.is_predicted() => Next::Predict,
            Site::Output => Next::Ffn,
            Site::Predictor => Next::Ffn,
            Site::Head => Next::Done,
        });
        Turn::Progress
    }

    fn await_turn(&mut self, epoch: u64, next: Next) -> Turn {
        match self.member.complete(epoch) {
            Ok(false) if next == Next::Ffn && self.cx.shared.pred.is_predicted() => {
                return Turn::Blocked(Reason::Pred);
            }
            Ok(false) => return Turn::Blocked(Reason::Barrier),
            Err(_aborted) => {
                self.phase = Phase::Finished;
                return Turn::Finished;
            }
            Ok(true) => {}
        }
        match next {
            Next::Attend => {
                self.actors.attend.run(&mut self.cx);
                self.arrive(Next::Output);
            }
            Next::Output => self.begin_output(),
            Next::Predict => self.begin_predictor(),
            Next::Ffn => self.begin_ffn(),
            Next::UpDown => self.pass_barrier(),
            Next::Layer => self.begin_layer_or_head(),
            Next::Done => {
                self.phase = Phase::Idle;
                let store = self.actors.neurons.store();
                store.end_step();
                self.routes.end_step(&self.cx.step, store);
                self.report();
            }
        }
        Turn::Progress
    }

    /// Tells the driver that the step is over, and what it was.
    pub(super) fn report(&mut self) {
        let neurons = self.actors.neurons.store().take_counts();
        let whole = std::mem::take(&mut self.cx.counts);
        self.cx.end_stall();
        self.cx.ledger.finish(now_ns());
        // The driver keeps room for one report per core; if it is gone the command lane closes.
        let _ = self.done.try_send(StepDone {
            rank: self.cx.rank,
            hits: neurons.hits + whole.hits,
            misses: neurons.misses + whole.misses,
            gated: std::mem::take(&mut self.cx.gated),
            live: std::mem::take(&mut self.cx.live),
            charged_before: self.charged_before,
            charged: self.cx.ledger.charged(),
        });
    }
}

impl Sequencer {
    fn start_reads(&mut self) {
        let gio = &mut self.routes.now_mut().gio;
        gio.start_reads(&self.cx, &mut self.io);
        self.actors.neurons.start_reads(&mut self.io);
    }

    fn phase_turn(&mut self) -> Turn {
        match self.phase {
            Phase::Idle => self.take_command(),
            Phase::Rows(site) => self.rows_turn(site),
            Phase::Gates => self.gates_turn(),
            Phase::Ffn => self.ffn_turn(),
            Phase::Await { epoch, next } => self.await_turn(epoch, next),
            Phase::Resize => self.resize_turn(),
            Phase::Finished => Turn::Finished,
        }
    }

    /// Computes what is here until nothing is left to do, then starts all reads that are due and waits for
    /// all of them: reads block, as in LLM in a Flash.
    fn blocking_turn(&mut self) -> Turn {
        if self.reading {
            self.start_reads();
            let (gio, neurons) = (&self.routes.now().gio, &mut self.actors.neurons);
            let under_way = gio.is_reading() || neurons.store().is_reading();
            match (under_way, neurons.waiting_for()) {
                (true, reason) => return Turn::Blocked(reason.unwrap_or(Reason::IoGate)),
                (false, _) => self.reading = false,
            }
        }
        let turn = self.phase_turn();
        if let Turn::Blocked(Reason::IoGate | Reason::IoUpDown) = turn {
            self.reading = true;
            return Turn::Progress;
        }
        turn
    }
}

impl Actor for Sequencer {
    fn turn(&mut self) -> Turn {
        self.collect_arrivals();
        let turn = match self.cx.shared.neurons.pipeline {
            Pipeline::None => self.blocking_turn(),
            Pipeline::Cluster | Pipeline::Matrix => {
                self.start_reads();
                self.phase_turn()
            }
        };
        if matches!(turn, Turn::Blocked(_)) && self.member.is_aborted() {
            // Another thread has ended: what this core waits for will not come.
            self.phase = Phase::Finished;
            return Turn::Finished;
        }
        turn
    }
}
