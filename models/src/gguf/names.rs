//! llama.cpp's and PowerInfer's tensor names.

use crate::tensor::{LayerTensor, TensorId};

const LAYER: [(&str, LayerTensor); 15] = [
    ("attn_norm.weight", LayerTensor::AttnNorm),
    ("attn_q.weight", LayerTensor::Q),
    ("attn_k.weight", LayerTensor::K),
    ("attn_v.weight", LayerTensor::V),
    ("attn_output.weight", LayerTensor::O),
    ("attn_q.bias", LayerTensor::QBias),
    ("attn_k.bias", LayerTensor::KBias),
    ("attn_v.bias", LayerTensor::VBias),
    ("ffn_norm.weight", LayerTensor::FfnNorm),
    ("ffn_gate.weight", LayerTensor::Gate),
    ("ffn_up.weight", LayerTensor::Up),
    ("ffn_down.weight", LayerTensor::Down),
    ("ffn_down_t.weight", LayerTensor::DownT),
    ("fc1.weight", LayerTensor::PredictorFc1),
    ("fc2.weight", LayerTensor::PredictorFc2),
];

/// Per-frequency divisors of RoPE.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";

/// The name of a role in a GGUF file.
pub(crate) fn name_of(id: TensorId) -> String {
    match id {
        TensorId::TokenEmbedding => "token_embd.weight".into(),
        TensorId::OutputNorm => "output_norm.weight".into(),
        TensorId::OutputHead => "output.weight".into(),
        TensorId::Layer(layer, t) => {
            let suffix = LAYER
                .iter()
                .find(|(_, role)| *role == t)
                .map_or("", |(s, _)| s);
            format!("blk.{layer}.{suffix}")
        }
    }
}

/// The role of a name; `None` for a tensor this engine does not know.
pub(super) fn role_of(name: &str) -> Option<TensorId> {
    match name {
        "token_embd.weight" => Some(TensorId::TokenEmbedding),
        "output_norm.weight" => Some(TensorId::OutputNorm),
        "output.weight" => Some(TensorId::OutputHead),
        _ => {
            let (layer, suffix) = split_layer(name)?;
            let (_, role) = LAYER.iter().find(|(s, _)| *s == suffix)?;
            Some(TensorId::Layer(layer, *role))
        }
    }
}

/// Whether leaving the tensor out changes nothing: precomputed rotary angles of old converters.
pub(super) fn is_redundant(name: &str) -> bool {
    split_layer(name).is_some_and(|(_, suffix)| suffix == "attn_rot_embd.weight")
}

fn split_layer(name: &str) -> Option<(usize, &str)> {
    let (number, suffix) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: usize = number.parse().ok()?;
    // Only the canonical spelling: "01" or "+1" would be a second name for one role.
    (layer.to_string() == number).then_some((layer, suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_role() {
        let layers = LAYER.iter().map(|&(_, t)| TensorId::Layer(17, t));
        let whole = [
            TensorId::TokenEmbedding,
            TensorId::OutputNorm,
            TensorId::OutputHead,
        ];
        for id in layers.chain(whole) {
            assert_eq!(role_of(&name_of(id)), Some(id));
        }
    }

    #[test]
    fn a_layer_has_one_spelling() {
        assert_eq!(
            role_of("blk.1.fc1.weight"),
            Some(TensorId::Layer(1, LayerTensor::PredictorFc1))
        );
        for odd in [
            "blk.01.fc1.weight",
            "blk.+1.fc1.weight",
            "blk.-1.fc1.weight",
            "blk..fc1.weight",
        ] {
            assert_eq!(role_of(odd), None, "{odd}");
        }
    }
}
