//! Tensors by role instead of by name.

use serde::{Deserialize, Serialize};

use crate::block::BlockType;

/// A tensor of one layer. The numbers are part of the packed format and of the seeds of synthetic models: never change
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum LayerTensor {
    /// Norm before the mixer, `[d_model]`.
    AttnNorm = 0,
    /// Query projection, `[n_heads * head_dim, d_model]`; with output gates, each head's gate follows it. With latent
    /// attention a head has `query_dim` rows, and the columns may be QDown's rows.
    Q = 1,
    /// Key projection, `[n_kv_heads * head_dim, d_model]`; with latent attention, first the rows of the latent.
    K = 2,
    /// Value projection, `[n_kv_heads * head_dim, d_model]`.
    V = 3,
    /// Output projection of attention or of another mixer, `[d_model, n_heads * head_dim]`.
    O = 4,
    /// Query bias, `[n_heads * head_dim]`.
    QBias = 5,
    /// Key bias, `[n_kv_heads * head_dim]`.
    KBias = 6,
    /// Value bias, `[n_kv_heads * head_dim]`.
    VBias = 7,
    /// Norm before the FFN, `[d_model]`.
    FfnNorm = 8,
    /// The FFN's matrix whose products are activated, `[d_ff, d_model]`: Gate, or Up if there is no other.
    Gate = 9,
    /// Up projection of a gated FFN, `[d_ff, d_model]`.
    Up = 10,
    /// Down projection, `[d_model, d_ff]`.
    Down = 11,
    /// Down projection stored transposed (PowerInfer), `[d_ff, d_model]`.
    DownT = 12,
    /// Predictor's first matrix, `[rank, d_model]`.
    PredictorFc1 = 13,
    /// Predictor's second matrix, `[d_ff, rank]`.
    PredictorFc2 = 14,
    /// Norm of queries, `[head_dim]`, `[n_heads, head_dim]` or `[n_heads * head_dim]`; with latent attention of QDown's
    /// result.
    QNorm = 15,
    /// Norm of keys, `[head_dim]`, `[n_kv_heads, head_dim]` or `[n_kv_heads * head_dim]`; with latent attention of the
    /// latent, `[rank]`.
    KNorm = 16,
    /// Norm of the mixer's output, `[d_model]`.
    AttnPostNorm = 17,
    /// Norm of the FFN's output, `[d_model]`.
    FfnPostNorm = 18,
    /// Bias of the norm before the mixer, `[d_model]`.
    AttnNormBias = 19,
    /// Bias of the norm before the FFN, `[d_model]`.
    FfnNormBias = 20,
    /// Bias of attention's output projection, `[d_model]`.
    OBias = 21,
    /// Bias of the FFN's products that are activated, `[d_ff]`.
    GateBias = 22,
    /// Bias of the down projection, `[d_model]`.
    DownBias = 23,
    /// Factor of the residual stream at the layer's end, `[1]`.
    LayerScale = 24,
    /// Gate of the token's input, `[width, d_model]`.
    InputGate = 25,
    /// Projection of the gated input, `[d_model, width]`.
    InputProjection = 26,
    /// Norm of the projected input, `[d_model]`.
    InputPostNorm = 27,
    // Numbers from 28 on are of experts.
    /// What chooses the experts, `[n_experts, d_model]`.
    Router = 28,
    /// Added to the router's logits, `[n_experts]`.
    RouterBias = 29,
    /// Added to the router's scores for the choice only, `[n_experts]`.
    SelectionBias = 30,
    /// Gate of all experts, `[n_experts * d_ff, d_model]`.
    ExpertGate = 31,
    /// Up of all experts, `[n_experts * d_ff, d_model]`.
    ExpertUp = 32,
    /// Down of all experts, one after the other, `[n_experts * d_model, d_ff]`.
    ExpertDown = 33,
    /// Bias of the experts' gates, `[n_experts, d_ff]`.
    ExpertGateBias = 34,
    /// Bias of the experts' ups, `[n_experts, d_ff]`.
    ExpertUpBias = 35,
    /// Bias of the experts' results, `[n_experts, d_model]`.
    ExpertDownBias = 36,
    /// Gate of the neurons that every token uses, where there are experts, `[1, d_model]`.
    SharedGate = 37,
    /// Scores without a value that take part in attention's softmax, `[n_heads]`.
    Sinks = 38,
    // Numbers from 40 on are of recurrent mixers.
    /// Input projection of a short convolution, `[3 * channels, d_model]`: rows of b, c and x.
    ConvIn = 40,
    /// Weights of a causal convolution, `[channels, kernel]`, the current position's last. In packed files
    /// `[kernel, channels]`.
    ConvTaps = 41,
    /// Output gate of a delta net, `[n_value_heads * value_dim, d_model]`.
    OutputGate = 42,
    /// What decides how much a delta net forgets, `[n_value_heads, d_model]`.
    Alpha = 43,
    /// What decides how much a delta net writes, `[n_value_heads, d_model]`.
    Beta = 44,
    /// Added to alpha, `[n_value_heads]`.
    DecayBias = 45,
    /// How fast heads forget, below 0, `[n_value_heads]`.
    DecayRate = 46,
    /// Norm of the heads' results, `[value_dim]`.
    HeadNorm = 47,
    // Numbers from 48 on are of latent attention.
    /// Compressing query projection, `[query_rank, d_model]`.
    QDown = 48,
    /// What makes heads' keys of latents, for each head transposed, `[n_heads * rank, plain_dim]`: it is multiplied by
    /// the head's query.
    KUp = 49,
    /// What makes heads' values of latents, `[n_heads * value_dim, rank]`.
    VUp = 50,
}

