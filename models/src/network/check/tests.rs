use super::*;
use crate::network::{
    Attention, Block, DeltaNet, Experts, Groups, InputMixer, KeySharing, KvOrigin, Latent, Mixer,
    NormKind, NormSpan, QkNorm, Rope, RopePairing, RopeScaling, Router, Scores, ShortConv,
    Temperature, TokenInputs, Uniform,
};

fn network() -> Network {
    Uniform {
        name: "tiny".into(),
        n_layers: 2,
        d_model: 64,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 16,
        d_ff: 96,
        vocab_size: 264,
        context_length: 128,
        rms_eps: 1e-5,
        rope: Rope::plain(1e4, 16, RopePairing::HalfSplit),
        window: Some(8),
        activation: Activation::Silu,
        qkv_bias: true,
        tied_head: true,
        predictor_threshold: 0.0,
    }
    .network()
}

fn inputs(width: usize) -> Option<TokenInputs> {
    Some(TokenInputs {
        width,
        table_scale: 2.0,
        projection_scale: 0.5,
        eps: 1e-6,
        scale: 0.7,
    })
}

fn input_mixer() -> Block<InputMixer> {
    Block {
        pre_norm: None,
        body: InputMixer {
            activation: Activation::GeluTanh,
        },
        post_norm: None,
        residual_scale: 1.0,
    }
}

/// The check's error for the network with one change.
fn changed(change: impl FnOnce(&mut Network)) -> Option<String> {
    let mut network = network();
    change(&mut network);
    let checked = network.check(Path::new("x"));
    checked.err().map(|e| e.to_string())
}

fn attention(network: &mut Network) -> &mut Attention {
    network.attentions_mut().nth(1).expect("attention")
}

/// Gives the second layer a short convolution.
fn convolve(network: &mut Network, channels: usize, kernel: usize) {
    let conv = ShortConv { channels, kernel };
    network.layers[1].mixer.body = Mixer::ShortConv(conv);
}

/// Gives the second layer a delta net with one change.
fn remember(network: &mut Network, change: fn(&mut DeltaNet)) {
    let mut net = DeltaNet {
        n_key_heads: 2,
        n_value_heads: 4,
        key_dim: 16,
        value_dim: 8,
        kernel: 4,
        sharing: KeySharing::Grouped,
        eps: 1e-6,
    };
    change(&mut net);
    network.layers[1].mixer.body = Mixer::DeltaNet(net);
}

/// Gives the second layer latent attention with one change.
fn compress(network: &mut Network, change: fn(&mut Attention, &mut Latent)) {
    let mut latent = Latent {
        rank: 8,
        plain_dim: 12,
        value_dim: 20,
        query_rank: Some(24),
        eps: 1e-6,
    };
    let a = attention(network);
    (a.n_kv_heads, a.head_dim, a.kv) = (1, 24, KvOrigin::KeysAlone);
    a.qkv_bias = false;
    change(a, &mut latent);
    a.latent = Some(latent);
}

/// Gives the second layer experts in groups.
fn group(network: &mut Network, groups: Groups) {
    let ffn = &mut network.layers[1].ffn.body;
    ffn.experts = Some(Experts {
        count: 8,
        used: 3,
        d_ff: 16,
        bias: false,
        router: Router {
            before_layer: false,
            scores: Scores::Sigmoid,
            bias: false,
            selection_bias: false,
            groups: Some(groups),
            normalised: false,
            scale: 1.0,
        },
        shared_gate: false,
    });
}

fn scaled(scaling: RopeScaling) -> Option<String> {
    changed(|n| n.ropes[0].scaling = scaling)
}

#[test]
fn a_sound_network_passes() {
    assert_eq!(changed(|_| ()), None);
    let normed = |n: &mut Network| {
        let norm = QkNorm {
            kind: NormKind::Rms,
            span: NormSpan::Row,
            eps: 1e-6,
            after_rope: false,
        };
        attention(n).qk_norm = Some(norm);
        attention(n).rope = None;
        n.layers[1].mixer.pre_norm = None;
        attention(n).kv = KvOrigin::Layer(0);
        n.token_inputs = inputs(8);
        n.layers[1].input = Some(input_mixer());
    };
    assert_eq!(changed(normed), None);
    assert_eq!(changed(|n| convolve(n, 64, 3)), None);
    assert_eq!(changed(|n| remember(n, |_| ())), None);
    assert_eq!(changed(|n| compress(n, |_, _| ())), None);
}

