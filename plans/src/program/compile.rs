//! Compiles a network, a residency and a number of cores into each core's program.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_models::block::BlockType;
use forebay_models::bundle::Bundle;
use forebay_models::network::{Content, Experts, Network, Norm, NormKind};
use forebay_models::tensor::{LayerTensor as T, TensorId};
use forebay_traces::record::Stage;

use super::{
    Board, Finish, GatedInputs, Item, Join, Matrix, NormAt, Part, Phase, Prepare, Program, Rows,
    Source, Work,
};
use crate::residency::{Residency, ResidencyPlan};

/// The input is the residual stream without a norm.
const AS_IT_IS: Prepare = Prepare::Norm {
    norm: None,
    only_wanted: false,
};

/// How a program is compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Predictors decide which neurons are computed.
    pub predicted: bool,
    /// A barrier stands between the FFN's matrices: a baseline.
    pub by_matrix: bool,
    /// Each router's phase also computes the routers of so many of the next layers, so that their experts can be
    /// guessed.
    pub guesses: usize,
}

/// The program of core `rank`.
pub fn compile(bundle: &Bundle, plan: &ResidencyPlan, rank: usize, options: Options) -> Program {
    let mut compiler = Compiler::new(bundle, options);
    compiler.take_clusters(plan, rank);
    compiler.token_inputs();
    for layer in 0..compiler.network.n_layers() {
        compiler.mixer(layer);
        compiler.ffn(layer);
        compiler.input(layer);
    }
    compiler.head();
    compiler.program
}

pub(super) struct Compiler<'a> {
    bundle: &'a Bundle,
    network: &'a Network,
    options: Options,
    /// The core's own clusters.
    items: BTreeMap<Content, Vec<Item>>,
    /// Layers whose routers are not in memory as a whole: what is streamed comes once in a step, so they cannot guess.
    unpinned: Vec<usize>,
    program: Program,
}

impl<'a> Compiler<'a> {
    fn new(bundle: &'a Bundle, options: Options) -> Self {
        Self {
            bundle,
            network: &bundle.meta.network,
            options,
            items: BTreeMap::new(),
            unpinned: Vec::new(),
            program: Program::default(),
        }
    }

    /// Sorts the core's clusters; the directory lists them in the order of use.
    fn take_clusters(&mut self, plan: &ResidencyPlan, rank: usize) {
        let program = &mut self.program;
        for (i, entry) in self.bundle.clusters.iter().enumerate() {
            if let (Content::Rows(TensorId::Layer(layer, T::Router)), false) =
                (entry.content, plan.residency[i] == Residency::Pinned)
            {
                self.unpinned.push(layer);
            }
            if usize::from(plan.owner[i]) != rank {
                continue;
            }
            let source = match plan.residency[i] {
                Residency::OnFlash => continue,
                Residency::Pinned => match plan.device_places.get(&(i as u32)) {
                    Some(&place) => Source::Device { place },
                    None => Source::Pinned,
                },
                kept @ (Residency::GatePinned | Residency::Neurons) => {
                    let base = program.cached_neurons as u32;
                    program.cached_neurons += entry.count as usize;
                    match kept {
                        Residency::GatePinned => Source::GatePinned { base },
                        _ => Source::Neurons { base },
                    }
                }
                Residency::Cached => {
                    program.cached_clusters.push(i as u32);
                    Source::Cached {
                        key: program.cached_clusters.len() as u32 - 1,
                    }
                }
                Residency::Streamed => {
                    program.stream.push(i as u32);
                    Source::Streamed {
                        ordinal: program.stream.len() as u32 - 1,
                    }
                }
            };
            let item = Item {
                cluster: i as u32,
                matrix: 0,
                expert: self.network.expert_of(entry.content, entry.first as usize),
                source,
            };
            self.items.entry(entry.content).or_default().push(item);
        }
    }

    pub(super) fn push(&mut self, layer: usize, prepare: Vec<Prepare>, work: Work) {
        self.program.phases.push(Phase {
            layer,
            only_for_logits: false,
            prepare,
            work,
        });
    }

    pub(super) fn vector(&self, layer: usize, t: T) -> Range<usize> {
        self.bundle.vectors.range(TensorId::Layer(layer, t))
    }

    /// A norm whose weight and bias are these vectors of a layer; norms of outputs have no bias.
    fn norm(
        &self,
        norm: Option<Norm>,
        layer: usize,
        (weight, bias): (T, Option<T>),
    ) -> Option<NormAt> {
        norm.map(|norm| NormAt {
            kind: norm.kind,
            weight: self.vector(layer, weight),
            bias: bias.map_or(0..0, |t| self.vector(layer, t)),
            eps: norm.eps,
        })
    }

