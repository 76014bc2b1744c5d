//! A mixer's phase: the core's own heads or channels, for all tokens of the step. Of attention, a device may do a part.

use forebay_models::tensor::{LayerTensor, TensorId};
use forebay_plans::program::{Board, Work};
use forebay_queues::pages::give_back;
use forebay_stages::attention::{Attention, Places, QkWeights};
use forebay_stages::contract::Slice;
use forebay_stages::recurrent::{Recurrent, RecurrentWeights};
use forebay_traces::record::Stage;

use super::Core;
use crate::device::Attender;
use crate::shared::Shared;
use crate::step::Step;

/// The mixers of one core.
#[derive(Debug)]
pub(super) struct Mixers {
    pub attention: Attention,
    pub recurrent: Recurrent,
    /// Has a device attend for some tokens, if there is one that does.
    pub attender: Option<Box<Attender>>,
    /// Whether a phase has begun, and a device still has a part of it.
    pub is_under_way: bool,
    /// One step's queries, keys and values, or input of another mixer, `[max_batch, widest_mixer_in]`.
    qkv: Vec<f32>,
    /// The output of the core's heads or channels, `[max_batch, own columns]`.
    heads: Vec<f32>,
}

/// A phase in its step.
#[derive(Clone, Copy)]
struct Mix<'a> {
    shared: &'a Shared,
    step: &'a Step,
    layer: usize,
    in_width: usize,
    /// Where the results go, and how wide they are.
    board: Board,
    width: usize,
}

impl<'a> Mix<'a> {
    fn n_tokens(&self) -> usize {
        self.step.tokens.places.len()
    }

    fn attends(&self) -> bool {
        self.shared.network().attention(self.layer).is_some()
    }

    fn places(&self) -> Places<'a> {
        Places {
            tokens: &self.step.tokens.places,
            tables: &self.step.tokens.tables,
            snapshots: &self.step.tokens.copies.snapshots,
        }
    }

    fn vector(&self, which: LayerTensor) -> &'a [f32] {
        let vectors = &self.shared.bundle.vectors;
        vectors.get(TensorId::Layer(self.layer, which))
    }

    fn norms(&self) -> QkWeights<'a> {
        QkWeights {
            q: self.vector(LayerTensor::QNorm),
            k: self.vector(LayerTensor::KNorm),
            k_bias: self.vector(LayerTensor::KBias),
            sinks: self.vector(LayerTensor::Sinks),
        }
    }
}

impl Core {
    /// Begins the phase's work, or ends it when a device has done its part; true if a device has been given one.
    pub(super) fn mixer_turn(&mut self, number: usize) -> bool {
        let program = self.prompts.program().unwrap_or(&self.program);
        let phase = &program.phases[number];
        let Work::Mixer {
            in_width,
            board,
            width,
        } = phase.work
        else {
            return false;
        };
        let mix = Mix {
            shared: &self.shared,
            step: &self.step,
            layer: phase.layer,
            in_width,
            board,
            width,
        };
        let mixers = &mut self.mixers;
        let was_under_way = mixers.is_under_way;
        mixers.is_under_way = match was_under_way {
            true => !mixers.take(mix),
            false => mixers.begin(mix),
        };
        if !mixers.is_under_way {
            mixers.publish(mix);
            let slice = Slice::plain(Stage::Attention, 0, mix.n_tokens());
            self.recorder.record(slice, mix.layer);
        }
        mixers.is_under_way && !was_under_way
    }
}

impl Mixers {
    /// Those of core `rank` of `threads`.
    pub fn new(shared: &Shared, rank: usize, attender: Option<Box<Attender>>) -> Self {
        let (network, batch) = (shared.network(), shared.max_batch);
        let core = (rank, shared.threads);
        let mut attention = Attention::new(network, core, &shared.kv, batch);
        if attender.is_some() {
            attention.expect_copies(&shared.kv);
        }
        Self {
            attention,
            recurrent: Recurrent::new(network, core, &shared.kv),
            attender,
            is_under_way: false,
            qkv: vec![0.0; batch * network.widest_mixer_in()],
            heads: vec![0.0; batch * network.widest_mixed()],
        }
    }

    /// A step begins.
    pub fn begin_step(&mut self, step: &Step) {
        let tokens = &step.tokens;
        self.attention.begin(&tokens.places, &tokens.copies.blocks);
        self.recurrent.begin(&tokens.copies.states);
    }

