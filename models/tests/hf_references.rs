//! Fields that the versions of transformers read differently, or do not read: refused by name where it matters, and
//! read as transformers does where all versions agree.

mod hf_writer;

use forebay_models::network::{Activation, Network, RopeScaling};
use hf_writer::changed_golden;
use serde_json::{Map, Value, json};

/// The golden model `name` with these fields; those that are null are removed.
fn with(name: &str, fields: &Value) -> Result<Network, String> {
    changed_golden(name, |config| {
        for (field, value) in fields.as_object().expect("an object") {
            match value.is_null() {
                true => config.remove(field),
                false => config.insert(field.clone(), value.clone()),
            };
        }
    })
}

fn opened(name: &str, fields: Value) -> Network {
    with(name, &fields).unwrap_or_else(|e| panic!("{name} with {fields}: {e}"))
}

/// Checks that each golden model is refused with its fields, by a message that has all parts and does not call the
/// file damaged.
fn refused(cases: &[(&str, Value, &[&str])]) {
    for (name, fields, parts) in cases {
        let message = with(name, fields).expect_err(&format!("{name} with {fields}"));
        for part in parts.iter().chain(&["config.json", "not supported"]) {
            assert!(message.contains(part), "{part:?} is missing in: {message}");
        }
    }
}

/// The value of a field of a golden model.
fn field(name: &str, field: &str) -> Value {
    let mut found = Value::Null;
    let take = |config: &mut Map<String, Value>| found = config[field].clone();
    changed_golden(name, take).expect("a sound folder");
    found
}

/// `object` with the fields of `more`.
fn extended(mut object: Value, more: &Value) -> Value {
    let fields = object.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    object
}

const LLAMA: &str = "llama_linear_rope_f16";
const GEMMA: &str = "gemma3_linear_bf16";

fn yarn() -> Value {
    json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})
}

#[test]
fn one_object_describes_the_rotation() {
    let plain = json!({"rope_type": "default", "rope_theta": 1e4});
    let both = |new: &Value, old: Value| json!({"rope_parameters": new, "rope_scaling": old});
    let nested = field(GEMMA, "rope_parameters");
    let linear = |factor: f32| json!({"type": "linear", "factor": factor, "rope_type": "linear"});
    refused(&[
        (
            LLAMA,
            both(&plain, yarn()),
            &["rope_scaling", "rope_parameters"],
        ),
        (LLAMA, both(&yarn(), plain.clone()), &["rope_scaling"]),
        (
            LLAMA,
            both(&json!({"rope_theta": 500}), json!({"type": "default"})),
            &["rope_scaling"],
        ),
        (
            GEMMA,
            both(&nested, linear(3.0)),
            &["rope_scaling", "rope_parameters"],
        ),
    ]);
    let scaling = |fields: Value| opened(LLAMA, fields).ropes[0].scaling.clone();
    let expected = scaling(json!({"rope_scaling": yarn()}));
    assert!(matches!(expected, RopeScaling::Yarn { .. }));
    let same = extended(
        yarn(),
        &json!({"rope_theta": 10000, "type": "yarn", "factor": 4}),
    );
    assert_eq!(scaling(both(&same, yarn())), expected);
    assert_eq!(scaling(both(&yarn(), json!({}))), expected);
    assert_eq!(scaling(both(&json!({}), yarn())), expected);
    assert_eq!(
        scaling(both(&plain, json!({"type": "default"}))),
        RopeScaling::None
    );
    let gemma = opened(GEMMA, both(&nested, linear(8.0)));
    assert_eq!(gemma, opened(GEMMA, json!({})));
}

