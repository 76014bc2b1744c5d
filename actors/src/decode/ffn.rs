//! The FFN's phases of a core: Pred, GIO, GC, UDIO and UDC take turns.

use forebay_plans::residency::Pipeline;
use forebay_stages::kernels::Form;
use forebay_stages::udc;
use forebay_traces::record::{Counter, Reason, Record};

use super::neurons::Onward;
use super::prefill::Route;
use super::rows::Site;
use super::sequencer::{CoreActors, Next, Phase, Sequencer};
use crate::contract::Turn;

impl Sequencer {
    /// Adds attention's output to the residual stream.
    fn add_attention(&mut self) {
        let len = self.cx.step.n_tokens * self.d_model();
        let rows = &mut self.residual.rows[..len];
        self.cx.shared.boards.output.read(0, rows);
        for (x, o) in self.residual.x.iter_mut().zip(rows.iter()) {
            *x += o;
        }
    }

    /// The predictor's first matrix, over the residual stream as it is before the norm.
    pub(super) fn begin_predictor(&mut self) {
        self.add_attention();
        let (n, d) = (self.cx.step.n_tokens, self.d_model());
        let shared = std::sync::Arc::clone(&self.cx.shared);
        let x = &self.residual.x[..n * d];
        self.cx.x.load(&shared.kernels, Form::Panels, n, d, x);
        self.begin_rows(Site::Predictor);
    }

    /// `relu(fc1 · x)` of all tokens, as input of the predictor's second matrix.
    fn take_hidden(&mut self) {
        let shared = std::sync::Arc::clone(&self.cx.shared);
        let Some(predictors) = &shared.bundle.meta.predictors else {
            return;
        };
        let (n, rank) = (self.cx.step.n_tokens, predictors[self.cx.layer].rank);
        let width = shared.predictor_rank();
        let rectified = |at: usize, row: &mut [f32]| {
            shared.boards.predictor.read(at, row);
            row.iter_mut().for_each(|v| *v = v.max(0.0));
        };
        let hidden = &mut self.residual.rows[..n * rank];
        for (t, row) in hidden.chunks_exact_mut(rank).enumerate() {
            rectified(t * 2 * width, row);
        }
        let form = Form::Panels;
        self.cx.hidden.load(&shared.kernels, form, n, rank, hidden);
        // Prompts want most neurons anyway.
        let next = predictors.get(self.cx.layer + 1);
        if let Some(next) = next.filter(|_| n == 1 && shared.looks_ahead()) {
            let row = &mut self.residual.rows[..next.rank];
            rectified(width, row);
            let ahead = &mut self.cx.hidden_ahead;
            ahead.load(&shared.kernels, form, 1, next.rank, row);
        }
    }

    pub(super) fn begin_ffn(&mut self) {
        if self.cx.shared.pred.is_predicted() {
            self.take_hidden();
        } else {
            self.add_attention();
        }
        self.observe_residual();
        self.norm(false, true, 0);
        let len = self.cx.step.n_tokens * self.d_model();
        self.cx.acc[..len].fill(0);
        self.cx.retired = 0;
        let Route { program, gio } = self.routes.now_mut();
        let items = &program.ffn[self.cx.layer];
        self.actors.neurons.begin_layer();
        self.actors.pred.begin(&mut self.cx, items);
        let pipeline = self.cx.shared.neurons.pipeline;
        if pipeline != Pipeline::Cluster {
            gio.confine(items);
        }
        self.phase = match pipeline {
            Pipeline::Matrix => Phase::Gates,
            Pipeline::Cluster | Pipeline::None => Phase::Ffn,
        };
    }

    /// All cores have the same residual stream; one of them shows it.
    fn observe_residual(&self) {
        if let (0, Some(observer)) = (self.cx.rank, &self.cx.shared.observer) {
            let x = &self.residual.x[..self.cx.step.n_tokens * self.d_model()];
            observer.residual(self.cx.layer, self.cx.step.position, x);
        }
    }

    /// Adds all cores' FFN shares to the residual stream: integers, so in any order.
    pub(super) fn add_ffn(&mut self) {
        let shared = std::sync::Arc::clone(&self.cx.shared);
        let len = self.cx.step.n_tokens * self.d_model();
        let (sum, share) = (&mut self.cx.acc[..len], &mut self.residual.share[..len]);
        sum.fill(0);
        for board in &shared.boards.ffn {
            board.read(0, share);
            for (s, v) in sum.iter_mut().zip(share.iter()) {
                *s = s.wrapping_add(*v);
            }
        }
        let geometry = &shared.bundle.meta.layers[self.cx.layer].ffn;
        let lanes = &mut self.residual.rows[..shared.bundle.meta.config.d_model];
        let x = &mut self.residual.x[..len];
        udc::add_to_residual(&shared.kernels, geometry, sum, lanes, x);
    }

