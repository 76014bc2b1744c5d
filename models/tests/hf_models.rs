//! Models in Hugging Face folders: the configuration follows from `config.json` with the defaults
//! of transformers, tensors are found by role, and what the engine cannot run is refused by name.

mod hf_writer;

use forebay_models::block::BlockType;
use forebay_models::network::{Activation, Network, Rope, RopePairing, Uniform};
use forebay_models::source;
use forebay_models::source::HfSource;
use forebay_models::source::TensorSource;
use forebay_models::tensor::{LayerTensor, TensorId};
use hf_writer::{Folder, changed_golden, network_of, qwen2, refused, seeded, tiny};
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

#[test]
fn a_llama_folder_becomes_its_configuration() {
    let written = tiny().write();
    let source = source::open(written.path()).unwrap();
    assert_eq!(source.path(), written.path());
    let name = written.path().file_name().unwrap().to_str().unwrap();
    let plain = Uniform {
        name: name.into(),
        n_layers: 2,
        d_model: 64,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 16,
        d_ff: 96,
        vocab_size: 264,
        context_length: 128,
        rms_eps: 1e-5,
        rope: Rope::plain(10_000.0, 16, RopePairing::HalfSplit),
        window: None,
        activation: Activation::Relu,
        qkv_bias: false,
        tied_head: true,
        predictor_threshold: 0.0,
    };
    assert_eq!(*source.network(), plain.network());
}

#[test]
fn activations_have_their_names() {
    let act = |name: &str| {
        network_of(|f| _ = f.set("hidden_act", json!(name)))
            .ffn(0)
            .activation
    };
    assert_eq!(act("silu"), Activation::Silu);
    assert_eq!(act("swish"), Activation::Silu);
    assert_eq!(act("relu"), Activation::Relu);
    let prosparse = network_of(|f| {
        f.set("model_type", json!("sparsellama"));
        f.set("hidden_act", json!("fatrelu"))
            .set("hidden_act_param", json!(0.01));
    });
    assert_eq!(
        prosparse.ffn(0).activation,
        Activation::FatRelu { threshold: 0.01 }
    );
    assert_eq!(act("gelu"), Activation::GeluErf);
    assert_eq!(act("gelu_new"), Activation::GeluTanh);
    refused(
        |f| _ = f.set("hidden_act", json!("gelu_10")),
        &["hidden_act", "gelu_10", "not supported"],
    );
    refused(
        |f| _ = f.set("hidden_act", json!("fatrelu")),
        &["hidden_act_param", "missing"],
    );
}

#[test]
fn bamboo_is_double_relu_with_predictors_inside() {
    let mut folder = tiny();
    folder
        .set("model_type", json!("bamboo"))
        .put_predictors(8, true);
    let written = folder.write();
    let source = HfSource::open(written.path()).unwrap();
    assert_eq!(source.network().ffn(0).activation, Activation::DoubleRelu);
    assert_eq!(
        source.network().attention(0).expect("attention").window,
        None
    );
    let fc2 = source
        .meta(TensorId::Layer(1, LayerTensor::PredictorFc2))
        .unwrap();
    assert_eq!((fc2.rows, fc2.cols), (96, 8));
    let by_class = network_of(|f| {
        f.set("model_type", json!("mistral"))
            .set("architectures", json!(["BambooForCausalLM"]));
    });
    assert_eq!(by_class.ffn(0).activation, Activation::DoubleRelu);
    refused(
        |f| {
            _ = f
                .set("model_type", json!("bamboo"))
                .set("hidden_act", json!("silu"))
        },
        &["hidden_act", "silu"],
    );
}

