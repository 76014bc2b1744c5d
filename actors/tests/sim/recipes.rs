//! What the simulated models are like.

use forebay_models::block::BlockType;
use forebay_models::kv_type::KvType;
use forebay_models::network::{
    Activation, Block, DeltaNet, Experts, Groups, InputMixer, KeySharing, KvOrigin, Latent, Layer,
    Mixer, Network, NormKind, NormSpan, QkNorm, Router, Scores, ShortConv, TokenInputs,
};

/// What distinguishes one tiny model from the next.
pub struct Recipe {
    pub name: &'static str,
    pub d_model: usize,
    pub d_ff: usize,
    pub layers: usize,
    pub vocab: usize,
    pub activation: Activation,
    pub gated: bool,
    pub block: BlockType,
    /// Down by column, as in PowerInfer's files: neuron layout whatever the format.
    pub transposed: bool,
    /// Rank of predictors, if there are any.
    pub rank: usize,
    /// Biases of Q, K and V, and of all projections and the head if the FFN is not gated.
    pub bias: bool,
    pub tied: bool,
    pub kv: KvType,
    /// What else is different from the plainest network.
    pub change: fn(&mut Network),
}

const PLAIN: Recipe = Recipe {
    name: "f32 neurons, ReLU",
    d_model: 32,
    d_ff: 256,
    layers: 2,
    vocab: 48,
    activation: Activation::Relu,
    gated: true,
    block: BlockType::F32,
    transposed: false,
    rank: 0,
    bias: false,
    tied: false,
    kv: KvType::F16,
    change: |_| (),
};

/// Not one of all: a step that failed cannot be taken back.
pub const RECURRENT: Recipe = Recipe {
    name: "Q8_0 clusters, SiLU, short convolution and delta net",
    d_model: 64,
    d_ff: 192,
    layers: 3,
    activation: Activation::Silu,
    block: BlockType::Q8_0,
    change: recur,
    ..PLAIN
};