    fn block(&self, tensor: TensorId) -> BlockType {
        let matrix = self.bundle.meta.matrix(tensor);
        matrix.map_or(BlockType::F32, |m| m.block)
    }

    /// How the residual stream becomes the input of layer `layer`, or of the head.
    fn begin_layer(&self, layer: usize) -> Option<Prepare> {
        let Some(before) = layer.checked_sub(1) else {
            // Token inputs are made from the embeddings, before the first layer.
            return (self.network.token_inputs.is_none()).then_some(Prepare::TakeEmbeddings);
        };
        let stream = self.vector(before, T::LayerScale);
        Some(match &self.network.layers[before].input {
            None => self.join_shares(before, stream),
            Some(input) => Prepare::JoinOutput(Join {
                norm: self.norm(input.post_norm, before, (T::InputPostNorm, None)),
                scale: input.residual_scale,
                stream,
            }),
        })
    }

    /// A layer's FFN joins the stream, which is then multiplied by the vector `stream`, if that is not empty.
    fn join_shares(&self, layer: usize, stream: Range<usize>) -> Prepare {
        let ffn = &self.network.layers[layer].ffn;
        let join = Join {
            norm: self.norm(ffn.post_norm, layer, (T::FfnPostNorm, None)),
            scale: ffn.residual_scale,
            stream,
        };
        Prepare::JoinShares {
            layer,
            bias: self.vector(layer, T::DownBias),
            expert_biases: self.vector(layer, T::ExpertDownBias),
            join,
        }
    }

    /// What every layer's inputs of the tokens are made from, besides rows of a table.
    fn token_inputs(&mut self) {
        let Some(inputs) = self.network.token_inputs else {
            return;
        };
        let prepare = vec![Prepare::TakeEmbeddings, AS_IT_IS];
        let site = (Stage::Inputs, Board::Inputs, self.network.inputs_width());
        let finish = Finish::Scaled {
            scale: inputs.projection_scale,
            softcap: None,
        };
        let work = self.rows(site, &[(TensorId::InputsProjection, 0, 0..0)], finish);
        self.push(0, prepare, work);
    }

    /// The block that mixes in the layer's inputs of the tokens, if there is one.
    fn input(&mut self, layer: usize) {
        let network = self.network;
        let (Some(inputs), Some(block)) = (&network.token_inputs, &network.layers[layer].input)
        else {
            return;
        };
        let (id, width) = (|t| TensorId::Layer(layer, t), inputs.width);
        let prepare = vec![self.join_shares(layer, 0..0), AS_IT_IS];
        let site = (Stage::Inputs, Board::InputGate, width);
        let work = self.rows(site, &[(id(T::InputGate), 0, 0..0)], Finish::Plain);
        self.push(layer, prepare, work);
        let gated = GatedInputs {
            columns: layer * width..(layer + 1) * width,
            all_columns: network.inputs_width(),
            norm: NormAt {
                kind: NormKind::Rms,
                weight: self.bundle.vectors.range(TensorId::InputsNorm),
                bias: 0..0,
                eps: inputs.eps,
            },
            scale: inputs.scale,
            activation: block.body.activation,
        };
        let site = (Stage::Inputs, Board::Output, network.d_model);
        let work = self.rows(site, &[(id(T::InputProjection), 0, 0..0)], Finish::Plain);
        self.push(layer, vec![Prepare::TakeInputs(gated)], work);
    }

    /// Rows of matrices, which are given with their first columns and biases.
    pub(super) fn rows(
        &mut self,
        (stage, board, width): (Stage, Board, usize),
        matrices: &[(TensorId, usize, Range<usize>)],
        finish: Finish,
    ) -> Work {
        let mut rows = Rows {
            stage,
            board,
            width,
            matrices: Vec::with_capacity(matrices.len()),
            items: Vec::new(),
            of_several: matrices.len(),
        };
        for (number, (tensor, column, bias)) in matrices.iter().enumerate() {
            rows.matrices.push(Matrix {
                tensor: *tensor,
                block: self.block(*tensor),
                column: *column,
                bias: bias.clone(),
                finish,
                heads: None,
            });
            let own = self.items.get(&Content::Rows(*tensor));
            rows.items
                .extend(own.into_iter().flatten().map(|item| Item {
                    matrix: number as u16,
                    ..*item
                }));
        }
        Work::Rows(rows)
    }