#[test]
fn predictors_may_lie_beside_the_checkpoint() {
    let mut folder = tiny();
    folder.put_predictors(8, false);
    let written = folder.write();
    let source = HfSource::open(written.path()).unwrap();
    let id = TensorId::Layer(1, LayerTensor::PredictorFc1);
    assert_eq!(source.meta(id).map(|m| (m.rows, m.cols)), Some((8, 64)));
    let expected = &folder.predictors["model.layers.1.mlp.predictor.fc1.weight"].data;
    let mut bytes = vec![0; expected.len()];
    source.read(id, 0, &mut bytes).unwrap();
    assert_eq!(bytes, *expected);

    refused(
        |f| _ = f.put_predictors(8, false).put_predictors(8, true),
        &["predictor", "again"],
    );
    let one_missing = |f: &mut Folder| {
        f.put_predictors(8, false);
        f.predictors
            .remove("model.layers.0.mlp.predictor.fc2.weight");
    };
    refused(
        one_missing,
        &["model.layers.0.mlp.predictor.fc2.weight", "missing"],
    );
    let ranks_differ = |f: &mut Folder| {
        f.put_predictors(8, false);
        let name = "model.layers.1.mlp.predictor.fc1.weight";
        f.predictors
            .insert(name.into(), seeded(name, Dtype::F16, &[16, 64]));
    };
    refused(
        ranks_differ,
        &["layers.1.mlp.predictor.fc2", "rank is 8 here and 16"],
    );
    let foreign = |f: &mut Folder| {
        f.predictors
            .insert("model.norm.weight".into(), seeded("x", Dtype::F16, &[64]));
    };
    refused(
        foreign,
        &[
            "predictor.safetensors",
            "model.norm.weight",
            "not supported",
        ],
    );
}

#[test]
fn qwen2_has_biases() {
    let n = network_of(qwen2);
    assert!(n.attention(0).expect("attention").qkv_bias);
    assert_eq!(n.ropes[0].pairing, RopePairing::HalfSplit);
    refused(
        |f| {
            qwen2(f);
            f.tensors.remove("model.layers.1.self_attn.k_proj.bias");
        },
        &["model.layers.1.self_attn.k_proj.bias", "missing"],
    );
}

/// A folder whose text model is a part of another, with tensors called `prefix` and then as usual.
fn inside_of_another(outer: &str, inner: &str, prefix: &str) -> Folder {
    let mut folder = tiny();
    folder.set("model_type", json!(inner));
    let text = std::mem::take(&mut folder.config);
    folder.set("model_type", json!(outer));
    folder.set("text_config", Value::Object(text));
    let tensors = std::mem::take(&mut folder.tensors);
    for (name, tensor) in tensors {
        let name = name.strip_prefix("model.").unwrap();
        folder.tensors.insert(format!("{prefix}{name}"), tensor);
    }
    folder.put("vision_tower.blocks.0.weight", &[8, 8, 2]);
    folder.put("multi_modal_projector.norm.weight", &[8]);
    folder
}

#[test]
fn text_models_inside_others_are_read() {
    let plain = network_of(|f| _ = f.set("model_type", json!("mistral")));
    for prefix in ["language_model.model.", "model.language_model."] {
        let written = inside_of_another("mistral3", "mistral", prefix).write();
        let source = HfSource::open(written.path()).unwrap();
        let name = source.network().name.clone();
        assert_eq!(
            *source.network(),
            Network {
                name,
                ..plain.clone()
            }
        );
        assert!(source.meta(TensorId::Layer(1, LayerTensor::Down)).is_some());
    }
    let error = |outer: &str, change: &dyn Fn(&mut Folder)| {
        let mut folder = inside_of_another(outer, "mistral", "language_model.model.");
        change(&mut folder);
        let written = folder.write();
        HfSource::open(written.path()).err().unwrap().to_string()
    };
    let message = error("mystery", &|_| ());
    assert!(
        message.contains("\"mystery\" around \"mistral\""),
        "{message}"
    );
    let message = error("mistral3", &|f| _ = f.put("video_tower.weight", &[8]));
    assert!(
        message.contains("video_tower.weight: a tensor"),
        "{message}"
    );
    let quantised = json!({"quant_method": "gptq"});
    let message = error("mistral3", &|f| {
        _ = f.set("quantization_config", quantised.clone())
    });
    assert!(message.contains("quantised"), "{message}");
}

