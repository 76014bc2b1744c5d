//! Hugging Face tensor names of the llama family.

use crate::tensor::{LayerTensor, TensorId};

const LAYER: [(&str, LayerTensor); 14] = [
    ("input_layernorm.weight", LayerTensor::AttnNorm),
    ("self_attn.q_proj.weight", LayerTensor::Q),
    ("self_attn.k_proj.weight", LayerTensor::K),
    ("self_attn.v_proj.weight", LayerTensor::V),
    ("self_attn.o_proj.weight", LayerTensor::O),
    ("self_attn.q_proj.bias", LayerTensor::QBias),
    ("self_attn.k_proj.bias", LayerTensor::KBias),
    ("self_attn.v_proj.bias", LayerTensor::VBias),
    ("post_attention_layernorm.weight", LayerTensor::FfnNorm),
    ("mlp.gate_proj.weight", LayerTensor::Gate),
    ("mlp.up_proj.weight", LayerTensor::Up),
    ("mlp.down_proj.weight", LayerTensor::Down),
    ("mlp.predictor.fc1.weight", LayerTensor::PredictorFc1),
    ("mlp.predictor.fc2.weight", LayerTensor::PredictorFc2),
];

/// The output head, which a tied checkpoint may hold as a copy.
pub(super) const LM_HEAD: &str = "lm_head.weight";

/// The name of a role in a checkpoint.
pub(super) fn name_of(id: TensorId) -> String {
    match id {
        TensorId::TokenEmbedding => "model.embed_tokens.weight".into(),
        TensorId::OutputNorm => "model.norm.weight".into(),
        TensorId::OutputHead => LM_HEAD.into(),
        TensorId::Layer(layer, t) => {
            // Checkpoints hold no transposed down projection.
            let suffix = LAYER
                .iter()
                .find(|(_, role)| *role == t)
                .map_or("", |(s, _)| s);
            format!("model.layers.{layer}.{suffix}")
        }
    }
}

/// The role of a name; `None` for a tensor this engine does not know.
pub(super) fn role_of(name: &str) -> Option<TensorId> {
    match name {
        "model.embed_tokens.weight" => Some(TensorId::TokenEmbedding),
        "model.norm.weight" => Some(TensorId::OutputNorm),
        LM_HEAD => Some(TensorId::OutputHead),
        _ => {
            let (layer, suffix) = split_layer(name)?;
            let (_, role) = LAYER.iter().find(|(s, _)| *s == suffix)?;
            Some(TensorId::Layer(layer, *role))
        }
    }
}

/// Whether leaving the tensor out changes nothing: rotary frequencies that old versions of
/// transformers saved, and which follow from the configuration.
pub(super) fn is_redundant(name: &str) -> bool {
    split_layer(name).is_some_and(|(_, suffix)| suffix == "self_attn.rotary_emb.inv_freq")
}

fn split_layer(name: &str) -> Option<(usize, &str)> {
    let (number, suffix) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: usize = number.parse().ok()?;
    // Only the canonical spelling: "01" or "+1" would be a second name for one role.
    (layer.to_string() == number).then_some((layer, suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_role() {
        let layers = LAYER.iter().map(|&(_, t)| TensorId::Layer(3, t));
        let whole = [
            TensorId::TokenEmbedding,
            TensorId::OutputNorm,
            TensorId::OutputHead,
        ];
        for id in layers.chain(whole) {
            assert_eq!(role_of(&name_of(id)), Some(id));
        }
        assert_eq!(role_of("model.layers.03.mlp.up_proj.weight"), None);
        assert!(is_redundant("model.layers.0.self_attn.rotary_emb.inv_freq"));
    }
}