#[test]
fn a_base_inside_and_one_beside_are_the_same() {
    let inside = |theta: f32| extended(yarn(), &json!({"rope_theta": theta}));
    let other = json!({"rope_scaling": inside(500.0)});
    refused(&[(
        LLAMA,
        other.clone(),
        &["rope_scaling.rope_theta", "500", "10000"],
    )]);
    let theta = |fields| opened(LLAMA, fields).ropes[0].theta;
    assert_eq!(theta(json!({"rope_scaling": inside(1e4)})), 1e4);
    assert_eq!(theta(extended(other, &json!({"rope_theta": null}))), 500.0);
    refused(&[(
        "lfm2_bf16",
        json!({"theta": 500.0}),
        &["theta", "500", "1000000"],
    )]);
    opened("lfm2_bf16", json!({"theta": 1e6}));
    let absent = json!({"rope_theta": null});
    for name in ["command_r_bf16", "olmo3_bf16"] {
        let message = with(name, &absent).expect_err(name);
        assert!(
            message.contains("rope_theta: it is missing; add"),
            "{message}"
        );
    }
    assert_eq!(opened("glm4_moe_lite_bf16", absent).ropes[0].theta, 1e4);
}

#[test]
fn an_original_context_inside_and_one_beside_are_the_same() {
    const FIELD: &str = "original_max_position_embeddings";
    const PHI: &str = "phi3_longrope_bf16";
    let inside = format!("rope_scaling.{FIELD}");
    let old = |p: Value| json!({"rope_scaling": p, FIELD: 64});
    let llama3 = field("llama3_rope_bf16", "rope_scaling");
    let phi = field(PHI, "rope_scaling");
    let without = |p: &Value| {
        let mut p = p.clone();
        p.as_object_mut().expect("an object").remove(FIELD);
        p
    };
    let only_inside = json!({"rope_scaling": phi, FIELD: null});
    refused(&[
        (LLAMA, old(yarn()), &[&inside, "32", "64"]),
        ("llama3_rope_bf16", old(llama3), &[&inside, "48", "64"]),
        (LLAMA, old(without(&yarn())), &[FIELD, "64"]),
        (PHI, only_inside, &[&inside, "24", "4096"]),
    ]);
    opened(PHI, json!({"rope_scaling": without(&phi)}));
    let large = extended(phi, &json!({FIELD: 4096}));
    opened(PHI, json!({"rope_scaling": large, FIELD: null}));
    // The context of the model is what both versions assume.
    let same = json!({"rope_scaling": without(&yarn()), FIELD: 256});
    assert!(matches!(
        opened(LLAMA, same).ropes[0].scaling,
        RopeScaling::Yarn {
            original_context: 256.0,
            ..
        }
    ));
}

#[test]
fn what_an_architecture_assumes_is_known() {
    const MISTRAL: &str = "mistral3_yarn_bf16";
    let p = field(MISTRAL, "rope_parameters");
    let old = json!({"rope_parameters": null, "rope_scaling": p});
    assert_eq!(opened(MISTRAL, old), opened(MISTRAL, json!({})));
    for empty in [json!(null), json!({})] {
        let message = with(MISTRAL, &json!({"rope_parameters": empty})).expect_err("no rotation");
        assert!(
            message.contains("rope_parameters: it is missing"),
            "{message}"
        );
    }
    let mut phi = field("phi3_longrope_bf16", "rope_scaling");
    phi["rope_type"] = json!("yarn");
    let typed = json!({"rope_scaling": phi});
    refused(&[(
        "phi3_longrope_bf16",
        typed,
        &["rope_scaling.rope_type", "short_factor"],
    )]);
}

