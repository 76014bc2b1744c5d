//! The plan as data: what one core does in a step, phase by phase.
//!
//! A phase is what runs between two exchanges: first the core prepares its own copy of the residual stream and the
//! phase's input, then it works on whichever cluster is in memory. There is an exchange before each phase that reads
//! what other cores wrote, and nowhere else. [`compile`] turns a network, a residency and a number of cores into one
//! program per core; the cores interpret them and know nothing about transformers.

mod compile;
mod latent;
mod source;

use std::ops::Range;

use forebay_models::block::BlockType;
use forebay_models::network::{Activation, NormKind};
use forebay_models::tensor::TensorId;
use forebay_traces::record::Stage;

pub use compile::{Options, compile};
pub use source::{Item, Source};

/// A board of relaxed atomics on which cores publish their parts of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Board {
    /// Results of the matrices of a mixer's input side by side: Q, K and V; with latent attention also of those after
    /// them.
    Qkv,
    /// What heads of latent attention mixed, before VUp.
    Latents,
    /// The output of heads, or of a recurrent mixer's channels, before its projection.
    Heads,
    /// The mixer's output.
    Output,
    /// The predictor's fc1 times the residual stream.
    Predictor,
    /// Logits of the experts, of the gate of what every token uses, and of the next layers' experts if they are
    /// guessed.
    Router,
    /// Logits of the tokens that want them.
    Logits,
    /// The projected embeddings from which layers' inputs of tokens are made.
    Inputs,
    /// The gate of a layer's inputs.
    InputGate,
}

/// A norm with the places of its weight and bias.
#[derive(Clone, Debug, PartialEq)]
pub struct NormAt {
    /// What it divides by.
    pub kind: NormKind,
    /// Range of the weight in the model's vectors.
    pub weight: Range<usize>,
    /// Range of the bias in the model's vectors; empty if it has none.
    pub bias: Range<usize>,
    /// Added to the mean square.
    pub eps: f32,
}

/// How a block's output joins the residual stream: `x += scale * norm(output)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    /// Norm of the output.
    pub norm: Option<NormAt>,
    /// Factor.
    pub scale: f32,
    /// Place in the model's vectors of a factor by which the stream is multiplied afterwards; empty if there is none.
    pub stream: Range<usize>,
}

/// What every core does on its own before it works on clusters.
#[derive(Clone, Debug, PartialEq)]
pub enum Prepare {
    /// The residual stream becomes the embedded tokens.
    TakeEmbeddings,
    /// The mixer's output joins the residual stream.
    JoinOutput(Join),
    /// All cores' FFN shares are summed, and the sum joins the residual stream.
    JoinShares {
        /// Layer of the FFN.
        layer: usize,
        /// Range of Down's bias in the model's vectors, which is added once to the sum; empty if it has none.
        bias: Range<usize>,
        /// The same of all experts, of which each token's are added with their weights.
        expert_biases: Range<usize>,
        /// How.
        join: Join,
    },
    /// The hidden values of the predictor.
    TakeHidden,
    /// The router's logits decide which experts each token uses.
    Route {
        /// Range of the biases for the choice in the model's vectors; empty if there are none.
        biases: Range<usize>,
        /// The same of the experts of each of the next layers that are guessed.
        next: Vec<Range<usize>>,
    },
    /// Observers see the residual stream.
    ShowResidual {
        /// That before the layer instead of that before the FFN.
        before_layer: bool,
    },
    /// The input is the normalised residual stream.
    Norm {
        /// Which norm; `None` takes the stream unchanged.
        norm: Option<NormAt>,
        /// Only tokens that want logits.
        only_wanted: bool,
    },
    /// The input is what the heads wrote.
    TakeHeads,
    /// The input is the compressed queries, normalised.
    TakeQueries {
        /// Their columns on the board of the mixer's input.
        columns: Range<usize>,
        /// Columns per token on it.
        all_columns: usize,
        /// Their norm.
        norm: NormAt,
    },
    /// The input is the layer's inputs of the tokens, as far as their gate lets them through.
    TakeInputs(GatedInputs),
}

impl Prepare {
    /// Whether it makes the phase's input, as one step of each phase with matrices does.
    pub fn makes_input(&self) -> bool {
        matches!(
            self,
            Self::Norm { .. } | Self::TakeHeads | Self::TakeInputs(_)
        )
    }
}

/// `act(gate) * scale * (norm(projected) + row)`, of columns of the boards.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedInputs {
    /// The layer's columns of the projected embeddings and of the tokens' rows.
    pub columns: Range<usize>,
    /// Columns per token on these boards.
    pub all_columns: usize,
    /// Norm of the projected columns.
    pub norm: NormAt,
    /// Factor of the sum.
    pub scale: f32,
    /// Activation of the gate.
    pub activation: Activation,
}