impl LayerTensor {
    /// All of them, by number.
    pub const ALL: [Self; 50] = [
        Self::AttnNorm,
        Self::Q,
        Self::K,
        Self::V,
        Self::O,
        Self::QBias,
        Self::KBias,
        Self::VBias,
        Self::FfnNorm,
        Self::Gate,
        Self::Up,
        Self::Down,
        Self::DownT,
        Self::PredictorFc1,
        Self::PredictorFc2,
        Self::QNorm,
        Self::KNorm,
        Self::AttnPostNorm,
        Self::FfnPostNorm,
        Self::AttnNormBias,
        Self::FfnNormBias,
        Self::OBias,
        Self::GateBias,
        Self::DownBias,
        Self::LayerScale,
        Self::InputGate,
        Self::InputProjection,
        Self::InputPostNorm,
        Self::Router,
        Self::RouterBias,
        Self::SelectionBias,
        Self::ExpertGate,
        Self::ExpertUp,
        Self::ExpertDown,
        Self::ExpertGateBias,
        Self::ExpertUpBias,
        Self::ExpertDownBias,
        Self::SharedGate,
        Self::Sinks,
        Self::ConvIn,
        Self::ConvTaps,
        Self::OutputGate,
        Self::Alpha,
        Self::Beta,
        Self::DecayBias,
        Self::DecayRate,
        Self::HeadNorm,
        Self::QDown,
        Self::KUp,
        Self::VUp,
    ];

    /// Norms, biases, factors and other parameters of channels and heads, in the order in which packed files hold those
    /// of a layer.
    pub(crate) const VECTORS: [Self; 26] = [
        Self::AttnNorm,
        Self::AttnNormBias,
        Self::QBias,
        Self::KBias,
        Self::VBias,
        Self::QNorm,
        Self::KNorm,
        Self::OBias,
        Self::Sinks,
        Self::ConvTaps,
        Self::DecayBias,
        Self::DecayRate,
        Self::HeadNorm,
        Self::AttnPostNorm,
        Self::FfnNorm,
        Self::FfnNormBias,
        Self::GateBias,
        Self::DownBias,
        Self::RouterBias,
        Self::SelectionBias,
        Self::ExpertGateBias,
        Self::ExpertUpBias,
        Self::ExpertDownBias,
        Self::FfnPostNorm,
        Self::InputPostNorm,
        Self::LayerScale,
    ];