    /// The norm of the mixer's input; in parallel layers, of the FFN's as well, unless that has its own.
    fn mixer_norm(&self, layer: usize) -> Option<NormAt> {
        let norm = self.network.layers[layer].mixer.pre_norm;
        self.norm(norm, layer, (T::AttnNorm, Some(T::AttnNormBias)))
    }

    /// Attention or a recurrent mixer: its input's matrices, its heads or channels, O.
    fn mixer(&mut self, layer: usize) {
        let mixer = self.network.mixer(layer);
        let (in_width, width) = (mixer.in_dim(), mixer.mixed_dim());
        let latent = mixer.attention().filter(|a| a.latent.is_some());
        let norm = self.mixer_norm(layer);
        let mut prepare: Vec<Prepare> = self.begin_layer(layer).into_iter().collect();
        prepare.push(Prepare::ShowResidual { before_layer: true });
        if self.routes_before(layer) {
            prepare.push(AS_IT_IS);
            self.router(layer, std::mem::take(&mut prepare));
            prepare.push(self.route(layer));
        }
        if self.predicts_before(layer) {
            self.predictor(layer, std::mem::take(&mut prepare));
            prepare.push(Prepare::TakeHidden);
        }
        prepare.push(Prepare::Norm {
            norm,
            only_wanted: false,
        });
        let id = |t| TensorId::Layer(layer, t);
        // Side by side, as far as the layer has them.
        let mut column = 0;
        let mut matrices = Vec::new();
        for (t, rows) in mixer.inputs() {
            let bias = bias_of(t).map_or(0..0, |bias| self.vector(layer, bias));
            matrices.push((id(t), column, bias));
            column += rows;
        }
        let site = (Stage::Qkv, Board::Qkv, in_width);
        let work = self.rows(site, &matrices, Finish::Plain);
        self.push(layer, prepare, work);
        if let Some(a) = latent {
            self.latent_queries(layer, a);
        }
        let mix = Work::Mixer {
            in_width,
            board: latent.map_or(Board::Heads, |_| Board::Latents),
            width,
        };
        self.push(layer, Vec::new(), mix);
        if let Some(a) = latent {
            self.values_of_latents(layer, a);
        }
        let site = (Stage::Output, Board::Output, self.network.d_model);
        let matrices = [(id(T::O), 0, self.vector(layer, T::OBias))];
        let work = self.rows(site, &matrices, Finish::Plain);
        self.push(layer, vec![Prepare::TakeHeads], work);
    }

    fn join_output(&self, layer: usize) -> Prepare {
        let mixer = &self.network.layers[layer].mixer;
        Prepare::JoinOutput(Join {
            norm: self.norm(mixer.post_norm, layer, (T::AttnPostNorm, None)),
            scale: mixer.residual_scale,
            stream: 0..0,
        })
    }

    /// Whether a layer's neurons are named by the residual stream before the layer.
    fn predicts_before(&self, layer: usize) -> bool {
        self.options.predicted && self.network.ffn(layer).predictor_before_layer
    }

    /// The predictor's first matrix, over the residual stream as `prepare` leaves it.
    fn predictor(&mut self, layer: usize, mut prepare: Vec<Prepare>) {
        let predictors = self.bundle.meta.predictors.iter().flatten();
        let rank = predictors.map(|p| p.rank).max().unwrap_or(0);
        let fc1 = TensorId::Layer(layer, T::PredictorFc1);
        prepare.push(AS_IT_IS);
        let site = (Stage::Pred, Board::Predictor, rank);
        let work = self.rows(site, &[(fc1, 0, 0..0)], Finish::Plain);
        self.push(layer, prepare, work);
    }

    /// Whether a layer's experts are chosen by the residual stream before the layer.
    fn routes_before(&self, layer: usize) -> bool {
        let experts = self.network.experts(layer);
        experts.is_some_and(|experts| experts.router.before_layer)
    }

    /// Logits of the experts, and of the gate of what every token uses, if there is one.
    fn router(&mut self, layer: usize, prepare: Vec<Prepare>) {
        let id = |t| TensorId::Layer(layer, t);
        let Some(experts) = self.network.experts(layer) else {
            return;
        };
        let mut matrices = vec![(id(T::Router), 0, self.vector(layer, T::RouterBias))];
        if experts.shared_gate {
            matrices.push((id(T::SharedGate), experts.count, 0..0));
        }
        let mut width = experts.router_width();
        let certain = matrices.len();
        for (later, next) in self.guessed(layer) {
            let bias = self.vector(later, T::RouterBias);
            matrices.push((TensorId::Layer(later, T::Router), width, bias));
            width += next.count;
        }
        let site = (Stage::Pred, Board::Router, width);
        let mut work = self.rows(site, &matrices, Finish::Plain);
        if let Work::Rows(rows) = &mut work {
            rows.of_several = matrices.len().min(certain + 1);
        }
        self.push(layer, prepare, work);
    }