/// Rows of one matrix in a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Its role.
    pub tensor: TensorId,
    /// Block format of its rows.
    pub block: BlockType,
    /// First column that it writes on the board.
    pub column: usize,
    /// Range of its bias in the model's vectors; empty if it has none.
    pub bias: Range<usize>,
    /// What is done with its results.
    pub finish: Finish,
    /// Where each head's rows have their own input, if it has rows for each; `None` if all have the phase's.
    pub heads: Option<ByHead>,
}

/// A matrix for each head of a layer, one after the other, each multiplied by its own part of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByHead {
    /// Where the inputs are.
    pub input: Board,
    /// Columns per token on that board.
    pub width: usize,
    /// First column of the first head's input.
    pub first: usize,
    /// Columns from one head's input to the next's.
    pub stride: usize,
    /// Columns of a head's input.
    pub cols: usize,
    /// Rows of a head.
    pub rows: usize,
    /// Columns from one head's results to the next's.
    pub out_stride: usize,
}

/// What is done with a row's result before it is published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finish {
    /// Nothing.
    Plain,
    /// `softcap * tanh(scale * x / softcap)`, or only the factor.
    Scaled {
        /// Factor.
        scale: f32,
        /// Largest magnitude.
        softcap: Option<f32>,
    },
}

/// Rows of matrices that have the same input.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// Name in the trace.
    pub stage: Stage,
    /// Where results go.
    pub board: Board,
    /// Columns per token on the board.
    pub width: usize,
    /// The matrices.
    pub matrices: Vec<Matrix>,
    /// The core's own clusters, by matrix.
    pub items: Vec<Item>,
    /// Number of the matrices, the first ones, that steps of several tokens compute: the others guess further ahead
    /// than a prompt reads.
    pub of_several: usize,
}

/// Which part of the FFN a phase computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// Only Gate, if there is a barrier between matrices. Streamed clusters hold a buffer that others need, so they are
    /// computed completely.
    Gates,
    /// The rest.
    UpDown,
}

/// What a phase works on.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Rows of matrices.
    Rows(Rows),
    /// The core's heads or channels of the layer's mixer.
    Mixer {
        /// Columns per token on the board of the input matrices' results.
        in_width: usize,
        /// Where the results go.
        board: Board,
        /// Columns per token on that board.
        width: usize,
    },
    /// Neuron clusters of the FFN.
    Neurons {
        /// Which part.
        part: Part,
        /// Range of Gate's bias in the model's vectors; empty if it has none.
        bias: Range<usize>,
        /// Ranges of the biases of the experts' Gate and Up; empty if they have none.
        expert_biases: [Range<usize>; 2],
        /// Whether tokens have been routed to experts of the layer.
        routed: bool,
        /// The core's own clusters: those that every token uses, then expert after expert.
        items: Vec<Item>,
    },
}

/// What runs between two exchanges.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Layer; the head's is the number of layers.
    pub layer: usize,
    /// Whether it is omitted from steps in which no token wants logits.
    pub only_for_logits: bool,
    /// What is done first, in this order.
    pub prepare: Vec<Prepare>,
    /// The work itself.
    pub work: Work,
}

impl Phase {
    /// Its clusters.
    pub fn items(&self) -> &[Item] {
        match &self.work {
            Work::Rows(rows) => &rows.items,
            Work::Neurons { items, .. } => items,
            Work::Mixer { .. } => &[],
        }
    }

    fn items_mut(&mut self) -> &mut [Item] {
        match &mut self.work {
            Work::Rows(rows) => &mut rows.items,
            Work::Neurons { items, .. } => items,
            Work::Mixer { .. } => &mut [],
        }
    }

    /// Its neuron clusters.
    pub fn neurons(&self) -> &[Item] {
        match &self.work {
            Work::Neurons { items, .. } => items,
            _ => &[],
        }
    }

    /// Whether its tokens use experts.
    pub fn is_routed(&self) -> bool {
        matches!(self.work, Work::Neurons { routed: true, .. })
    }

    /// Whether it computes the router's results.
    pub fn is_router(&self) -> bool {
        matches!(&self.work, Work::Rows(rows) if rows.board == Board::Router)
    }

    /// Whether single neurons are read in it.
    pub fn is_by_neuron(&self) -> bool {
        let mut items = self.neurons().iter();
        items.any(|item| item.source.is_by_neuron())
    }

    /// Whether its neurons can be asked for while earlier phases run: single ones are read, and no cluster comes
    /// through a window, which follows the order of the phases.
    pub fn can_ask_ahead(&self) -> bool {
        let mut items = self.neurons().iter();
        self.is_by_neuron() && items.all(|item| item.source.ordinal().is_none())
    }
}

/// All the work of one core in one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// The phases in order.
    pub phases: Vec<Phase>,
    /// Clusters by stream ordinal, in the order of use.
    pub stream: Vec<u32>,
    /// Neurons that the neuron cache may hold.
    pub cached_neurons: usize,
    /// Clusters that the expert cache may hold, by key, in the order of the directory.
    pub cached_clusters: Vec<u32>,
}

