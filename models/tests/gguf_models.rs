//! Models in GGUF files: the configuration follows from the metadata, tensors are found by role,
//! and what the engine cannot run is refused by name.

mod gguf_tensors;
mod gguf_writer;

use std::path::Path;

use forebay_models::block::BlockType;
use forebay_models::network::{Activation, Rope, RopePairing, RopeScaling, Uniform};
use forebay_models::source::GgufSource;
use forebay_models::source::TensorSource;
use forebay_models::tensor::{LayerTensor, TensorId};
use gguf_writer::{GgufWriter, Meta, Model};
use tempfile::TempDir;

fn open(w: &GgufWriter) -> Result<GgufSource, String> {
    let folder = TempDir::new().unwrap();
    GgufSource::open(&w.write(folder.path(), "model.gguf")).map_err(|e| e.to_string())
}

fn opened(change: impl FnOnce(&mut GgufWriter)) -> GgufSource {
    let mut w = Model::default().writer();
    change(&mut w);
    open(&w).unwrap()
}

fn refused(model: &Model, change: impl FnOnce(&mut GgufWriter), parts: &[&str]) {
    let mut w = model.writer();
    change(&mut w);
    let message = open(&w).err().expect("a model that must be refused");
    for part in parts {
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
}

fn powerinfer(arch: &'static str) -> Model {
    Model {
        arch,
        powerinfer: true,
        predictor_rank: Some(8),
        tied_head: false,
        ..Model::default()
    }
}

#[test]
fn a_llama_file_becomes_its_configuration() {
    let source = opened(|w| {
        w.set("llama.rope.freq_base", 500_000.0);
        w.set("llama.attention.sliding_window", 64);
    });
    let n = source.network();
    let rope = Rope::plain(500_000.0, 16, RopePairing::Interleaved);
    let plain = Uniform {
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
        rope,
        window: Some(64),
        activation: Activation::Silu,
        qkv_bias: false,
        tied_head: true,
        predictor_threshold: 0.0,
    };
    assert_eq!(*n, plain.network());
}

#[test]
fn absent_keys_have_llama_cpps_defaults() {
    let source = opened(|w| {
        for key in [
            "rope.freq_base",
            "rope.dimension_count",
            "attention.key_length",
        ] {
            w.unset(&format!("llama.{key}"));
        }
        w.unset("llama.attention.value_length")
            .unset("general.name")
            .unset("llama.vocab_size");
        w.set("llama.attention.sliding_window", 0);
    });
    let (n, a) = (
        source.network(),
        source.network().attention(0).expect("attention"),
    );
    assert_eq!(
        (n.ropes[0].theta, n.ropes[0].rotary_dim, a.head_dim),
        (10_000.0, 16, 16)
    );
    assert_eq!((n.name.as_str(), a.window), ("model", None));

    let full_heads = Model {
        n_kv_heads: 4,
        ..Model::default()
    };
    let mut w = full_heads.writer();
    w.unset("llama.attention.head_count_kv");
    assert_eq!(
        open(&w).unwrap().network().attention(0).unwrap().n_kv_heads,
        4
    );
}

#[test]
fn qwen2_has_biases_and_rotates_halves() {
    let model = Model {
        arch: "qwen2",
        ..Model::default()
    };
    let source = open(&model.writer()).unwrap();
    assert_eq!(source.network().ropes[0].pairing, RopePairing::HalfSplit);
    assert!(source.network().attention(0).expect("attention").qkv_bias);
    let bias = source.meta(TensorId::Layer(1, LayerTensor::KBias)).unwrap();
    assert_eq!((bias.rows, bias.cols), (1, 32));
    refused(
        &model,
        |w| _ = w.remove("blk.1.attn_v.bias"),
        &["blk.1.attn_v.bias", "missing"],
    );
}

#[test]
fn a_head_may_be_wider_than_its_share_of_the_model() {
    let model = Model {
        head_dim: 32,
        ..Model::default()
    };
    let source = open(&model.writer()).unwrap();
    let a = source.network().attention(0).expect("attention");
    assert_eq!((a.q_dim(), a.kv_dim()), (128, 64));
    let o = source.meta(TensorId::Layer(0, LayerTensor::O)).unwrap();
    assert_eq!((o.rows, o.cols), (64, 128));
}

#[test]
fn powerinfer_files_are_relu_with_predictors() {
    let mut w = powerinfer("llama").writer();
    w.set("powerinfer.sparse_threshold", 0.25);
    let source = open(&w).unwrap();
    let n = source.network();
    assert_eq!(
        (n.ffn(0).activation, n.predictor_threshold),
        (Activation::Relu, 0.25)
    );
    assert!(!n.head.tied);
    let shape = |t| source.meta(TensorId::Layer(1, t)).map(|m| (m.rows, m.cols));
    assert_eq!(shape(LayerTensor::DownT), Some((96, 64)));
    assert_eq!(shape(LayerTensor::Down), None);
    assert_eq!(shape(LayerTensor::PredictorFc1), Some((8, 64)));
    assert_eq!(shape(LayerTensor::PredictorFc2), Some((96, 8)));

    let bamboo = open(&powerinfer("bamboo").writer()).unwrap();
    assert_eq!(bamboo.network().ffn(0).activation, Activation::DoubleRelu);
    // PowerInfer builds bamboo with llama's graph, whose rotation is the interleaved one.
    assert_eq!(bamboo.network().ropes[0].pairing, RopePairing::Interleaved);
    refused(
        &powerinfer("qwen2"),
        |_| {},
        &["PowerInfer architecture \"qwen2\""],
    );
}

#[test]
fn the_activation_can_be_named() {
    let with = |act: &str| {
        let act = act.to_owned();
        opened(move |w| _ = w.set("llama.hidden_act", act.as_str()))
            .network()
            .ffn(0)
            .activation
    };
    assert_eq!(with("relu"), Activation::Relu);
    assert_eq!(with("silu"), Activation::Silu);
    let fat = opened(|w| {
        _ = w
            .set("llama.hidden_act", "fatrelu")
            .set("llama.hidden_act_param", 0.01)
    });
    assert_eq!(
        fat.network().ffn(0).activation,
        Activation::FatRelu { threshold: 0.01 }
    );

    let llama = Model::default();
    refused(
        &llama,
        |w| _ = w.set("llama.hidden_act", "gelu_10"),
        &["llama.hidden_act", "gelu_10"],
    );
    refused(
        &llama,
        |w| _ = w.set("llama.hidden_act", "fatrelu"),
        &["hidden_act_param"],
    );
    refused(
        &powerinfer("llama"),
        |w| _ = w.set("llama.hidden_act", "silu"),
        &["hidden_act", "silu"],
    );
}

#[test]
fn rotary_scaling_is_read_from_either_key() {
    let scaling =
        |change: &dyn Fn(&mut GgufWriter)| opened(change).network().ropes[0].scaling.clone();
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(
        scaling(&|w| _ = w.set("llama.rope.scale_linear", 4.0)),
        linear
    );
    assert_eq!(
        scaling(&|w| _ = w.set("llama.rope.scaling.factor", 4.0)),
        linear
    );
    let both = |w: &mut GgufWriter, kind| {
        w.set("llama.rope.scaling.type", kind)
            .set("llama.rope.scaling.factor", 4.0);
    };
    assert_eq!(scaling(&|w| both(w, "linear")), linear);
    assert_eq!(scaling(&|w| both(w, "none")), RopeScaling::None);
    assert_eq!(
        scaling(&|w| _ = w.set("llama.rope.scaling.factor", 1.0)),
        RopeScaling::None
    );
    assert_eq!(
        scaling(&|w| _ = w.set("llama.rope.scaling.factor", 0.0)),
        RopeScaling::None
    );
    let yarn = opened(|w| both(w, "yarn"));
    let rope = &yarn.network().ropes[0];
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 128.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    assert_eq!(rope.scaling, expected);
    assert_eq!(rope.magnitude, 1.0 + 0.1 * 4f32.ln());
    refused(
        &Model::default(),
        |w| both(w, "longrope"),
        &["rope.scaling.type", "longrope", "not supported"],
    );
}

#[test]
fn rotary_factors_come_from_a_tensor() {
    let factors = [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0];
    let put = |w: &mut GgufWriter, x: &[f32]| {
        w.tensor("rope_freqs.weight", x.len(), None, BlockType::F32, x);
    };
    let source = opened(|w| put(w, &factors));
    assert_eq!(
        source.network().ropes[0].scaling,
        RopeScaling::Factors(factors.to_vec())
    );
    // llama.cpp applies a linear factor on top.
    let both = opened(|w| {
        put(w, &factors);
        w.set("llama.rope.scaling.factor", 2.0);
    });
    let RopeScaling::Factors(doubled) = &both.network().ropes[0].scaling else {
        panic!("{:?}", both.network().ropes[0].scaling)
    };
    assert_eq!(*doubled, factors.map(|f| 2.0 * f));

    let llama = Model::default();
    refused(
        &llama,
        |w| put(w, &factors[1..]),
        &["rope_freqs.weight", "expected 8"],
    );
    refused(
        &llama,
        |w| put(w, &[0.0; 8]),
        &["rope_freqs.weight", "not a positive number"],
    );
    let qwen2 = Model {
        arch: "qwen2",
        ..llama
    };
    refused(
        &qwen2,
        |w| put(w, &factors),
        &["rope_freqs.weight", "not supported"],
    );
}

#[test]
fn layers_may_have_values_of_their_own() {
    let narrower = opened(|w| {
        w.set("llama.feed_forward_length", Meta::U32s(vec![96, 64]));
        for (name, dims) in [("gate", [64, 64]), ("up", [64, 64]), ("down", [64, 64])] {
            w.tensor_mut(&format!("blk.1.ffn_{name}.weight")).dims = dims.to_vec();
        }
    });
    assert_eq!([0, 1].map(|l| narrower.network().ffn(l).d_ff), [96, 64]);
    let even = opened(|w| _ = w.set("llama.feed_forward_length", Meta::U32s(vec![96, 96])));
    assert_eq!(even.network().ffn(1).d_ff, 96);
    let llama = Model::default();
    let uneven = |values| {
        move |w: &mut GgufWriter| _ = w.set("llama.feed_forward_length", Meta::I32s(values))
    };
    // The tensors are of layers that are all alike.
    refused(&llama, uneven(vec![96, 64]), &["blk.1.ffn_", "asks for"]);
    refused(
        &llama,
        uneven(vec![96]),
        &["llama.feed_forward_length", "1 values for 2 layers"],
    );
    refused(&llama, uneven(vec![96, -1]), &["llama.feed_forward_length"]);
}

#[test]
fn layers_that_predict_further_tokens_are_skipped() {
    let further = |w: &mut GgufWriter| {
        w.set("llama.nextn_predict_layers", 1);
        w.set("llama.feed_forward_length", Meta::U32s(vec![96, 64]));
        let x = vec![0.0; 64];
        w.tensor("blk.1.nextn.enorm.weight", 64, None, BlockType::F32, &x);
    };
    assert_eq!(opened(further).network().n_layers(), 1);
    refused(
        &Model::default(),
        |w| _ = w.set("llama.nextn_predict_layers", 2),
        &["llama.nextn_predict_layers", "only 2 layers"],
    );
}

#[test]
fn unknown_arithmetic_is_refused_with_key_and_value() {
    let cases: [(&str, Meta, &str); 9] = [
        ("llama.final_logit_softcapping", Meta::F32(30.0), "30"),
        ("llama.rope.freq_base_swa", Meta::F32(1e4), "10000"),
        ("llama.attention.causal", Meta::Bool(false), "false"),
        ("llama.attention.clamp_kqv", Meta::F32(8.0), "8"),
        ("llama.rope.scaling.attn_factor", Meta::F32(1.5), "1.5"),
        ("llama.logit_scale", Meta::F32(16.0), "16"),
        ("llama.attention.sliding_window_pattern", Meta::U32(6), "6"),
        ("llama.attention.value_length", Meta::U32(8), "8"),
        ("general.architecture", Meta::Str("mamba".into()), "mamba"),
    ];
    for (key, value, shown) in cases {
        refused(
            &Model::default(),
            |w| _ = w.set(key, value),
            &[key, shown, "not supported"],
        );
    }
    // The neutral values are fine.
    opened(|w| {
        _ = w
            .set("llama.expert_count", 0)
            .set("llama.attention.causal", Meta::Bool(true))
    });
}

#[test]
fn an_unknown_architecture_is_named_with_all_known_ones() {
    refused(
        &Model::default(),
        |w| _ = w.set("general.architecture", "mamba"),
        &[
            "\"mamba\"",
            "supported are ",
            ", qwen3, ",
            "ask for another one at https://",
            "/issues",
        ],
    );
}

#[test]
fn wrong_keys_are_named() {
    let llama = Model::default();
    let required = [
        "general.architecture",
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.context_length",
    ];
    for key in required {
        refused(&llama, |w| _ = w.unset(key), &[key, "missing"]);
    }
    let wrong: [(&str, Meta); 9] = [
        ("llama.block_count", Meta::U32(0)),
        ("llama.block_count", Meta::I32(-1)),
        ("llama.block_count", Meta::U64(u64::MAX)),
        ("llama.embedding_length", Meta::Str("64".into())),
        ("llama.attention.head_count", Meta::U32s(vec![])),
        (
            "llama.attention.layer_norm_rms_epsilon",
            Meta::F32(f32::NAN),
        ),
        ("llama.attention.layer_norm_rms_epsilon", Meta::F32(-1.0)),
        ("llama.rope.freq_base", Meta::F32(0.0)),
        ("powerinfer.sparse_threshold", Meta::F32(f32::INFINITY)),
    ];
    for (key, value) in wrong {
        refused(&llama, |w| _ = w.set(key, value), &[key]);
    }
    refused(
        &llama,
        |w| _ = w.set("llama.attention.head_count_kv", 3),
        &["4 query heads", "3 key/value"],
    );
    refused(
        &llama,
        |w| _ = w.set("llama.rope.dimension_count", 18),
        &["rotary dimension", "18"],
    );
    refused(
        &llama,
        |w| _ = w.set("llama.rope.dimension_count", 7),
        &["rotary dimension", "7"],
    );
    refused(
        &llama,
        |w| _ = w.set("tokenizer.ggml.tokens", Meta::Strs(vec!["x".into(); 265])),
        &["tokenizer.ggml.tokens", "265 tokens", "264 rows"],
    );
}

/// The first files of Qwen1.5 with experts have neither of the keys: llama.cpp's defaults.
#[test]
fn widths_of_experts_may_follow_from_that_of_the_ffn() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tiny");
    let whole = std::fs::read(tiny.join("qwen2_moe_bf16_gguf/model.gguf")).unwrap();
    let find = |key: &str| {
        let mut windows = whole.windows(key.len());
        windows.position(|w| w == key.as_bytes()).expect("the key")
    };
    let open = |bytes: &[u8]| {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, bytes).unwrap();
        GgufSource::open(&path).unwrap().network().clone()
    };
    // Four experts of 32 neurons for each token, and 80 neurons for all.
    for (absent, d_ff) in [
        ("qwen2moe.expert_feed_forward_length", 128u32),
        ("qwen2moe.expert_shared_feed_forward_length", 80),
    ] {
        let mut bytes = whole.clone();
        let at = find(absent);
        bytes[at..][.."general.x".len()].copy_from_slice(b"general.x");
        let key = "qwen2moe.feed_forward_length";
        // The value comes after its type.
        let at = find(key) + key.len() + 4;
        bytes[at..][..4].copy_from_slice(&d_ff.to_le_bytes());
        assert_eq!(open(&bytes), open(&whole), "{absent}");
    }
}