    /// The layers whose experts are guessed where those of `layer` are chosen, one after the other.
    fn guessed(&self, layer: usize) -> impl Iterator<Item = (usize, &'a Experts)> {
        (1..=self.options.guesses).map_while(move |later| {
            let next = self.network.guessed_at(layer, later)?;
            (!self.unpinned.contains(&(layer + later))).then_some((layer + later, next))
        })
    }

    fn route(&self, layer: usize) -> Prepare {
        let next = self.guessed(layer);
        Prepare::Route {
            biases: self.vector(layer, T::SelectionBias),
            next: next
                .map(|(later, _)| self.vector(later, T::SelectionBias))
                .collect(),
        }
    }

    fn ffn(&mut self, layer: usize) {
        let block = &self.network.layers[layer].ffn;
        let parallel = self.network.layers[layer].parallel;
        let norm = match block.pre_norm {
            None if parallel => self.mixer_norm(layer),
            own => self.norm(own, layer, (T::FfnNorm, Some(T::FfnNormBias))),
        };
        let join = self.join_output(layer);
        let input = Prepare::Norm {
            norm,
            only_wanted: false,
        };
        // In parallel layers, the mixer's output joins after the FFN's input has been made.
        let (before, after) = match parallel {
            true => (None, Some(join)),
            false => (Some(join), None),
        };
        let mut prepare: Vec<Prepare> = before.into_iter().collect();
        if self.options.predicted && !self.predicts_before(layer) {
            self.predictor(layer, std::mem::take(&mut prepare));
            prepare.push(Prepare::TakeHidden);
        }
        let show = Prepare::ShowResidual {
            before_layer: false,
        };
        prepare.extend([show, input.clone()]);
        if self.network.experts(layer).is_some() && !self.routes_before(layer) {
            // The router has the same input, perhaps in another form.
            self.router(layer, std::mem::take(&mut prepare));
            prepare = vec![self.route(layer), input];
        }
        prepare.extend(after);
        let contents = [
            Content::HotNeurons(layer),
            Content::Neurons(layer),
            Content::Experts(layer),
        ];
        let items = contents
            .iter()
            .filter_map(|content| self.items.get(content));
        let items: Vec<Item> = items.flatten().copied().collect();
        let bias = self.vector(layer, T::GateBias);
        let expert_biases = [T::ExpertGateBias, T::ExpertUpBias].map(|t| self.vector(layer, t));
        let work = |part| Work::Neurons {
            part,
            bias: bias.clone(),
            expert_biases: expert_biases.clone(),
            routed: self.network.experts(layer).is_some(),
            items: items.clone(),
        };
        if !self.options.by_matrix {
            return self.push(layer, prepare, work(Part::Whole));
        }
        self.push(layer, prepare, work(Part::Gates));
        self.push(layer, Vec::new(), work(Part::UpDown));
    }

    fn head(&mut self) {
        let (n_layers, head) = (self.network.n_layers(), self.network.head);
        let (norm, vectors) = (self.network.output_norm, &self.bundle.vectors);
        let norm = NormAt {
            kind: norm.kind,
            weight: vectors.range(TensorId::OutputNorm),
            bias: vectors.range(TensorId::OutputNormBias),
            eps: norm.eps,
        };
        let mut prepare: Vec<Prepare> = self.begin_layer(n_layers).into_iter().collect();
        prepare.push(Prepare::Norm {
            norm: Some(norm),
            only_wanted: true,
        });
        let finish = match head.scale == 1.0 && head.softcap.is_none() {
            true => Finish::Plain,
            false => Finish::Scaled {
                scale: head.scale,
                softcap: head.softcap,
            },
        };
        let site = (Stage::Head, Board::Logits, self.network.vocab_size);
        let bias = vectors.range(TensorId::OutputHeadBias);
        let matrices = [(self.network.head_tensor(), 0, bias)];
        let work = self.rows(site, &matrices, finish);
        self.push(n_layers, prepare, work);
        if let Some(phase) = self.program.phases.last_mut() {
            phase.only_for_logits = true;
        }
    }
}

/// The bias of a matrix of a mixer's input, if there may be one.
fn bias_of(input: T) -> Option<T> {
    match input {
        T::Q => Some(T::QBias),
        T::K => Some(T::KBias),
        T::V => Some(T::VBias),
        _ => None,
    }
}
