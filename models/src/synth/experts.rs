//! What shapes with experts have different from plain blocks, after published models.

use crate::network::{
    Activation, Experts, Network, Norm, NormKind, NormSpan, QkNorm, RopePairing, Router, Scores,
};

/// gpt-oss's activation.
pub(super) const GPT_OSS: Activation = Activation::ClampedSwiglu {
    alpha: 1.702,
    limit: 7.0,
};

const ROUTER: Router = Router {
    before_layer: false,
    scores: Scores::Softmax,
    bias: false,
    selection_bias: false,
    groups: None,
    normalised: true,
    scale: 1.0,
};

/// `count` experts of which a token uses `used`, in place of all FFNs; and what these models have in common: halves of
/// heads rotate.
fn experts(network: &mut Network, (count, used): (usize, usize), router: &Router, theta: f32) {
    for layer in &mut network.layers {
        let ffn = &mut layer.ffn.body;
        ffn.experts = Some(Experts {
            count,
            used,
            d_ff: std::mem::take(&mut ffn.d_ff),
            bias: false,
            router: router.clone(),
            shared_gate: false,
        });
    }
    network.ropes[0].theta = theta;
    network.ropes[0].pairing = RopePairing::HalfSplit;
}

fn eps(network: &mut Network, eps: f32) {
    let norm = Norm::rms(eps);
    network.output_norm = norm;
    for layer in &mut network.layers {
        (layer.mixer.pre_norm, layer.ffn.pre_norm) = (Some(norm), Some(norm));
    }
}

fn norm_qk(network: &mut Network, span: NormSpan) {
    let eps = network.output_norm.eps;
    for attention in network.attentions_mut() {
        attention.qk_norm = Some(QkNorm {
            kind: NormKind::Rms,
            span,
            eps,
            after_rope: false,
        });
    }
}

pub(super) fn qwen3_30b(network: &mut Network) {
    eps(network, 1e-6);
    experts(network, (128, 8), &ROUTER, 1e6);
    norm_qk(network, NormSpan::Head);
}

pub(super) fn tiny(network: &mut Network) {
    eps(network, 1e-6);
    experts(network, (16, 3), &ROUTER, 1e4);
    norm_qk(network, NormSpan::Head);
}

pub(super) fn olmoe(network: &mut Network) {
    let router = Router {
        normalised: false,
        ..ROUTER
    };
    experts(network, (64, 8), &router, 1e4);
    norm_qk(network, NormSpan::Row);
}

/// As llama's GGUF files have it: neighbours rotate.
pub(super) fn mixtral_8x7b(network: &mut Network) {
    experts(network, (8, 2), &ROUTER, 1e6);
    network.ropes[0].pairing = RopePairing::Interleaved;
}

/// Without YaRN, which changes nothing that takes time.
pub(super) fn gpt_oss_20b(network: &mut Network) {
    let router = Router {
        scores: Scores::SoftmaxOfChosen,
        bias: true,
        normalised: false,
        ..ROUTER
    };
    experts(network, (32, 4), &router, 1.5e5);
    for layer in &mut network.layers {
        if let Some(experts) = &mut layer.ffn.body.experts {
            experts.bias = true;
        }
    }
    for (l, attention) in network.attentions_mut().enumerate() {
        (attention.qkv_bias, attention.out_bias, attention.sinks) = (true, true, true);
        attention.window = (l % 2 == 0).then_some(128);
    }
}

pub(super) fn smallthinker_4b(network: &mut Network) {
    smallthinker(network, (32, 4));
}

pub(super) fn smallthinker_21b(network: &mut Network) {
    smallthinker(network, (64, 6));
    for (l, attention) in network.attentions_mut().enumerate() {
        attention.window = (l % 4 != 0).then_some(4096);
        attention.rope = attention.rope.filter(|_| l % 4 != 0);
    }
}

fn smallthinker(network: &mut Network, sizes: (usize, usize)) {
    let router = Router {
        before_layer: true,
        scores: Scores::Sigmoid,
        ..ROUTER
    };
    eps(network, 1e-6);
    experts(network, sizes, &router, 1.5e6);
}