type Change = fn(&mut Network);

/// Each change makes a field wrong, which is named.
fn all_are_named(cases: &[(&str, Change)]) {
    for (field, change) in cases {
        let message = changed(change).expect(field);
        assert!(message.contains(&format!(" {field}: ")), "{message}");
    }
}

#[test]
fn keys_and_inputs_that_are_not_there_are_named() {
    let cases: [(&str, Change); 7] = [
        ("token_inputs", |n| n.layers[0].input = Some(input_mixer())),
        ("token_inputs.width", |n| n.token_inputs = inputs(1 << 24)),
        ("input.pre_norm", |n| {
            n.token_inputs = inputs(8);
            let pre_norm = Some(n.output_norm);
            let mixer = input_mixer();
            n.layers[0].input = Some(Block { pre_norm, ..mixer });
        }),
        ("attention.v_norm", |n| attention(n).v_norm = Some(-1.0)),
        ("attention.kv", |n| attention(n).kv = KvOrigin::Layer(1)),
        ("attention.kv", |n| {
            n.layers.push(n.layers[0].clone());
            attention(n).kv = KvOrigin::Layer(0);
            let last = n.layers[2].mixer.body.attention_mut();
            last.expect("attention").kv = KvOrigin::Layer(1);
        }),
        ("attention.kv", |n| {
            attention(n).kv = KvOrigin::Layer(0);
            attention(n).window = None;
        }),
    ];
    all_are_named(&cases);
}

#[test]
fn impossible_recurrent_mixers_are_named() {
    let cases: [(&str, Change); 9] = [
        ("short_conv.channels", |n| convolve(n, 0, 3)),
        ("convolution kernel", |n| convolve(n, 64, 1)),
        ("convolution kernel", |n| convolve(n, 64, 65)),
        ("delta_net.n_key_heads", |n| {
            remember(n, |net| net.n_key_heads = 0)
        }),
        ("delta_net.key_dim", |n| remember(n, |net| net.key_dim = 0)),
        ("delta_net.values", |n| {
            remember(n, |net| net.value_dim = 1 << 24)
        }),
        ("delta_net heads", |n| {
            remember(n, |net| net.n_key_heads = 3)
        }),
        ("delta_net.eps", |n| remember(n, |net| net.eps = 0.0)),
        ("convolution kernel", |n| remember(n, |net| net.kernel = 1)),
    ];
    all_are_named(&cases);
}

#[test]
fn impossible_latents_are_named() {
    let cases: [(&str, Change); 9] = [
        ("attention.latent", |n| compress(n, |_, l| l.rank = 7)),
        ("attention.latent", |n| compress(n, |_, l| l.plain_dim = 0)),
        ("attention.latent", |n| compress(n, |_, l| l.value_dim = 0)),
        ("attention.latent", |n| {
            compress(n, |_, l| l.value_dim = 1 << 23)
        }),
        ("attention.latent", |n| {
            compress(n, |_, l| l.query_rank = Some(0))
        }),
        ("attention.latent", |n| compress(n, |_, l| l.eps = 0.0)),
        ("attention.latent", |n| compress(n, |a, _| a.n_kv_heads = 2)),
        ("attention.latent", |n| {
            compress(n, |a, _| a.kv = KvOrigin::Own)
        }),
        ("attention.latent", |n| compress(n, |a, _| a.rope = None)),
    ];
    all_are_named(&cases);
}

#[test]
fn predictors_of_no_neurons_are_named() {
    let predicted = |n: &mut Network| n.layers[1].ffn.body.predictor_before_layer = true;
    assert!(changed(predicted).is_none());
    let message = changed(|n| {
        predicted(n);
        let (count, used, counted) = (4, 2, 1);
        group(
            n,
            Groups {
                count,
                used,
                counted,
            },
        );
        n.layers[1].ffn.body.d_ff = 0;
    });
    assert!(message.unwrap().contains(" predictor_before_layer: "));
}