    /// Gives the memory of rows back to the system until a step needs it.
    pub fn give_back(&mut self) {
        give_back(&mut self.qkv);
        give_back(&mut self.heads);
    }

    /// First column of the core's part of the results, and its width.
    fn columns(&self, mix: Mix<'_>) -> (usize, usize) {
        match mix.attends() {
            true => self.attention.columns(mix.layer),
            false => self.recurrent.columns(mix.layer),
        }
    }

    /// Mixes the positions, as far as no device does; true if one does.
    fn begin(&mut self, mix: Mix<'_>) -> bool {
        if self.columns(mix).1 == 0 {
            return false;
        }
        let (n, in_width) = (mix.n_tokens(), mix.in_width);
        let qkv = &mut self.qkv[..n * in_width];
        let inputs = match mix.attends() {
            true => self.attention.inputs(mix.layer),
            false => [0..in_width, 0..0, 0..0],
        };
        let from = mix.shared.boards.board(Board::Qkv);
        for (t, row) in qkv.chunks_exact_mut(in_width).enumerate() {
            for columns in inputs.clone() {
                from.read(t * in_width + columns.start, &mut row[columns]);
            }
        }
        match mix.attends() {
            true => self.attend(mix),
            false => self.recur(mix),
        }
        let attender = self.attender.as_ref();
        attender.is_some_and(|attender| !attender.is_over())
    }

    /// Attention, but for what a device does.
    fn attend(&mut self, mix: Mix<'_>) {
        let (layer, n, norms) = (mix.layer, mix.n_tokens(), mix.norms());
        let (kernels, places) = (&mix.shared.kernels, mix.places());
        let width = self.columns(mix).1;
        let qkv = &mut self.qkv[..n * mix.in_width];
        self.attention.store(kernels, layer, places, norms, qkv);
        let mut own = 0..n;
        if let Some(attender) = &mut self.attender {
            let attention = (&mut self.attention, places);
            own.end = attender.begin(layer, attention, norms.sinks, qkv).start;
        }
        let heads = &mut self.heads[..n * width];
        let which = (own, norms);
        self.attention
            .attend(kernels, layer, places, which, (qkv, heads));
        if let Some(attender) = &mut self.attender {
            attender.own_part_is_done();
        }
    }

    /// Takes what a device has done, or does it; false while it is away.
    fn take(&mut self, mix: Mix<'_>) -> bool {
        let width = self.columns(mix).1;
        let Some(attender) = &mut self.attender else {
            return true;
        };
        attender.collect();
        let Some((tokens, results)) = attender.take(&mut self.attention) else {
            return false;
        };
        let (kernels, layer) = (&mix.shared.kernels, mix.layer);
        let qkv = &self.qkv[..mix.n_tokens() * mix.in_width];
        let heads = &mut self.heads[..mix.n_tokens() * width];
        let attention = &mut self.attention;
        match results {
            Some(results) => {
                let heads = &mut heads[tokens.start * width..tokens.end * width];
                heads.copy_from_slice(results);
                let qkv = &qkv[tokens.start * mix.in_width..];
                attention.gate(kernels, layer, tokens.len(), (qkv, heads));
            }
            None => {
                let which = (tokens, mix.norms());
                attention.attend(kernels, layer, mix.places(), which, (qkv, heads));
            }
        }
        true
    }

    /// A recurrent mixer's channels.
    fn recur(&mut self, mix: Mix<'_>) {
        let weights = RecurrentWeights {
            taps: mix.vector(LayerTensor::ConvTaps),
            decay_bias: mix.vector(LayerTensor::DecayBias),
            decay_rate: mix.vector(LayerTensor::DecayRate),
            head_norm: mix.vector(LayerTensor::HeadNorm),
        };
        let (layer, width) = (mix.layer, self.columns(mix).1);
        let qkv = &mut self.qkv[..mix.n_tokens() * mix.in_width];
        let heads = &mut self.heads[..mix.n_tokens() * width];
        let kernels = &mix.shared.kernels;
        self.recurrent
            .run(kernels, layer, mix.places(), weights, qkv, heads);
    }

    /// Writes the results to their board.
    fn publish(&self, mix: Mix<'_>) {
        let (start, own) = self.columns(mix);
        if own > 0 {
            let board = mix.shared.boards.board(mix.board);
            let heads = &self.heads[..mix.n_tokens() * own];
            for (t, row) in heads.chunks_exact(own).enumerate() {
                board.write(t * mix.width + start, row);
            }
        }
    }
}