#[test]
fn rotations_of_layer_types_are_their_own() {
    const BASES: [&str; 2] = ["rope_theta", "rope_local_base_freq"];
    let nested = |sliding: Value| {
        let full = json!({"rope_type": "linear", "factor": 4.0});
        json!({
            BASES[0]: 1e3,
            "rope_parameters": {"full_attention": full, "sliding_attention": sliding},
        })
    };
    let thetas = |name, fields| {
        opened(name, fields)
            .ropes
            .iter()
            .map(|r| r.theta)
            .collect::<Vec<_>>()
    };
    let plain = || json!({"rope_type": "default"});
    assert_eq!(thetas(GEMMA, nested(plain())), [1e3, 1e4]);
    let local = extended(nested(plain()), &json!({BASES[1]: 77.0}));
    assert_eq!(thetas(GEMMA, local), [1e3, 77.0]);
    assert_eq!(
        thetas(GEMMA, nested(json!({"rope_theta": 5.0}))),
        [1e3, 5.0]
    );
    assert_eq!(
        thetas(
            "olmo3_bf16",
            extended(nested(plain()), &json!({"rope_scaling": null}))
        ),
        [1e3, 5e5]
    );

    // Of one object for all layers, nothing is read.
    let flat = |p: Value| json!({"rope_parameters": p, "rope_scaling": null, "rope_theta": 5e5});
    assert_eq!(
        thetas(GEMMA, flat(extended(plain(), &json!({"rope_theta": 5e5})))),
        [5e5, 1e4]
    );
    let scaled = json!({"factor": 2.0, "rope_type": "linear"});
    refused(&[
        (
            GEMMA,
            flat(scaled),
            &["rope_parameters.factor", "full_attention"],
        ),
        (
            GEMMA,
            flat(json!({"rope_theta": 100})),
            &["rope_parameters.rope_theta", "100"],
        ),
        (
            "olmo3_bf16",
            flat(yarn()),
            &["rope_parameters.rope_type", "full_attention"],
        ),
        (
            "olmo3_bf16",
            json!({"rope_theta": 1e4}),
            &["rope_theta", "10000", "500000"],
        ),
    ]);
    // OLMo 2 has one for all layers.
    assert_eq!(
        thetas(
            "olmo2_bf16",
            json!({"rope_parameters": {"rope_theta": 7.0}})
        ),
        [7.0]
    );
}

#[test]
fn windows_are_where_all_versions_have_them() {
    let used = json!({"use_sliding_window": true, "sliding_window": 16});
    let types = |all: Value| extended(used.clone(), &json!({"layer_types": all}));
    let (full, sliding) = ("full_attention", "sliding_attention");
    let unused = json!({
        "use_sliding_window": false, "sliding_window": 16,
        "layer_types": [sliding, full, full, full, full],
    });
    refused(&[
        (
            "qwen2_moe_bf16",
            used.clone(),
            &["use_sliding_window", "layer_types"],
        ),
        (
            "qwen3_moe_bf16",
            types(json!([full, full, full])),
            &["layer_types", full],
        ),
        (
            "qwen3_moe_bf16",
            types(json!([full, sliding, sliding])),
            &["layer_types", full],
        ),
        (
            "smollm3_bf16",
            unused,
            &["layer_types", "use_sliding_window"],
        ),
        (
            "gemma2_bf16",
            json!({"sliding_window_pattern": 3}),
            &["sliding_window_pattern: 3"],
        ),
    ]);
    let windows = |name, fields| {
        let network = opened(name, fields);
        network.attentions().map(|a| a.window).collect::<Vec<_>>()
    };
    let w = Some(16);
    assert_eq!(
        windows("qwen2_moe_bf16", types(json!([sliding, full]))),
        [w, None]
    );
    assert_eq!(windows("qwen3_moe_bf16", used.clone()), [w; 3]);
    assert_eq!(
        windows("qwen3_moe_bf16", types(json!([sliding, sliding, sliding]))),
        [w; 3]
    );
    let kept =
        json!({"sliding_window_pattern": 3, "layer_types": [full, full, full, full, sliding]});
    assert_eq!(
        windows("gemma2_bf16", kept),
        [None, None, None, None, Some(8)]
    );
    assert_eq!(
        windows("gemma2_bf16", json!({"sliding_window_pattern": 2})).len(),
        5
    );
}

#[test]
fn checkpoints_that_transformers_5_saved_are_read() {
    const QWEN: &str = "qwen3_moe_bf16";
    const EXAONE: &str = "exaone4_full_bf16";
    let saved = json!({"num_experts": null, "num_local_experts": 12});
    assert_eq!(opened(QWEN, saved), opened(QWEN, json!({})));
    opened(QWEN, json!({"num_local_experts": 12}));
    refused(&[(
        QWEN,
        json!({"num_local_experts": 8}),
        &["num_local_experts", "8", "num_experts is 12"],
    )]);
    // A window of null is not removed: it would be the default.
    assert_eq!(
        opened(EXAONE, json!({"sliding_window_pattern": 0})),
        opened(EXAONE, json!({}))
    );
}

