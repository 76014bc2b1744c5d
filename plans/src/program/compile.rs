//! Compiles a network, a residency and a number of cores into each core's program.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_models::block::BlockType;
use forebay_models::bundle::Bundle;
use forebay_models::network::{Content, Network, Norm};
use forebay_models::tensor::{LayerTensor as T, TensorId};
use forebay_traces::record::Stage;

use super::{
    Board, Finish, Item, Join, Matrix, NormAt, Part, Phase, Prepare, Program, Rows, Source, Work,
};
use crate::residency::{Residency, ResidencyPlan};

/// How a program is compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Predictors decide which neurons are computed.
    pub predicted: bool,
    /// A barrier stands between the FFN's matrices: a baseline.
    pub by_matrix: bool,
}

/// The program of core `rank`.
pub fn compile(bundle: &Bundle, plan: &ResidencyPlan, rank: usize, options: Options) -> Program {
    let mut compiler = Compiler::new(bundle, options);
    compiler.take_clusters(plan, rank);
    for layer in 0..compiler.network.n_layers() {
        compiler.attention(layer);
        if options.predicted {
            compiler.predictor(layer);
        }
        compiler.ffn(layer);
    }
    compiler.head();
    compiler.program
}

struct Compiler<'a> {
    bundle: &'a Bundle,
    network: &'a Network,
    options: Options,
    /// The core's own clusters.
    items: BTreeMap<Content, Vec<Item>>,
    program: Program,
}

impl<'a> Compiler<'a> {
    fn new(bundle: &'a Bundle, options: Options) -> Self {
        Self {
            bundle,
            network: &bundle.meta.network,
            options,
            items: BTreeMap::new(),
            program: Program::default(),
        }
    }