pub const RECIPES: [Recipe; 20] = [
    PLAIN,
    Recipe {
        name: "f16 neurons with predictors, dReLU",
        d_model: 64,
        d_ff: 320,
        activation: Activation::DoubleRelu,
        block: BlockType::F16,
        rank: 32,
        ..PLAIN
    },
    Recipe {
        name: "Q8_0 clusters, SiLU, biases",
        d_model: 64,
        d_ff: 192,
        activation: Activation::Silu,
        block: BlockType::Q8_0,
        bias: true,
        kv: KvType::Q8,
        ..PLAIN
    },
    Recipe {
        name: "Q4_0 clusters, ReLU, tied head",
        d_model: 64,
        d_ff: 256,
        layers: 3,
        block: BlockType::Q4_0,
        tied: true,
        ..PLAIN
    },
    Recipe {
        name: "Q8_0 columns with predictors, FATReLU",
        d_model: 64,
        d_ff: 256,
        activation: Activation::FatRelu { threshold: 0.02 },
        block: BlockType::Q8_0,
        transposed: true,
        rank: 32,
        kv: KvType::Q8,
        ..PLAIN
    },
    Recipe {
        name: "f16 neurons of a page each",
        d_model: 512,
        d_ff: 192,
        layers: 1,
        block: BlockType::F16,
        ..PLAIN
    },
    Recipe {
        name: "f16 neurons without Up, with predictors, ReLU squared, biases",
        d_model: 64,
        d_ff: 320,
        activation: Activation::ReluSquared,
        gated: false,
        block: BlockType::F16,
        rank: 32,
        bias: true,
        ..PLAIN
    },
    Recipe {
        name: "Q8_0 columns without Up, ReLU, biases",
        d_model: 64,
        activation: Activation::Relu,
        gated: false,
        block: BlockType::Q8_0,
        transposed: true,
        bias: true,
        ..PLAIN
    },
    Recipe {
        name: "Q4_0 clusters without Up, ReLU squared, biases",
        d_model: 64,
        activation: Activation::ReluSquared,
        gated: false,
        block: BlockType::Q4_0,
        bias: true,
        ..PLAIN
    },
    Recipe {
        name: "f16 neurons, ReLU, shared keys and values, scaled layers",
        d_model: 64,
        d_ff: 192,
        layers: 4,
        block: BlockType::F16,
        change: share_keys_and_values,
        ..PLAIN
    },
    Recipe {
        name: "f16 neurons, ReLU, inputs of tokens",
        d_model: 64,
        layers: 3,
        block: BlockType::F16,
        change: mix_token_inputs,
        ..PLAIN
    },
    Recipe {
        name: "Q8_0 experts beside a shared one, SiLU, and a dense layer",
        d_model: 64,
        d_ff: 96,
        layers: 3,
        activation: Activation::Silu,
        block: BlockType::Q8_0,
        change: route_beside_a_shared_expert,
        ..PLAIN
    },
    Recipe {
        name: "f16 experts of single neurons, ReLU, chosen before the layer",
        d_model: 64,
        d_ff: 96,
        block: BlockType::F16,
        change: route_before_the_layer,
        ..PLAIN
    },
    Recipe {
        name: "f16 experts with few live neurons far apart, FATReLU",
        d_model: 256,
        activation: Activation::FatRelu { threshold: 1.6 },
        block: BlockType::F16,
        change: route_to_few_neurons,
        ..PLAIN
    },
    Recipe {
        name: "Q4_0 experts in groups, SiLU, with all biases",
        d_model: 64,
        d_ff: 64,
        activation: Activation::Silu,
        block: BlockType::Q4_0,
        change: route_in_groups,
        ..PLAIN
    },
    Recipe {
        name: "Q8_0 clusters, SiLU, latent attention",
        d_model: 64,
        d_ff: 192,
        activation: Activation::Silu,
        block: BlockType::Q8_0,
        change: attend_to_latents,
        ..PLAIN
    },
    Recipe {
        name: "f16 neurons, ReLU, latent attention in bytes",
        d_model: 64,
        d_ff: 192,
        block: BlockType::F16,
        kv: KvType::Q8,
        change: attend_to_latents,
        ..PLAIN
    },
    Recipe {
        name: "f16 neurons, ReLU, predictors before attention but for the first layer",
        d_model: 64,
        d_ff: 256,
        layers: 3,
        block: BlockType::F16,
        rank: 32,
        change: predict_before_layers,
        ..PLAIN
    },
    Recipe {
        name: "Q8_0 columns with predictors, dReLU, hot neurons",
        d_model: 64,
        activation: Activation::DoubleRelu,
        block: BlockType::Q8_0,
        transposed: true,
        rank: 32,
        kv: KvType::Q8,
        change: |network| heat(network, [64, 96]),
        ..PLAIN
    },
    Recipe {
        name: "f16 neurons with predictors before attention, biases, hot neurons in one layer",
        d_model: 64,
        gated: false,
        bias: true,
        block: BlockType::F16,
        rank: 32,
        change: |network| {
            predict_before_layers(network);
            heat(network, [0, 128]);
        },
        ..PLAIN
    },
];

const ROUTER: Router = Router {
    before_layer: false,
    scores: Scores::Softmax,
    bias: false,
    selection_bias: false,
    groups: None,
    normalised: false,
    scale: 1.0,
};

/// Experts in place of a layer's FFN.
fn experts(layer: &mut Layer, (count, used): (usize, usize), router: Router) -> &mut Experts {
    let ffn = &mut layer.ffn.body;
    let d_ff = std::mem::take(&mut ffn.d_ff);
    ffn.experts.insert(Experts {
        count,
        used,
        d_ff,
        bias: false,
        router,
        shared_gate: false,
    })
}

/// Layer 1 is dense.
fn route_beside_a_shared_expert(network: &mut Network) {
    for l in [0, 2] {
        let layer = &mut network.layers[l];
        experts(layer, (5 + l, 2 + l), ROUTER).shared_gate = true;
        layer.ffn.body.d_ff = 160;
    }
}