#[test]
fn groups_that_cannot_be_chosen_are_named() {
    let (count, used, counted) = (4, 2, 1);
    let fits = |groups| changed(|n| group(n, groups)).is_none();
    let good = Groups {
        count,
        used,
        counted,
    };
    assert!(fits(good));
    assert!(!fits(Groups { count: 3, ..good }));
    assert!(!fits(Groups { used: 1, ..good }));
    assert!(!fits(Groups { used: 5, ..good }));
    assert!(!fits(Groups { counted: 0, ..good }));
    assert!(!fits(Groups { counted: 3, ..good }));
}

#[test]
fn impossible_sizes_and_factors_are_named() {
    let cases: [(&str, Change); 29] = [
        ("layers", |n| n.layers.clear()),
        ("layers", |n| {
            n.layers = vec![n.layers[0].clone(); usize::from(u16::MAX)]
        }),
        ("d_model", |n| n.d_model = 0),
        ("vocab_size", |n| n.vocab_size = usize::MAX),
        ("context_length", |n| n.context_length = 0),
        ("embedding_scale", |n| n.embedding_scale = f32::NAN),
        ("head.scale", |n| n.head.scale = 0.0),
        ("head.softcap", |n| n.head.softcap = Some(-1.0)),
        ("ropes", |n| n.ropes = vec![n.ropes[0].clone(); 65]),
        ("rope.theta", |n| n.ropes[0].theta = f32::INFINITY),
        ("rope.magnitude", |n| n.ropes[0].magnitude = 0.0),
        ("rotary dimension", |n| n.ropes[0].rotary_dim = 15),
        ("rotary dimension", |n| n.ropes[0].rotary_dim = 18),
        ("output_norm", |n| n.output_norm.eps = 0.0),
        ("position_offset", |n| n.position_offset = Some(usize::MAX)),
        ("ffn.bias", |n| n.layers[1].ffn.body.bias = true),
        ("ffn.post_norm", |n| {
            let norm = n.output_norm;
            n.layers[1].ffn.post_norm = Some(Norm { bias: true, ..norm });
        }),
        ("n_heads", |n| attention(n).n_heads = 0),
        ("attention heads", |n| attention(n).n_kv_heads = 3),
        ("head_dim", |n| attention(n).head_dim = 1 << 25),
        ("attention.rope", |n| attention(n).rope = Some(1)),
        ("attention.qk_norm", |n| {
            let norm = QkNorm {
                kind: NormKind::Rms,
                span: NormSpan::Row,
                eps: 1e-6,
                after_rope: true,
            };
            attention(n).qk_norm = Some(norm);
        }),
        ("attention.window", |n| attention(n).window = Some(0)),
        ("attention.scale", |n| attention(n).scale = -1.0),
        ("attention.softcap", |n| {
            attention(n).softcap = Some(0.0);
        }),
        ("ffn.residual_scale", |n| {
            n.layers[1].ffn.residual_scale = 0.0
        }),
        ("d_ff", |n| n.layers[1].ffn.body.d_ff = 0),
        ("activation", |n| {
            n.layers[1].ffn.body.activation = Activation::FatRelu { threshold: -1.0 };
        }),
        ("attention.temperature", |n| {
            let temperature = Temperature {
                beta: 0.1,
                original_context: 0,
            };
            attention(n).temperature = Some(temperature);
        }),
    ];
    all_are_named(&cases);
}

#[test]
fn impossible_scaling_is_refused() {
    let yarn = |original_context| RopeScaling::Yarn {
        factor: 4.0,
        original_context,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    assert_eq!(scaled(yarn(40.0)), None);
    assert!(scaled(yarn(0.0)).is_some());
    assert!(scaled(RopeScaling::Linear { factor: 0.0 }).is_some());
    assert!(scaled(RopeScaling::Factors(vec![1.0; 7])).is_some());
    let long_short = |len| RopeScaling::LongShort {
        short: vec![1.0; 8],
        long: vec![1.0; len],
        original_context: 24,
    };
    assert_eq!(scaled(long_short(8)), None);
    assert!(scaled(long_short(9)).is_some());
}

#[test]
fn hot_neurons_are_whole_granules_beside_others() {
    let hot = |n| changed(|network| network.layers[1].ffn.body.hot = n);
    assert_eq!([hot(0), hot(32), hot(64)], [None, None, None]);
    for n in [33, 96, 128] {
        assert!(hot(n).is_some_and(|message| message.contains("ffn.hot")));
    }
}