    /// Sorts the core's clusters; the directory lists them in the order of use.
    fn take_clusters(&mut self, plan: &ResidencyPlan, rank: usize) {
        let program = &mut self.program;
        for (i, entry) in self.bundle.clusters.iter().enumerate() {
            if usize::from(plan.owner[i]) != rank {
                continue;
            }
            let source = match plan.residency[i] {
                Residency::OnFlash => continue,
                Residency::Pinned => Source::Pinned,
                kept @ (Residency::GatePinned | Residency::Neurons) => {
                    let base = program.cached_neurons as u32;
                    program.cached_neurons += entry.count as usize;
                    match kept {
                        Residency::GatePinned => Source::GatePinned { base },
                        _ => Source::Neurons { base },
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
                source,
            };
            self.items.entry(entry.content).or_default().push(item);
        }
    }

    fn push(&mut self, layer: usize, prepare: Vec<Prepare>, work: Work) {
        self.program.phases.push(Phase {
            layer,
            only_for_logits: false,
            prepare,
            work,
        });
    }

    fn vector(&self, layer: usize, t: T) -> Range<usize> {
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
    fn begin_layer(&self, layer: usize) -> Prepare {
        let Some(before) = layer.checked_sub(1) else {
            return Prepare::TakeEmbeddings;
        };
        let ffn = &self.network.layers[before].ffn;
        Prepare::JoinShares {
            layer: before,
            bias: self.vector(before, T::DownBias),
            join: Join {
                norm: self.norm(ffn.post_norm, before, (T::FfnPostNorm, None)),
                scale: ffn.residual_scale,
            },
        }
    }

    /// Rows of matrices, which are given with their first columns and biases.
    fn rows(
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
        };
        for (number, (tensor, column, bias)) in matrices.iter().enumerate() {
            rows.matrices.push(Matrix {
                block: self.block(*tensor),
                column: *column,
                bias: bias.clone(),
                finish,
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

    /// The norm of attention's input; in parallel layers, of the FFN's as well, unless that has its own.
    fn attention_norm(&self, layer: usize) -> Option<NormAt> {
        let norm = self.network.layers[layer].attention.pre_norm;
        self.norm(norm, layer, (T::AttnNorm, Some(T::AttnNormBias)))
    }

    fn attention(&mut self, layer: usize) {
        let block = &self.network.layers[layer].attention;
        let a = &block.body;
        let (q, kv) = (a.q_dim(), a.kv_dim());
        let norm = self.attention_norm(layer);
        let prepare = vec![
            self.begin_layer(layer),
            Prepare::Norm {
                norm,
                only_wanted: false,
            },
        ];
        let id = |t| TensorId::Layer(layer, t);
        let matrices = [
            (id(T::Q), 0, self.vector(layer, T::QBias)),
            (id(T::K), q, self.vector(layer, T::KBias)),
            (id(T::V), q + kv, self.vector(layer, T::VBias)),
        ];
        let site = (Stage::Qkv, Board::Qkv, a.qkv_dim());
        let work = self.rows(site, &matrices, Finish::Plain);
        self.push(layer, prepare, work);
        let heads = Work::Heads {
            qkv_width: a.qkv_dim(),
            width: q,
        };
        self.push(layer, Vec::new(), heads);
        let site = (Stage::Output, Board::Output, self.network.d_model);
        let matrices = [(id(T::O), 0, self.vector(layer, T::OBias))];
        let work = self.rows(site, &matrices, Finish::Plain);
        self.push(layer, vec![Prepare::TakeHeads], work);
    }

    fn join_output(&self, layer: usize) -> Prepare {
        let attention = &self.network.layers[layer].attention;
        Prepare::JoinOutput(Join {
            norm: self.norm(attention.post_norm, layer, (T::AttnPostNorm, None)),
            scale: attention.residual_scale,
        })
    }

    /// The predictor's first matrix, over the residual stream before the norm.
    fn predictor(&mut self, layer: usize) {
        let predictors = self.bundle.meta.predictors.iter().flatten();
        let rank = predictors.map(|p| p.rank).max().unwrap_or(0);
        let fc1 = TensorId::Layer(layer, T::PredictorFc1);
        let mut prepare = vec![Prepare::Norm {
            norm: None,
            only_wanted: false,
        }];
        if !self.network.layers[layer].parallel {
            prepare.insert(0, self.join_output(layer));
        }
        let site = (Stage::Pred, Board::Predictor, rank);
        let work = self.rows(site, &[(fc1, 0, 0..0)], Finish::Plain);
        self.push(layer, prepare, work);
    }

    fn ffn(&mut self, layer: usize) {
        let block = &self.network.layers[layer].ffn;
        let parallel = self.network.layers[layer].parallel;
        let norm = match block.pre_norm {
            None if parallel => self.attention_norm(layer),
            own => self.norm(own, layer, (T::FfnNorm, Some(T::FfnNormBias))),
        };
        let (predicted, join) = (self.options.predicted, self.join_output(layer));
        let hidden = predicted.then_some(Prepare::TakeHidden);
        let input = Prepare::Norm {
            norm,
            only_wanted: false,
        };
        // In parallel layers, attention's output joins after the FFN's input has been made.
        let (before, after) = match parallel {
            true => (None, Some(join)),
            // With predictors, it has joined before their phase.
            false => (Some(join).filter(|_| !predicted), None),
        };
        let own = [Prepare::ShowResidual, input];
        let prepare = hidden
            .into_iter()
            .chain(before)
            .chain(own)
            .chain(after)
            .collect();
        let items = self.items.get(&Content::Neurons(layer)).cloned();
        let items = items.unwrap_or_default();
        let bias = self.vector(layer, T::GateBias);
        let work = |part| Work::Neurons {
            part,
            bias: bias.clone(),
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
        let prepare = vec![
            self.begin_layer(n_layers),
            Prepare::Norm {
                norm: Some(norm),
                only_wanted: true,
            },
        ];
        let finish = match head.scale == 1.0 && head.softcap.is_none() {
            true => Finish::Plain,
            false => Finish::Logits {
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