#[test]
fn what_cannot_be_run_is_named() {
    for (field, value, part) in [
        ("model_type", json!("mamba"), "mamba"),
        ("model_type", json!("jamba"), "jamba"),
        (
            "attention_bias",
            json!(true),
            "bias of the output projection",
        ),
        ("mlp_bias", json!(true), "true"),
        ("attn_logit_softcapping", json!(50.0), "50"),
        ("logits_scaling", json!(8), "8"),
        ("num_local_experts", json!(8), "with experts"),
        ("no_rope_layers", json!([1, 0]), "array"),
        (
            "rope_parameters",
            json!({"rope_type": "default", "llama_4_scaling_beta": 0.1}),
            "0.1",
        ),
        (
            "quantization_config",
            json!({"quant_method": "gptq"}),
            "quantised",
        ),
    ] {
        refused(|f| _ = f.set(field, value), &[field, part, "not supported"]);
    }
}

/// Why a golden model with one field changed is refused, if it is.
fn refusal(name: &str, field: &str, value: Value) -> Option<String> {
    let opened = changed_golden(name, |config| _ = config.insert(field.into(), value));
    opened.err()
}

#[test]
fn variants_of_old_architectures_are_named() {
    for (name, field, value, part) in [
        ("opt_bf16", "word_embed_proj_dim", json!(32), "32"),
        ("opt_bf16", "do_layer_norm_before", json!(false), "false"),
        ("opt_bf16", "_remove_final_layer_norm", json!(true), "true"),
        ("falcon_bf16", "alibi", json!(true), "true"),
        (
            "falcon_bf16",
            "parallel_attn",
            json!(false),
            "beside each other",
        ),
        ("gpt2_bf16", "scale_attn_weights", json!(false), "false"),
        ("phi2_bf16", "qk_layernorm", json!(true), "true"),
        ("baichuan_bf16", "num_hidden_layers", json!(40), "ALiBi"),
        ("baichuan_bf16", "hidden_size", json!(5120), "ALiBi"),
    ] {
        let message = refusal(name, field, value).expect(field);
        for part in ["config.json", field, part, "not supported"] {
            assert!(message.contains(part), "{part:?} is missing in: {message}");
        }
    }
}

/// A field that is missing is called what the file would call it.
#[test]
fn fields_have_the_names_of_their_architecture() {
    let message = refusal("gpt2_bf16", "n_head", json!("four")).expect("no number");
    assert!(message.contains("n_head"), "{message}");
    let message = refusal("opt_bf16", "ffn_dim", Value::Null).expect("missing");
    assert!(message.contains("ffn_dim"), "{message}");
    let message = refusal("opt_bf16", "max_position_embeddings", json!(71));
    let message = message.expect("a longer table");
    assert!(message.contains("embed_positions"), "{message}");
    assert!(
        message.contains("74 rows") && message.contains("73 rows"),
        "{message}"
    );
}

/// Every row has to be there.
#[test]
fn norms_of_single_heads_are_complete() {
    let message = refusal("stablelm_12b_bf16", "num_key_value_heads", json!(4));
    assert!(message.is_some(), "two heads have no norm");
    assert_eq!(
        refusal("stablelm_12b_bf16", "qk_layernorm", json!(true)),
        None
    );
}

