//! Small always-resident vectors: norms and biases, kept in f32.

use crate::config::ModelConfig;

/// Vectors of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerVectors {
    /// RMSNorm weight before attention, `[d_model]`.
    pub attn_norm: Vec<f32>,
    /// RMSNorm weight before the FFN, `[d_model]`.
    pub ffn_norm: Vec<f32>,
    /// Q, K and V biases one behind the other, `[q_dim + 2 * kv_dim]`; empty where the model has none.
    pub qkv_bias: Vec<f32>,
}

/// All vectors of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vectors {
    /// By layer, `[n_layers]`.
    pub layers: Vec<LayerVectors>,
    /// Final RMSNorm weight, `[d_model]`.
    pub output_norm: Vec<f32>,
}

impl Vectors {
    /// Little-endian f32, layer by layer (attention norm, FFN norm, biases), then the final norm.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for layer in &self.layers {
            for v in [&layer.attn_norm, &layer.ffn_norm, &layer.qkv_bias] {
                out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
            }
        }
        out.extend(self.output_norm.iter().flat_map(|x| x.to_le_bytes()));
        out
    }

    /// Inverse of [`Vectors::encode`]; `None` where the length does not fit the configuration.
    pub(super) fn decode(bytes: &[u8], config: &ModelConfig) -> Option<Self> {
        let (floats, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return None;
        }
        let mut floats = floats.iter().map(|b| f32::from_le_bytes(*b));
        let bias_len = if config.qkv_bias {
            config.q_dim() + 2 * config.kv_dim()
        } else {
            0
        };
        let per_layer = 2 * config.d_model + bias_len;
        let expected = config
            .n_layers
            .checked_mul(per_layer)?
            .checked_add(config.d_model)?;
        if floats.len() != expected {
            return None;
        }
        let mut take = |n: usize| floats.by_ref().take(n).collect::<Vec<f32>>();
        let layers = (0..config.n_layers)
            .map(|_| LayerVectors {
                attn_norm: take(config.d_model),
                ffn_norm: take(config.d_model),
                qkv_bias: take(bias_len),
            })
            .collect();
        Some(Self {
            layers,
            output_norm: take(config.d_model),
        })
    }
}