    /// Whatever cluster is here goes on, of whichever matrix. Where single neurons are read, what finds out which
    /// goes first, so that all of a layer's reads are under way while its clusters are computed.
    pub(super) fn ffn_turn(&mut self) -> Turn {
        let progress = match self.reads_neurons() {
            true => self.pred_turn() || self.gate_turn(false) || self.udc_turn(),
            false => self.udc_turn() || self.gate_turn(false) || self.pred_turn(),
        };
        if progress || self.early_turn() || self.look_ahead() {
            return Turn::Progress;
        }
        if self.cx.retired < self.routes.now().program.ffn[self.cx.layer].len() {
            return self.blocked();
        }
        self.count_queues();
        let (cx, len) = (&self.cx, self.cx.step.n_tokens * self.d_model());
        cx.shared.boards.ffn[cx.rank].write(0, &cx.acc[..len]);
        self.arrive(Next::Layer);
        Turn::Progress
    }

    /// The Gate matrix alone: clusters whose neurons are read singly wait behind it. Streamed clusters hold
    /// a buffer that others need, so they are computed to the end.
    pub(super) fn gates_turn(&mut self) -> Turn {
        if self.udc_turn() || self.gate_turn(true) || self.pred_turn() || self.look_ahead() {
            return Turn::Progress;
        }
        if self.cx.retired + self.parked.len() < self.routes.now().program.ffn[self.cx.layer].len()
        {
            return self.blocked();
        }
        self.arrive(Next::UpDown);
        Turn::Progress
    }

    /// All cores have the whole Gate matrix behind them.
    pub(super) fn pass_barrier(&mut self) {
        let CoreActors {
            neurons, gc, udc, ..
        } = &mut self.actors;
        for flight in self.parked.drain(..) {
            neurons.want(&self.cx, flight, &mut Onward { gc, udc });
        }
        self.phase = Phase::Ffn;
    }

    /// Up and Down of a cluster that is here.
    fn udc_turn(&mut self) -> bool {
        let CoreActors {
            gc, neurons, udc, ..
        } = &mut self.actors;
        let gio = &mut self.routes.now_mut().gio;
        udc.turn(&mut self.cx, gio, neurons.store(), gc.next())
    }

    /// Whether the layer has clusters whose neurons are read singly.
    fn reads_neurons(&self) -> bool {
        let items = &self.routes.now().program.ffn[self.cx.layer];
        items.iter().any(|item| item.source.is_by_neuron())
    }

    /// What comes before Up and Down: a cluster that got its neurons, a Gate, a cluster that arrived, in this
    /// order.
    fn gate_turn(&mut self, park: bool) -> bool {
        let gio = &mut self.routes.now_mut().gio;
        let CoreActors {
            gc, neurons, udc, ..
        } = &mut self.actors;
        let cx = &mut self.cx;
        // Where reads block, those that are due wait until nothing is left to compute.
        let starts_reads = cx.shared.neurons.pipeline != Pipeline::None;
        if neurons.turn(&mut Onward { gc, udc }) || starts_reads && neurons.store().can_read() {
            return true;
        }
        if gc.is_ready() {
            if let Some(flight) = gc.turn(cx, gio, neurons) {
                if park && flight.item.source.ordinal().is_none() {
                    self.parked.push_back(flight);
                } else {
                    neurons.want(cx, flight, &mut Onward { gc, udc });
                }
            }
            return true;
        }
        if let Some(flight) = gio.turn(cx) {
            gc.push(flight);
            return true;
        }
        false
    }

    /// Clusters that are new in this layer.
    fn pred_turn(&mut self) -> bool {
        let Route { program, gio } = self.routes.now_mut();
        let items = &program.ffn[self.cx.layer];
        let CoreActors {
            pred,
            gc,
            neurons,
            udc,
            ..
        } = &mut self.actors;
        pred.turn(&mut self.cx, items, gio, neurons, &mut Onward { gc, udc })
    }

    /// Clusters that wait for a few neurons: Gate and Up of those that are here.
    fn early_turn(&mut self) -> bool {
        let CoreActors { early, neurons, .. } = &mut self.actors;
        early.turn(&mut self.cx, neurons)
    }

    /// What the next layer will probably want.
    fn look_ahead(&mut self) -> bool {
        let next = self.routes.now().program.ffn.get(self.cx.layer + 1);
        let CoreActors { pred, neurons, .. } = &mut self.actors;
        next.is_some_and(|next| pred.look_ahead(&mut self.cx, next, neurons))
    }

    fn blocked(&self) -> Turn {
        let reason = self.actors.neurons.waiting_for();
        Turn::Blocked(reason.unwrap_or(Reason::IoGate))
    }

    /// Counters of the trace, once per layer.
    fn count_queues(&mut self) {
        let cx = &mut self.cx;
        if !cx.trace.is_enabled() {
            return;
        }
        let (gio, neurons) = (&self.routes.now().gio, &mut self.actors.neurons);
        for (which, value) in [
            (Counter::CacheLive, neurons.store().cached()),
            (Counter::QueueDepth, neurons.store().queued()),
            (Counter::StreamReady, gio.ready()),
        ] {
            cx.trace
                .push(Record::counter(which, value as u64, cx.last_ns));
        }
    }
}