#[test]
fn factors_and_activations_are_those_that_are_read() {
    refused(&[
        (
            "granite_bf16",
            json!({"attention_multiplier": 0.0}),
            &["attention_multiplier: 0"],
        ),
        (
            "granite_bf16",
            json!({"embedding_multiplier": 0}),
            &["embedding_multiplier: 0"],
        ),
        (
            "granite_moe_bf16",
            json!({"logits_scaling": 0}),
            &["logits_scaling: 0"],
        ),
    ]);
    let act = |name, fields| opened(name, fields).ffn(0).activation;
    let both = json!({"hidden_act": "silu", "hidden_activation": "gelu"});
    assert_eq!(act(LLAMA, both.clone()), Activation::Silu);
    assert_eq!(act("gemma2_bf16", both), Activation::GeluErf);
}

#[test]
fn groups_of_experts_are_chosen_by_some_architectures() {
    let groups = json!({"n_group": 4, "topk_group": 2});
    refused(&[
        ("qwen3_moe_bf16", groups.clone(), &["n_group: 4"]),
        ("mixtral_f16", groups.clone(), &["n_group: 4"]),
        (
            "qwen3_moe_bf16",
            json!({"scoring_func": "sigmoid"}),
            &["scoring_func", "softmax"],
        ),
    ]);
    let one = json!({"n_group": 1, "topk_group": 1, "scoring_func": "softmax"});
    assert_eq!(
        opened("qwen3_moe_bf16", one),
        opened("qwen3_moe_bf16", json!({}))
    );
    // Without experts, there is nothing to choose.
    opened(LLAMA, groups);
}

const SMALLTHINKER: &str = "smallthinker_bf16";

#[test]
fn weights_of_experts_are_what_the_model_itself_makes_them() {
    // Published files have the first field, and no code reads it.
    let unread = json!({"norm_topk_prob": false, "routed_scaling_factor": 2.5});
    for name in [SMALLTHINKER, "smallthinker_plain_bf16"] {
        assert_eq!(opened(name, unread.clone()), opened(name, json!({})));
    }
}

#[test]
fn routers_of_smallthinker_come_before_the_layer() {
    opened(SMALLTHINKER, json!({"moe_enable_early_router": true}));
    refused(&[(
        SMALLTHINKER,
        json!({"moe_enable_early_router": false}),
        &["moe_enable_early_router", "false"],
    )]);
}

/// By layer, the window and whether positions are encoded.
fn seen(fields: Value) -> Vec<(Option<usize>, bool)> {
    let network = opened(SMALLTHINKER, fields);
    let attentions = network.attentions();
    attentions.map(|a| (a.window, a.rope.is_some())).collect()
}

#[test]
fn smallthinker_assumes_what_its_configuration_does() {
    let own = [0, 1, 1, 1, 0].map(|flag| (flag == 1).then_some(4096));
    let expected = |all: [(Option<usize>, bool); 5]| all.to_vec();
    assert_eq!(seen(json!({})), expected(own.map(|w| (w, w.is_some()))));
    assert_eq!(
        seen(json!({"rope_layout": null, "sliding_window_size": null})),
        expected(own.map(|w| (w, true)))
    );
    let (sliding, rope) = ("sliding_window_layout", "rope_layout");
    assert_eq!(
        seen(json!({sliding: null})),
        expected(own.map(|w| (None, w.is_some())))
    );
    assert_eq!(seen(json!({sliding: null, rope: null})), [(None, true); 5]);

    let omitted = opened(SMALLTHINKER, json!({"rope_theta": null}));
    assert_eq!(omitted.ropes[0].theta, 1e6);
    let omitted = opened(SMALLTHINKER, json!({"tie_word_embeddings": null}));
    assert!(omitted.head.tied);
}

#[test]
fn a_pattern_of_windows_is_a_copy_of_the_layout() {
    let pattern = |flags: Value| json!({"sliding_window_pattern": flags, "sliding_window": 4096});
    assert_eq!(seen(pattern(json!([0, 1, 1, 1, 0]))), seen(json!({})));
    let field: &[&str] = &["sliding_window_pattern", "sliding_window_layout"];
    refused(&[
        (SMALLTHINKER, pattern(json!([0, 1, 1, 0, 0])), field),
        (SMALLTHINKER, pattern(json!([0, 1])), field),
        (SMALLTHINKER, pattern(json!(4)), field),
    ]);
}
