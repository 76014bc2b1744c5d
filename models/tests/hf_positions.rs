//! Windows and rotations of models in Hugging Face folders, as transformers reads them.

mod hf_writer;

use forebay_models::network::RopeScaling;
use hf_writer::{Folder, network_of, qwen2, refused};
use serde_json::{Value, json};

#[test]
fn sliding_windows_follow_transformers() {
    let window = |model: &dyn Fn(&mut Folder), fields: Value| {
        network_of(|f| {
            model(f);
            f.config.extend(fields.as_object().unwrap().clone());
        })
        .layers
        .iter()
        .map(|l| l.mixer.body.attention().and_then(|a| a.window))
        .collect::<Vec<_>>()
    };
    let llama = |_: &mut Folder| {};
    let mistral = |f: &mut Folder| _ = f.set("model_type", json!("mistral"));
    assert_eq!(window(&llama, json!({"sliding_window": 64})), [None; 2]);
    assert_eq!(window(&mistral, json!({})), [Some(4096); 2]);
    assert_eq!(window(&mistral, json!({"sliding_window": null})), [None; 2]);
    assert_eq!(
        window(&mistral, json!({"sliding_window": 64})),
        [Some(64); 2]
    );
    assert_eq!(window(&qwen2, json!({"sliding_window": 64})), [None; 2]);
    let used = |more: Value| {
        let mut fields = json!({"sliding_window": 64, "use_sliding_window": true});
        let more = more.as_object().unwrap().clone();
        fields.as_object_mut().unwrap().extend(more);
        fields
    };
    assert_eq!(
        window(&qwen2, used(json!({"max_window_layers": 0}))),
        [Some(64); 2]
    );
    assert_eq!(
        window(&qwen2, used(json!({"max_window_layers": 2}))),
        [None; 2]
    );
    assert_eq!(
        window(&qwen2, used(json!({"max_window_layers": 1}))),
        [None, Some(64)]
    );
    assert_eq!(window(&qwen2, used(json!({}))), [None; 2]);
    let all = json!({"layer_types": ["sliding_attention", "sliding_attention"]});
    assert_eq!(window(&qwen2, used(all)), [Some(64); 2]);
    let types = |types: Value| {
        let all = used(json!({"layer_types": types}));
        move |f: &mut Folder| {
            qwen2(f);
            f.config.extend(all.as_object().unwrap().clone());
        }
    };
    refused(
        types(json!(["full_attention"])),
        &["layer_types", "2 names"],
    );
    refused(
        |f| {
            _ = f.set(
                "layer_types",
                json!(["sliding_attention", "full_attention"]),
            )
        },
        &["layer_types", "not supported"],
    );
}

fn llama3_fields() -> Value {
    json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})
}

#[test]
fn rotary_scaling_is_read_in_old_and_new_form() {
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192.0,
    };
    let fields = llama3_fields();
    let old = network_of(|f| {
        _ = f
            .set("rope_scaling", fields.clone())
            .set("rope_theta", json!(500000))
    });
    assert_eq!(
        (old.ropes[0].scaling.clone(), old.ropes[0].theta),
        (llama3.clone(), 500_000.0)
    );
    let mut together = fields.clone();
    together["rope_theta"] = json!(500000.0);
    let new = network_of(|f| {
        f.config.remove("rope_theta");
        f.set("rope_parameters", together.clone());
    });
    assert_eq!(
        (new.ropes[0].scaling.clone(), new.ropes[0].theta),
        (llama3, 500_000.0)
    );
}

#[test]
fn kinds_of_rotary_scaling_are_told_apart() {
    let scaling = |v: Value| {
        network_of(|f| _ = f.set("rope_scaling", v)).ropes[0]
            .scaling
            .clone()
    };
    assert_eq!(
        scaling(json!({"type": "linear", "factor": 2})),
        RopeScaling::Linear { factor: 2.0 }
    );
    assert_eq!(scaling(json!({"rope_type": "default"})), RopeScaling::None);
    assert_eq!(scaling(json!(null)), RopeScaling::None);

    let bad = |v: Value, parts: &[&str]| refused(|f| _ = f.set("rope_scaling", v), parts);
    // Within the context of the training, nothing is scaled.
    let dynamic =
        network_of(|f| _ = f.set("rope_scaling", json!({"type": "dynamic", "factor": 2})));
    assert_eq!(dynamic.ropes[0].scaling, RopeScaling::None);
    bad(
        json!({"type": "dynamic", "alpha": 2}),
        &["rope_scaling.type", "dynamic", "not supported"],
    );
    let yarn = network_of(|f| _ = f.set("rope_scaling", json!({"rope_type": "yarn", "factor": 2})));
    let expected = RopeScaling::Yarn {
        factor: 2.0,
        original_context: 128.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    assert_eq!(yarn.ropes[0].scaling, expected);
    assert_eq!(yarn.ropes[0].magnitude, 1.0 + 0.1 * 2f32.ln());
    bad(
        json!({"type": "linear"}),
        &["rope_scaling.factor", "missing"],
    );
    bad(
        json!({"type": "linear", "factor": 0}),
        &["rope_scaling.factor", "not a positive number"],
    );
    let mut flat = llama3_fields();
    flat["high_freq_factor"] = json!(1.0);
    bad(flat, &["high_freq_factor", "not above"]);
    refused(
        |f| {
            _ = f.set(
                "rope_parameters",
                json!({"full_attention": {"rope_theta": 1e4}}),
            )
        },
        &["rope_parameters", "per layer type"],
    );
    refused(
        |f| _ = f.set("partial_rotary_factor", json!(0.5)),
        &["partial_rotary_factor", "0.5"],
    );
}
