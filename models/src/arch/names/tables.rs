//! Names that several architectures have.

use super::Name;
use crate::tensor::{LayerTensor as T, TensorId};

/// Embedding, final norm and head.
pub(in crate::arch) const MODEL: [Name; 3] = [
    Name::model(
        "token_embd.weight",
        "model.embed_tokens.weight",
        TensorId::TokenEmbedding,
    ),
    Name::model(
        "output_norm.weight",
        "model.norm.weight",
        TensorId::OutputNorm,
    ),
    Name::model("output.weight", "lm_head.weight", TensorId::OutputHead),
];

/// The same for checkpoints that store the norm's difference from 1.
pub(in crate::arch) const MODEL_PLUS_ONE: [Name; 3] = [MODEL[0], MODEL[1].plus_one(), MODEL[2]];

/// Norms of the blocks' inputs.
pub(in crate::arch) const PRE_NORMS: [Name; 2] = [
    Name::layer("attn_norm.weight", "input_layernorm.weight", &[T::AttnNorm]),
    Name::layer(
        "ffn_norm.weight",
        "post_attention_layernorm.weight",
        &[T::FfnNorm],
    ),
];

/// The norm of both blocks' input in parallel layers.
pub(in crate::arch) const SHARED_PRE_NORM: [Name; 1] = [PRE_NORMS[0]];

/// Biases of the norms of the blocks' inputs.
pub(in crate::arch) const PRE_NORM_BIASES: [Name; 2] = [
    Name::layer("attn_norm.bias", "input_layernorm.bias", &[T::AttnNormBias]),
    Name::layer(
        "ffn_norm.bias",
        "post_attention_layernorm.bias",
        &[T::FfnNormBias],
    ),
];

/// Bias of the final norm.
pub(in crate::arch) const MODEL_NORM_BIAS: [Name; 1] = [Name::model(
    "output_norm.bias",
    "model.norm.bias",
    TensorId::OutputNormBias,
)];

/// Norms of queries and keys.
pub(in crate::arch) const QK_NORMS: [Name; 2] = [
    Name::layer("attn_q_norm.weight", "self_attn.q_norm.weight", &[T::QNorm]),
    Name::layer("attn_k_norm.weight", "self_attn.k_norm.weight", &[T::KNorm]),
];

/// Norms of the blocks' outputs.
pub(in crate::arch) const POST_NORMS: [Name; 2] = [
    Name::layer(
        "post_attention_norm.weight",
        "post_attention_layernorm.weight",
        &[T::AttnPostNorm],
    ),
    Name::layer(
        "post_ffw_norm.weight",
        "post_feedforward_layernorm.weight",
        &[T::FfnPostNorm],
    ),
];

/// Norms of the blocks' inputs if there are also norms of their outputs.
pub(in crate::arch) const INNER_PRE_NORMS: [Name; 2] = [
    Name::layer("attn_norm.weight", "input_layernorm.weight", &[T::AttnNorm]),
    Name::layer(
        "ffn_norm.weight",
        "pre_feedforward_layernorm.weight",
        &[T::FfnNorm],
    ),
];

/// Table, projection and norm of token inputs.
pub(in crate::arch) const TOKEN_INPUTS: [Name; 3] = [
    Name::model(
        "per_layer_token_embd.weight",
        "model.embed_tokens_per_layer.weight",
        TensorId::TokenInputs,
    ),
    Name::model(
        "per_layer_model_proj.weight",
        "model.per_layer_model_projection.weight",
        TensorId::InputsProjection,
    ),
    Name::model(
        "per_layer_proj_norm.weight",
        "model.per_layer_projection_norm.weight",
        TensorId::InputsNorm,
    ),
];

/// The block that mixes them in.
pub(in crate::arch) const INPUT_MIXER: [Name; 3] = [
    Name::layer(
        "inp_gate.weight",
        "per_layer_input_gate.weight",
        &[T::InputGate],
    ),
    Name::layer(
        "proj.weight",
        "per_layer_projection.weight",
        &[T::InputProjection],
    ),
    Name::layer(
        "post_norm.weight",
        "post_per_layer_input_norm.weight",
        &[T::InputPostNorm],
    ),
];

/// Factor of the residual stream at the end of a layer.
pub(in crate::arch) const LAYER_SCALE: [Name; 1] = [Name::layer(
    "layer_output_scale.weight",
    "layer_scalar",
    &[T::LayerScale],
)];

/// These names for checkpoints that store the difference from 1.
pub(in crate::arch) const fn plus_one(names: [Name; 2]) -> [Name; 2] {
    [names[0].plus_one(), names[1].plus_one()]
}

/// Q, K, V and O. Converters to GGUF can be told to make one tensor of the first three.
pub(in crate::arch) const ATTENTION: [Name; 5] = [
    Name::layer("attn_q.weight", "self_attn.q_proj.weight", &[T::Q]),
    Name::layer("attn_k.weight", "self_attn.k_proj.weight", &[T::K]),
    Name::layer("attn_v.weight", "self_attn.v_proj.weight", &[T::V]),
    Name::layer("attn_output.weight", "self_attn.o_proj.weight", &[T::O]),
    Name::layer("attn_qkv.weight", "", &[T::Q, T::K, T::V]),
];

/// Biases of Q, K and V.
pub(in crate::arch) const QKV_BIAS: [Name; 4] = [
    Name::layer("attn_q.bias", "self_attn.q_proj.bias", &[T::QBias]),
    Name::layer("attn_k.bias", "self_attn.k_proj.bias", &[T::KBias]),
    Name::layer("attn_v.bias", "self_attn.v_proj.bias", &[T::VBias]),
    Name::layer("attn_qkv.bias", "", &[T::QBias, T::KBias, T::VBias]),
];