    /// Whether it belongs to an activation predictor.
    #[inline]
    pub fn is_predictor(self) -> bool {
        matches!(self, Self::PredictorFc1 | Self::PredictorFc2)
    }

    /// Whether it is added to the result of a projection or of a norm.
    pub fn is_bias(self) -> bool {
        matches!(
            self,
            Self::AttnNormBias
                | Self::FfnNormBias
                | Self::QBias
                | Self::KBias
                | Self::VBias
                | Self::OBias
                | Self::GateBias
                | Self::DownBias
                | Self::RouterBias
                | Self::SelectionBias
                | Self::ExpertGateBias
                | Self::ExpertUpBias
                | Self::ExpertDownBias
        )
    }
}

/// A tensor of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorId {
    /// Token embedding, `[vocab_size, d_model]`.
    TokenEmbedding,
    /// Final norm, `[d_model]`.
    OutputNorm,
    /// Bias of the final norm, `[d_model]`.
    OutputNormBias,
    /// Output head, `[vocab_size, d_model]`; absent if the head is tied.
    OutputHead,
    /// Bias of the output head, `[vocab_size]`.
    OutputHeadBias,
    /// Learned positions, `[context_length + offset, d_model]`.
    PositionEmbedding,
    /// Table of token inputs, `[vocab_size, n_layers * width]`.
    TokenInputs,
    /// Projection of embeddings to token inputs, `[n_layers * width, d_model]`.
    InputsProjection,
    /// Norm of each layer's projected inputs, `[width]`.
    InputsNorm,
    /// A tensor of layer `.0`.
    Layer(usize, LayerTensor),
}

impl TensorId {
    /// Whether it is a norm, a bias, a factor, the weights of a convolution or a decay, or the table of positions:
    /// always in memory, as f32.
    pub fn is_vector(self) -> bool {
        match self {
            Self::OutputNorm | Self::OutputNormBias | Self::InputsNorm => true,
            Self::OutputHeadBias | Self::PositionEmbedding => true,
            Self::Layer(_, t) => LayerTensor::VECTORS.contains(&t),
            Self::TokenEmbedding
            | Self::OutputHead
            | Self::TokenInputs
            | Self::InputsProjection => false,
        }
    }

    /// Whether it has a matrix for every expert.
    pub fn is_of_experts(self) -> bool {
        use LayerTensor::{ExpertDown, ExpertGate, ExpertUp};
        matches!(self, Self::Layer(_, ExpertGate | ExpertUp | ExpertDown))
    }

    /// Whether it has a matrix for every expert or every head, one after the other.
    pub fn is_stack(self) -> bool {
        use LayerTensor::{KUp, VUp};
        self.is_of_experts() || matches!(self, Self::Layer(_, KUp | VUp))
    }

    /// Whether it belongs to an activation predictor.
    #[inline]
    pub fn is_predictor(self) -> bool {
        matches!(self, Self::Layer(_, t) if t.is_predictor())
    }
}

/// Shape and type of a tensor. Rows are contiguous: `rows` rows of `cols` elements, row-major;
/// a vector has one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMeta {
    /// Name in the source, for messages.
    pub name: String,
    /// Block format of each row.
    pub block: BlockType,
    /// Number of rows (GGUF's last dimension, safetensors' first).
    pub rows: usize,
    /// Elements per row; a multiple of the block length.
    pub cols: usize,
}

impl TensorMeta {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.block.block_len() * self.block.block_bytes()
    }

    /// Bytes of the tensor.
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }
}

/// How a source stores the elements of a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stored {
    /// As they are used.
    #[default]
    AsIs,
    /// As the difference from 1.
    MinusOne,
    /// As the logarithm of the negated value.
    LogOfMinus,
}

impl Stored {
    /// The value that is used.
    pub(crate) fn value(self, stored: f32) -> f32 {
        match self {
            Self::AsIs => stored,
            Self::MinusOne => stored + 1.0,
            Self::LogOfMinus => -f64::from(stored).exp() as f32,
        }
    }
}