impl Program {
    /// Number of the phase, from `number` on, that computes the FFN of `layer`, or its first matrix.
    pub fn ffn_after(&self, number: usize, layer: usize) -> Option<usize> {
        let mut later = self.phases[number..].iter();
        let is_ffn = |work: &Work| matches!(work, Work::Neurons { .. });
        later
            .position(|phase| phase.layer == layer && is_ffn(&phase.work))
            .map(|later| number + later)
    }

    /// The same if it has experts.
    pub fn routed_after(&self, number: usize, layer: usize) -> Option<&Phase> {
        let ffn = &self.phases[self.ffn_after(number, layer)?];
        ffn.is_routed().then_some(ffn)
    }

    /// Number of the phase whose neurons predictors can name once phase `number` has been prepared, if that is a later
    /// one.
    pub fn named_ahead(&self, number: usize) -> Option<usize> {
        let phase = &self.phases[number];
        let mut prepared = phase.prepare.iter();
        match prepared.any(|p| matches!(p, Prepare::TakeHidden)) {
            true => self
                .ffn_after(number, phase.layer)
                .filter(|&ffn| ffn != number),
            false => None,
        }
    }

    /// The clusters in memory of each row phase, `[phases]`; empty for other phases. Those that a device may compute
    /// come last, the first ones at the end.
    pub fn pinned_rows(&self) -> Vec<Vec<Item>> {
        let pinned = |phase: &Phase| match &phase.work {
            Work::Rows(rows) => {
                let pinned = rows.items.iter().filter(|i| i.source.is_in_memory());
                let mut pinned: Vec<Item> = pinned.copied().collect();
                pinned.sort_by_key(|item| match item.source {
                    Source::Device { place } => u32::MAX - place,
                    _ => 0,
                });
                pinned
            }
            _ => Vec::new(),
        };
        self.phases.iter().map(pinned).collect()
    }

    /// The same work with whole clusters preloaded instead of single neurons, for prompts. What is streamed keeps its
    /// place in the order of use.
    pub fn preloading(&self) -> Self {
        let mut program = self.clone();
        program.stream.clear();
        for item in program.phases.iter_mut().flat_map(Phase::items_mut) {
            let base = item.source.base().filter(|_| item.source.is_by_neuron());
            if base.is_none() && item.source.ordinal().is_none() {
                continue;
            }
            // Both phases of a split FFN take the cluster at the same place.
            let known = program.stream.iter().rposition(|&c| c == item.cluster);
            let ordinal = known.unwrap_or(program.stream.len()) as u32;
            if known.is_none() {
                program.stream.push(item.cluster);
            }
            item.source = match base {
                Some(base) => Source::Preloaded { ordinal, base },
                None => Source::Streamed { ordinal },
            };
        }
        program
    }

    /// Clusters whose neurons are cached, in the order of the directory, each with the index of its first neuron among
    /// the core's cached ones.
    pub fn clusters_by_neuron(&self) -> Vec<(u32, u32)> {
        let items = self.phases.iter().flat_map(Phase::neurons);
        let cached = items.filter(|item| item.source.is_by_neuron());
        let mut clusters: Vec<(u32, u32)> = cached
            .filter_map(|item| Some((item.cluster, item.source.base()?)))
            .collect();
        clusters.dedup();
        clusters
    }

    /// Number of streamed clusters that a step uses, with logits or without: the head's come last.
    pub fn streamed(&self, with_logits: bool) -> usize {
        let head = self.phases.iter().filter(|phase| phase.only_for_logits);
        let streamed = |item: &&Item| item.source.ordinal().is_some();
        let of_head = head.flat_map(Phase::items).filter(streamed).count();
        self.stream.len() - if with_logits { 0 } else { of_head }
    }

    /// Maximum number of neuron clusters that are under way in a phase if a token uses `experts` of each layer: those
    /// of one token. With more tokens, others follow when these are done. A core without any takes those of others, one
    /// by one.
    pub fn max_flights(&self, experts: usize) -> usize {
        let clusters = self.phases.iter().map(|phase| {
            let items = phase.neurons();
            let first = items.partition_point(|item| item.expert.is_none());
            let by_expert = items[first..].chunk_by(|a, b| a.expert == b.expert);
            let of_one = by_expert.map(<[Item]>::len).max().unwrap_or(0);
            first + (of_one * experts).min(items.len() - first)
        });
        clusters.max().unwrap_or(0).max(1)
    }

    /// Maximum number of cached clusters of experts in a phase.
    pub fn max_experts(&self) -> usize {
        let phases = self.phases.iter();
        let cached = |item: &&Item| item.source.key().is_some();
        let clusters = phases.map(|phase| phase.neurons().iter().filter(cached).count());
        clusters.max().unwrap_or(0)
    }

    /// Maximum number of clusters in a phase of rows.
    pub fn max_rows(&self) -> usize {
        let rows = self.phases.iter().filter_map(|phase| match &phase.work {
            Work::Rows(rows) => Some(rows.items.len()),
            _ => None,
        });
        rows.max().unwrap_or(0)
    }
}