/// Bias of O.
pub(in crate::arch) const O_BIAS: [Name; 1] = [Name::layer(
    "attn_output.bias",
    "self_attn.o_proj.bias",
    &[T::OBias],
)];

/// Gate, Up and Down, each in its own tensor.
pub(in crate::arch) const FFN: [Name; 3] = [
    Name::layer("ffn_gate.weight", "mlp.gate_proj.weight", &[T::Gate]),
    Name::layer("ffn_up.weight", "mlp.up_proj.weight", &[T::Up]),
    Name::layer("ffn_down.weight", "mlp.down_proj.weight", &[T::Down]),
];

/// An FFN that is not gated: its one matrix of rows, which decides what is alive, and Down.
pub(in crate::arch) const PLAIN_FFN: [Name; 2] = [
    Name::layer("ffn_up.weight", "mlp.up_proj.weight", &[T::Gate]),
    Name::layer("ffn_down.weight", "mlp.down_proj.weight", &[T::Down]),
];

/// Gate and Up in one tensor, and Down.
pub(in crate::arch) const FUSED_FFN: [Name; 2] = [
    Name::layer(
        "ffn_up.weight",
        "mlp.gate_up_proj.weight",
        &[T::Gate, T::Up],
    ),
    Name::layer("ffn_down.weight", "mlp.down_proj.weight", &[T::Down]),
];

/// What chooses experts.
pub(in crate::arch) const ROUTER: [Name; 1] = [Name::layer(
    "ffn_gate_inp.weight",
    "mlp.gate.weight",
    &[T::Router],
)];

/// Gate, Up and Down of experts. Converters to GGUF can be told to make one tensor of Gate and Up.
pub(in crate::arch) const EXPERTS: [Name; 4] = [
    Name::layer(
        "ffn_gate_exps.weight",
        "mlp.experts.*.gate_proj.weight",
        &[T::ExpertGate],
    ),
    Name::layer(
        "ffn_up_exps.weight",
        "mlp.experts.*.up_proj.weight",
        &[T::ExpertUp],
    ),
    Name::layer(
        "ffn_down_exps.weight",
        "mlp.experts.*.down_proj.weight",
        &[T::ExpertDown],
    ),
    Name::layer("ffn_gate_up_exps.weight", "", &[T::ExpertGate, T::ExpertUp]).grouped(),
];

/// The same with the router in Mixtral's checkpoints, and in GGUF files of old converters.
pub(in crate::arch) const MIXTRAL_EXPERTS: [Name; 8] = [
    Name::layer(
        "ffn_gate_inp.weight",
        "block_sparse_moe.gate.weight",
        &[T::Router],
    ),
    Name::layer(
        "ffn_gate_exps.weight",
        "block_sparse_moe.experts.*.w1.weight",
        &[T::ExpertGate],
    ),
    Name::layer(
        "ffn_up_exps.weight",
        "block_sparse_moe.experts.*.w3.weight",
        &[T::ExpertUp],
    ),
    Name::layer(
        "ffn_down_exps.weight",
        "block_sparse_moe.experts.*.w2.weight",
        &[T::ExpertDown],
    ),
    EXPERTS[3],
    Name::layer("ffn_gate.*.weight", "", &[T::ExpertGate]),
    Name::layer("ffn_up.*.weight", "", &[T::ExpertUp]),
    Name::layer("ffn_down.*.weight", "", &[T::ExpertDown]),
];

/// The expert that every token uses, and its gate.
pub(in crate::arch) const SHARED_EXPERT: [Name; 4] = [
    Name::layer(
        "ffn_gate_shexp.weight",
        "mlp.shared_expert.gate_proj.weight",
        &[T::Gate],
    ),
    Name::layer(
        "ffn_up_shexp.weight",
        "mlp.shared_expert.up_proj.weight",
        &[T::Up],
    ),
    Name::layer(
        "ffn_down_shexp.weight",
        "mlp.shared_expert.down_proj.weight",
        &[T::Down],
    ),
    Name::layer(
        "ffn_gate_inp_shexp.weight",
        "mlp.shared_expert_gate.weight",
        &[T::SharedGate],
    ),
];

/// What is added to scores of experts for the choice only.
pub(in crate::arch) const CHOICE: [Name; 1] = [Name::layer(
    "exp_probs_b.bias",
    "mlp.gate.e_score_correction_bias",
    &[T::SelectionBias],
)];

/// The experts that every token uses, as one.
pub(in crate::arch) const SHARED_EXPERTS: [Name; 3] = [
    Name::layer(
        "ffn_gate_shexp.weight",
        "mlp.shared_experts.gate_proj.weight",
        &[T::Gate],
    ),
    Name::layer(
        "ffn_up_shexp.weight",
        "mlp.shared_experts.up_proj.weight",
        &[T::Up],
    ),
    Name::layer(
        "ffn_down_shexp.weight",
        "mlp.shared_experts.down_proj.weight",
        &[T::Down],
    ),
];

/// What PowerInfer's files have in addition.
pub(in crate::arch) const POWERINFER: [Name; 3] = [
    Name::layer("ffn_down_t.weight", "", &[T::DownT]),
    Name::layer("fc1.weight", "mlp.predictor.fc1.weight", &[T::PredictorFc1]),
    Name::layer("fc2.weight", "mlp.predictor.fc2.weight", &[T::PredictorFc2]),
];
