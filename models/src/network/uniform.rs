//! Networks whose layers are all alike, from their sizes.

use super::{Activation, Attention, Block, Ffn, Head, KvOrigin, Layer, Mixer, Network, Norm, Rope};

/// The plainest network: in every layer a pre-norm, attention, another pre-norm and a gated FFN, and no factors.
/// Architectures then change what they do differently in the result of [`Uniform::network`].
#[derive(Clone, Debug, PartialEq)]
pub struct Uniform {
    /// Human-readable name.
    pub name: String,
    /// Number of layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Neurons of a layer's FFN.
    pub d_ff: usize,
    /// Rows of the output head and of the embedding.
    pub vocab_size: usize,
    /// Context length for which the model was trained, in tokens.
    pub context_length: usize,
    /// Epsilon of all norms.
    pub rms_eps: f32,
    /// Rotation of queries and keys.
    pub rope: Rope,
    /// Sliding window: how many positions a token sees at most, including its own.
    pub window: Option<usize>,
    /// Activation of the FFNs' gates.
    pub activation: Activation,
    /// Whether Q, K and V have biases.
    pub qkv_bias: bool,
    /// Whether the output head is the embedding matrix.
    pub tied_head: bool,
    /// PowerInfer's `sparse_threshold`.
    pub predictor_threshold: f32,
}

impl Uniform {
    /// The network of these sizes; scores are scaled by `1 / sqrt(head_dim)`.
    pub fn network(self) -> Network {
        let norm = Norm::rms(self.rms_eps);
        let layer = Layer {
            mixer: Block {
                pre_norm: Some(norm),
                body: Mixer::Attention(Attention {
                    n_heads: self.n_heads,
                    n_kv_heads: self.n_kv_heads,
                    head_dim: self.head_dim,
                    kv: KvOrigin::Own,
                    latent: None,
                    qkv_bias: self.qkv_bias,
                    out_bias: false,
                    output_gate: false,
                    qk_norm: None,
                    v_norm: None,
                    rope: Some(0),
                    window: self.window,
                    scale: 1.0 / (self.head_dim as f32).sqrt(),
                    softcap: None,
                    temperature: None,
                    sinks: false,
                }),
                post_norm: None,
                residual_scale: 1.0,
            },
            ffn: Block {
                pre_norm: Some(norm),
                body: Ffn {
                    d_ff: self.d_ff,
                    hot: 0,
                    activation: self.activation,
                    gated: true,
                    bias: false,
                    experts: None,
                    predictor_before_layer: false,
                },
                post_norm: None,
                residual_scale: 1.0,
            },
            parallel: false,
            input: None,
            scaled: false,
        };
        Network {
            name: self.name,
            d_model: self.d_model,
            vocab_size: self.vocab_size,
            context_length: self.context_length,
            embedding_scale: 1.0,
            position_offset: None,
            token_inputs: None,
            ropes: vec![self.rope],
            layers: vec![layer; self.n_layers],
            output_norm: norm,
            head: Head {
                tied: self.tied_head,
                bias: false,
                scale: 1.0,
                softcap: None,
            },
            predictor_threshold: self.predictor_threshold,
        }
    }
}