#[test]
fn wrong_fields_are_named() {
    let required = [
        "model_type",
        "hidden_size",
        "num_attention_heads",
        "num_hidden_layers",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    ];
    for field in required {
        refused(
            |f| _ = f.config.remove(field),
            &["config.json", field, "missing"],
        );
    }
    for (field, value) in [
        ("hidden_size", json!("64")),
        ("hidden_size", json!(-64)),
        ("hidden_size", json!(1_u64 << 40)),
        ("num_hidden_layers", json!(0)),
        ("num_attention_heads", json!(5)),
        ("rms_norm_eps", json!(0.0)),
        ("rope_theta", json!(1e300)),
        ("tie_word_embeddings", json!(1)),
    ] {
        refused(|f| _ = f.set(field, value), &["config.json", field]);
    }
    refused(
        |f| _ = f.set("num_key_value_heads", json!(3)),
        &["4 query heads", "3 key/value"],
    );
}

#[test]
fn a_tied_head_ignores_a_copy_and_keeps_another_head() {
    let copied = network_of(|f| {
        let embedding = f.tensors["model.embed_tokens.weight"].clone();
        f.tensors.insert("lm_head.weight".into(), embedding);
    });
    assert!(copied.head.tied);
    assert!(
        !network_of(|f| _ = f.put("lm_head.weight", &[264, 64]))
            .head
            .tied
    );
    refused(
        |f| _ = f.put("lm_head.weight", &[200, 64]),
        &["lm_head.weight", "asks for"],
    );
    let untied = |f: &mut Folder| {
        f.set("tie_word_embeddings", json!(false));
    };
    refused(untied, &["lm_head.weight", "missing"]);
    let mut folder = tiny();
    untied(folder.put("lm_head.weight", &[264, 64]));
    let written = folder.write();
    let source = HfSource::open(written.path()).unwrap();
    assert!(!source.network().head.tied);
    assert!(source.meta(TensorId::OutputHead).is_some());
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    for name in tiny().tensors.keys() {
        refused(|f| _ = f.tensors.remove(name), &[name, "missing"]);
        let mut shape = tiny().tensors[name].shape.clone();
        shape[0] += 1;
        refused(
            |f| _ = f.put(name, &shape),
            &[name, "the configuration asks for"],
        );
    }
}

#[test]
fn unknown_tensors_are_refused_and_redundant_ones_are_not() {
    network_of(|f| _ = f.put("model.layers.1.self_attn.rotary_emb.inv_freq", &[8]));
    let extra = |name: &str, part: &str| refused(|f| _ = f.put(name, &[64]), &[name, part]);
    extra("model.layers.0.self_attn.o_proj.bias", "not supported");
    extra("model.layers.0.self_attn.q_norm.weight", "not supported");
    extra("model.layers.2.input_layernorm.weight", "only 2 layers");
    extra("model.layers.0.self_attn.q_proj.bias", "none elsewhere");
}

#[test]
fn shards_and_types_are_read_alike() {
    for (dtype, block) in [
        (Dtype::F32, BlockType::F32),
        (Dtype::F16, BlockType::F16),
        (Dtype::BF16, BlockType::BF16),
    ] {
        let mut folder = tiny();
        for (name, t) in &mut folder.tensors {
            *t = seeded(name, dtype, &t.shape);
        }
        folder.shards = 3;
        let written = folder.write();
        let source = HfSource::open(written.path()).unwrap();
        for (id, name) in [
            (TensorId::TokenEmbedding, "model.embed_tokens.weight"),
            (
                TensorId::Layer(0, LayerTensor::Down),
                "model.layers.0.mlp.down_proj.weight",
            ),
            (
                TensorId::Layer(1, LayerTensor::V),
                "model.layers.1.self_attn.v_proj.weight",
            ),
        ] {
            let meta = source.meta(id).unwrap();
            let expected = &folder.tensors[name].data;
            assert_eq!(
                (meta.block, meta.bytes()),
                (block, expected.len()),
                "{name}"
            );
            let row = meta.row_bytes();
            let mut bytes = vec![0; row];
            source.read(id, row, &mut bytes).unwrap();
            assert_eq!(bytes, expected[row..2 * row], "{name}");
            assert!(source.read(id, meta.bytes(), &mut bytes).is_err());
        }
    }
}
