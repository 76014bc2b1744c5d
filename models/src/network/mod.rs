//! A decoder-only model as plain data: everything that the forward pass needs to know. Architectures (the files of
//! `arch/`) describe themselves in these terms; the code that reads, packs, places, costs or computes a model iterates
//! over the description and never asks which architecture it is.
//!
//! A network is layers of blocks: a mixer of tokens (attention, or a recurrent one), an FFN, and in some a mixer of
//! what the token itself says. A block adds to the residual stream `x`: `x += residual_scale *
//! post_norm(body(pre_norm(x)))`, where either norm may be missing. In a parallel layer, both blocks add to the same
//! `x`.

mod check;
mod experts;
mod latent;
mod mixer;
mod rope;
mod tensors;
mod uniform;
mod widest;

use serde::{Deserialize, Serialize};

pub use experts::{Experts, Groups, Router, Scores};
pub use forebay_numbers::activation::Activation;
pub use forebay_numbers::rope_pairing::RopePairing;
pub use latent::Latent;
pub use mixer::{DeltaNet, KeySharing, Mixer, ShortConv};
pub use rope::{NOT_ROTATED, Rope, RopeScaling};
pub use tensors::{Content, Shape};
pub use uniform::Uniform;

use crate::tensor::{LayerTensor, TensorId};

/// So many layers ahead, experts may be guessed. Each layer costs Qwen3-30B-A3B 4 points of its 79% of right guesses.
pub const MOST_GUESSED_LAYERS: usize = 3;

/// Hot neurons are a multiple of so many, and so are those of their clusters.
pub const HOT_GRANULE: usize = 32;

/// A model's shape and constants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// Human-readable name from the file, or its stem.
    pub name: String,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Rows of the output head and of the embedding.
    pub vocab_size: usize,
    /// Context length for which the model was trained, in tokens.
    pub context_length: usize,
    /// Factor of embedding rows.
    pub embedding_scale: f32,
    /// Learned positions, which are added to embedding rows: position p is row `p + offset` of a table with
    /// `context_length + offset` rows. `None` if there is no table.
    pub position_offset: Option<usize>,
    /// What layers get of a token besides the residual stream, if they do.
    pub token_inputs: Option<TokenInputs>,
    /// The kinds of rotation to which layers refer.
    pub ropes: Vec<Rope>,
    /// The layers, from the embedding to the head.
    pub layers: Vec<Layer>,
    /// Norm before the head.
    pub output_norm: Norm,
    /// The output head.
    pub head: Head,
    /// PowerInfer's `sparse_threshold`: a neuron is skipped when its predictor scores below.
    pub predictor_threshold: f32,
}

/// Inputs of layers that depend on the token alone.
///
/// With the scaled embedding `e` of a token and its row of a table, the inputs of all layers are `scale *
/// (norm(projection_scale * projection · e) + table_scale * row)`: the first `width` columns are the first layer's, and
/// so on. The norm is an RMSNorm of a layer's columns, with the same weights in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenInputs {
    /// Columns of one layer.
    pub width: usize,
    /// Factor of the table's rows.
    pub table_scale: f32,
    /// Factor of the projected embedding.
    pub projection_scale: f32,
    /// Added to the mean square in the norm.
    pub eps: f32,
    /// Factor of the sum.
    pub scale: f32,
}

/// One layer: two blocks, one after the other or beside each other, and sometimes a third.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// Mixes positions.
    pub mixer: Block<Mixer>,
    /// Mixes the columns of one position.
    pub ffn: Block<Ffn>,
    /// Whether the FFN's input is made from the same residual stream as the mixer's: by its own norm, or else by that
    /// of the mixer. Otherwise it is made from what the mixer has added to.
    pub parallel: bool,
    /// Mixes in the layer's input of the token, after the FFN. It has no norm of its own input.
    pub input: Option<Block<InputMixer>>,
    /// Whether the residual stream is multiplied by a learned number at the layer's end.
    pub scaled: bool,
}

/// A body with its norms and its factor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block<Body> {
    /// Norm of the body's input.
    pub pre_norm: Option<Norm>,
    /// What is computed.
    pub body: Body,
    /// Norm of the body's output.
    pub post_norm: Option<Norm>,
    /// Factor of the output before it is added to the residual stream.
    pub residual_scale: f32,
}

/// A norm with a weight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Norm {
    /// What it divides by.
    pub kind: NormKind,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether a bias is added last. Norms of outputs have none.
    pub bias: bool,
}

/// A kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// RMSNorm: `x / sqrt(mean(x²) + eps) * weight`.
    Rms,
    /// LayerNorm: the same with `x - mean(x)` in place of `x`.
    Layer,
}

impl Norm {
    /// RMSNorm without a bias.
    pub fn rms(eps: f32) -> Self {
        Self {
            kind: NormKind::Rms,
            eps,
            bias: false,
        }
    }
}