fn route_before_the_layer(network: &mut Network) {
    for layer in &mut network.layers {
        let router = Router {
            before_layer: true,
            scores: Scores::Sigmoid,
            normalised: true,
            ..ROUTER
        };
        experts(layer, (6, 2), router);
    }
}

fn route_to_few_neurons(network: &mut Network) {
    for layer in &mut network.layers {
        experts(layer, (4, 2), ROUTER);
    }
}

/// The first neurons of each layer are hot.
fn heat(network: &mut Network, hot: [usize; 2]) {
    for (layer, hot) in network.layers.iter_mut().zip(hot) {
        layer.ffn.body.hot = hot;
    }
}

fn predict_before_layers(network: &mut Network) {
    let later = network.layers.iter_mut().skip(1);
    later.for_each(|layer| layer.ffn.body.predictor_before_layer = true);
}

fn route_in_groups(network: &mut Network) {
    for (layer, used) in network.layers.iter_mut().zip([3, 1]) {
        let router = Router {
            scores: Scores::Sigmoid,
            bias: true,
            selection_bias: true,
            groups: Some(Groups {
                count: 4,
                used: 2,
                counted: 2,
            }),
            scale: 2.5,
            ..ROUTER
        };
        experts(layer, (8, used), router).bias = true;
    }
}

/// Only layer 1 keeps its attention.
fn recur(network: &mut Network) {
    network.layers[0].mixer.body = Mixer::ShortConv(ShortConv {
        channels: network.d_model,
        kernel: 3,
    });
    network.layers[2].mixer.body = Mixer::DeltaNet(DeltaNet {
        n_key_heads: 3,
        n_value_heads: 6,
        key_dim: 16,
        value_dim: 32,
        kernel: 4,
        sharing: KeySharing::Tiled,
        eps: 1e-5,
    });
}

/// Layer 0 takes its values from its keys, layer 1 sees little and has other heads, and two layers attend over the keys
/// and values of these.
fn share_keys_and_values(network: &mut Network) {
    let origins = [
        KvOrigin::KeysAlone,
        KvOrigin::Own,
        KvOrigin::Layer(0),
        KvOrigin::Layer(1),
    ];
    for (l, (layer, kv)) in network.layers.iter_mut().zip(origins).enumerate() {
        layer.scaled = true;
        layer.ffn.post_norm = layer.ffn.pre_norm;
        let a = layer.mixer.body.attention_mut().expect("attention");
        a.kv = kv;
        a.v_norm = Some(1e-5);
        a.qk_norm = Some(QkNorm {
            span: NormSpan::Head,
            kind: NormKind::Rms,
            eps: 1e-5,
            after_rope: false,
        });
        if l % 2 == 1 {
            (a.window, a.head_dim, a.n_kv_heads) = (Some(7), 32, 4);
        }
    }
}

/// Only the second layer compresses its queries.
fn attend_to_latents(network: &mut Network) {
    for (a, query_rank) in network.attentions_mut().zip([None, Some(32)]) {
        a.latent = Some(Latent {
            rank: 64,
            plain_dim: 32,
            value_dim: 32,
            query_rank,
            eps: 1e-5,
        });
        a.kv = KvOrigin::KeysAlone;
        (a.n_kv_heads, a.head_dim) = (1, 80);
        a.scale = 1.0 / 48f32.sqrt();
    }
}

/// Layers 0 and 2 mix in what each token says.
fn mix_token_inputs(network: &mut Network) {
    network.token_inputs = Some(TokenInputs {
        width: 24,
        table_scale: 2.0,
        projection_scale: 0.5,
        eps: 1e-5,
        scale: 0.7,
    });
    for l in [0, 2] {
        let layer = &mut network.layers[l];
        layer.scaled = l == 2;
        layer.input = Some(Block {
            pre_norm: None,
            body: InputMixer {
                activation: Activation::GeluTanh,
            },
            post_norm: layer.ffn.pre_norm,
            residual_scale: 1.0,
        });
    }
}