/// Causal grouped-query attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads (GQA); divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head; `n_heads * head_dim` may differ from `d_model`.
    pub head_dim: usize,
    /// Where keys and values come from.
    pub kv: KvOrigin,
    /// What makes keys and values of all heads from one vector, which is stored instead; `None` if K and V are them.
    pub latent: Option<Latent>,
    /// Whether Q, K and V have biases.
    pub qkv_bias: bool,
    /// Whether O has a bias.
    pub out_bias: bool,
    /// Whether heads' results are multiplied by the sigmoid of a gate, whose rows follow the head's own in Q.
    pub output_gate: bool,
    /// Norm of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Epsilon of an RMSNorm of each head's values, which has no weight; `None` if there is no such norm.
    pub v_norm: Option<f32>,
    /// Index into [`Network::ropes`]; `None` if positions are not encoded.
    pub rope: Option<usize>,
    /// Sliding window: how many positions a token sees at most, including its own.
    pub window: Option<usize>,
    /// Factor of the scores.
    pub scale: f32,
    /// `c * tanh(score / c)`, after the factor.
    pub softcap: Option<f32>,
    /// Factor of the queries that grows with the position.
    pub temperature: Option<Temperature>,
    /// Whether each head has a learned score that takes part in the softmax, and has no value (gpt-oss).
    pub sinks: bool,
}

/// Where a layer's keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvOrigin {
    /// Matrices of its own, K and V.
    Own,
    /// K alone: the values are the keys before their norm and rotation, or the latent part of the keys.
    KeysAlone,
    /// An earlier layer, which has its own: this one stores none, and attends over that layer's.
    Layer(usize),
}

/// Norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QkNorm {
    /// What it divides by.
    pub kind: NormKind,
    /// What it spans, and so how long its weights are.
    pub span: NormSpan,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether it comes after the rotation instead of before.
    pub after_rope: bool,
}

/// What a norm of queries or keys spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormSpan {
    /// Each head separately, all with the same weights, `[head_dim]`.
    Head,
    /// Each head separately with its own weights, `[heads, head_dim]`.
    OwnHead,
    /// All heads together, `[heads * head_dim]`.
    Row,
}

/// Queries are multiplied by `1 + beta * ln(1 + floor(position / original_context))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Temperature {
    /// Strength of the growth.
    pub beta: f32,
    /// Positions of the original training.
    pub original_context: usize,
}

/// An FFN: `down · (act(gate · x) * up · x)` if it is gated, else `down · act(gate · x)`, where Gate and Down may
/// have biases. In some models most neurons are in experts, of which each token uses a few.
///
/// The matrix whose product is activated is Gate in either case, since it decides which neurons are alive. Without
/// another one beside it, files call it Up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ffn {
    /// Neurons that every token uses; 0 if all are in experts.
    pub d_ff: usize,
    /// How many of them, the first ones, are hot: alive for most tokens, so that they are stored in panels and computed
    /// for every token, whereas single ones of the others are (PowerInfer-2 section 4.1).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hot: usize,
    /// Activation of the gate.
    pub activation: Activation,
    /// Whether there is Up.
    pub gated: bool,
    /// Whether Gate and Down of the neurons that every token uses have biases; gated FFNs have none.
    pub bias: bool,
    /// The experts, if there are any.
    pub experts: Option<Experts>,
    /// If predictors choose neurons: whether they see the residual stream before the layer instead of that before the
    /// FFN. Then missing neurons can be read while the mixer is computed.
    pub predictor_before_layer: bool,
}

/// Mixes an input of the token into the residual stream: `projection · (act(gate · x) * input)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputMixer {
    /// Activation of the gate.
    pub activation: Activation,
}

/// From the normalised residual stream to logits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Whether the output head is the embedding matrix.
    pub tied: bool,
    /// Whether logits have biases, which are added before the factor.
    pub bias: bool,
    /// Factor of the logits.
    pub scale: f32,
    /// `c * tanh(logit / c)`, after the factor.
    pub softcap: Option<f32>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Ffn {
    /// The matrices that have a row for each neuron that every token uses; Down, which has a column, is not among them.
    pub fn row_matrices(&self) -> &'static [LayerTensor] {
        match (self.d_ff, self.gated) {
            (0, _) => &[],
            (_, true) => &[LayerTensor::Gate, LayerTensor::Up],
            (_, false) => &[LayerTensor::Gate],
        }
    }

    /// The same of the experts' neurons.
    pub fn expert_row_matrices(&self) -> &'static [LayerTensor] {
        match (&self.experts, self.gated) {
            (None, _) => &[],
            (_, true) => &[LayerTensor::ExpertGate, LayerTensor::ExpertUp],
            (_, false) => &[LayerTensor::ExpertGate],
        }
    }
}

impl Attention {
    /// Columns of all queries: `n_heads * head_dim`.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Rows of Q: queries, and gates if there are any.
    pub fn q_rows(&self) -> usize {
        self.n_heads * self.query_dim() * (1 + usize::from(self.output_gate))
    }

    /// Elements of the keys of all heads, and of the values: `n_kv_heads * head_dim`.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Rows of K: none if the keys are another layer's.
    pub fn k_rows(&self) -> usize {
        match self.kv {
            KvOrigin::Own | KvOrigin::KeysAlone => self.kv_dim(),
            KvOrigin::Layer(_) => 0,
        }
    }

    /// Rows of V: none if the values are the keys, or another layer's.
    pub fn v_rows(&self) -> usize {
        match self.kv {
            KvOrigin::Own => self.kv_dim(),
            KvOrigin::KeysAlone | KvOrigin::Layer(_) => 0,
        }
    }
}

impl Temperature {
    /// The factor of the query at `position`.
    pub fn at(&self, position: usize) -> f32 {
        let times = (position / self.original_context.max(1)) as f64;
        (1.0 + f64::from(self.beta) * (1.0 + times).ln()) as f32
    }
}

impl Network {
    /// Number of layers.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// What mixes the positions in a layer.
    pub fn mixer(&self, layer: usize) -> &Mixer {
        &self.layers[layer].mixer.body
    }

    /// A layer's attention; `None` if its mixer is recurrent.
    pub fn attention(&self, layer: usize) -> Option<&Attention> {
        self.mixer(layer).attention()
    }

    /// The attention of all layers that have it.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.layers.iter().filter_map(|l| l.mixer.body.attention())
    }

    /// As [`Self::attentions`], to be changed.
    pub fn attentions_mut(&mut self) -> impl Iterator<Item = &mut Attention> {
        let mixers = self.layers.iter_mut().map(|l| &mut l.mixer.body);
        mixers.filter_map(Mixer::attention_mut)
    }

    /// Whether a layer's past is a state that cannot be taken back to an earlier position.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|l| l.mixer.body.is_recurrent())
    }

    /// A layer's FFN.
    pub fn ffn(&self, layer: usize) -> &Ffn {
        &self.layers[layer].ffn.body
    }

    /// Columns of a layer's input of a token; 0 if layers have none.
    pub fn input_width(&self) -> usize {
        self.token_inputs.map_or(0, |inputs| inputs.width)
    }

    /// The same of all layers together.
    pub fn inputs_width(&self) -> usize {
        self.n_layers() * self.input_width()
    }

    /// A layer's experts, if it has any.
    pub fn experts(&self, layer: usize) -> Option<&Experts> {
        self.layers.get(layer)?.ffn.body.experts.as_ref()
    }

    /// Neurons of all layers that every token uses.
    pub fn n_neurons(&self) -> usize {
        self.layers.iter().map(|l| l.ffn.body.d_ff).sum()
    }

    /// Whether any layer has hot neurons.
    pub fn has_hot_neurons(&self) -> bool {
        self.layers.iter().any(|l| l.ffn.body.hot > 0)
    }

    /// Whether every layer's activation has true zeros, so that neurons can be skipped without changing the result.
    pub fn is_sparse(&self) -> bool {
        self.layers
            .iter()
            .all(|l| l.ffn.body.activation.is_sparse())
    }

    /// Rows of each head if a matrix has one for each, which is multiplied by a part of the input: KUp and VUp.
    pub fn rows_of_head(&self, id: TensorId) -> Option<usize> {
        let TensorId::Layer(layer, t) = id else {
            return None;
        };
        let latent = self.layers.get(layer)?.mixer.body.attention()?.latent?;
        match t {
            LayerTensor::KUp => Some(latent.rank),
            LayerTensor::VUp => Some(latent.value_dim),
            _ => None,
        }
    }

    /// The experts of the layer that is `later` layers after `layer`, if its router may be applied to what that of
    /// `layer` is applied to, as a guess: both have inputs of FFNs, which differ little from layer to layer. Routers
    /// that choose before their layers are early enough: for SmallThinker guesses gained nothing.
    pub fn guessed_at(&self, layer: usize, later: usize) -> Option<&Experts> {
        let after_mixer = |layer: usize| {
            let experts = self.layers.get(layer)?.ffn.body.experts.as_ref()?;
            (!experts.router.before_layer).then_some(experts)
        };
        after_mixer(layer).and(after_mixer(layer + later))
    }

    /// Maximum number of experts of a layer that a token uses.
    pub fn most_used_experts(&self) -> usize {
        let used = (0..self.n_layers()).filter_map(|l| Some(self.experts(l)?.used));
        used.max().unwrap_or(0)
    }

    /// No more cores can share the mixers: the minimum number of query heads, value heads or channels of a layer.
    pub fn most_cores(&self) -> usize {
        let cores = self.layers.iter().map(|l| l.mixer.body.most_cores());
        cores.min().unwrap_or(1)
    }
}
