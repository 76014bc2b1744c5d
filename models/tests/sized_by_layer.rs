//! Models whose layers differ in their heads, and how checkpoints say so: with a key for each kind of layer, with what
//! single layers have different, and inside a checkpoint for several kinds of input.

mod hf_writer;

use forebay_models::network::KvOrigin;
use hf_writer::changed_golden;
use serde_json::{Map, Value, json};

fn refused(name: &str, change: impl FnOnce(&mut Map<String, Value>), parts: &[&str]) {
    let message = changed_golden(name, change).expect_err("it must be refused");
    for part in parts {
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
}

#[test]
fn kinds_of_layers_have_their_sizes() {
    let network = changed_golden("gemma4_bf16", |_| ()).expect("a sound folder");
    let sizes = |l| {
        let a = network.attention(l).expect("attention");
        (a.head_dim, a.n_kv_heads, a.window, a.kv)
    };
    let sliding = (16, 2, Some(8), KvOrigin::Own);
    let full = (32, 1, None, KvOrigin::KeysAlone);
    let expected = [sliding, sliding, full, sliding, sliding, sliding, full];
    assert_eq!(std::array::from_fn::<_, 7, _>(sizes), expected);
    assert!(network.token_inputs.is_none());

    let network = changed_golden("gemma4_inputs_bf16", |_| ()).expect("a sound folder");
    let origins = (0..7).map(|l| network.attention(l).expect("attention").kv);
    use KvOrigin::{Layer, Own};
    let expected = [Own, Own, Own, Own, Layer(2), Layer(2), Layer(3)];
    assert!(origins.eq(expected));
    let widths = (0..7).map(|l| network.ffn(l).d_ff);
    assert!(widths.eq([64, 64, 64, 64, 128, 128, 128]));
    assert_eq!(network.inputs_width(), 56);
}

#[test]
fn what_single_layers_have_different_is_read() {
    let plain = changed_golden("gemma4_bf16", |_| ()).expect("a sound folder");
    let by_layer = |of_full: Value| {
        move |config: &mut Map<String, Value>| {
            config.remove("global_head_dim");
            config.remove("num_global_key_value_heads");
            let all = json!({"02": of_full, "06": of_full});
            config.insert("per_layer_config".into(), all);
        }
    };
    let sizes = json!({"head_dim": 32, "num_key_value_heads": 1});
    let network = changed_golden("gemma4_bf16", by_layer(sizes)).expect("the same model");
    assert_eq!(network, plain);
    let name = "gemma4_bf16";
    let other = json!({"head_dim": 32, "num_key_value_heads": 1, "intermediate_size": 9});
    refused(name, by_layer(other), &["02.intermediate_size"]);
    let beyond = |config: &mut Map<String, Value>| {
        let all = json!({"7": {"head_dim": 32}});
        config.insert("per_layer_config".into(), all);
    };
    refused(name, beyond, &["per_layer_config.7", "no such layer"]);
}

#[test]
fn the_text_model_inside_of_another_is_the_same() {
    let plain = changed_golden("gemma4_inputs_bf16", |_| ()).expect("a sound folder");
    let inside = |config: &mut Map<String, Value>| {
        let text = std::mem::take(config);
        config.insert("model_type".into(), json!("gemma4"));
        config.insert("text_config".into(), Value::Object(text));
    };
    let network = changed_golden("gemma4_inputs_bf16", inside).expect("the same model");
    assert_eq!(network, plain);
}

#[test]
fn what_is_not_computed_is_refused() {
    let set = |field: &'static str, value: Value| {
        move |config: &mut Map<String, Value>| {
            config.insert(field.into(), value);
        }
    };
    let name = "gemma4_inputs_bf16";
    let experts = set("enable_moe_block", json!(true));
    refused(name, experts, &["enable_moe_block", "experts"]);
    let ahead = set("use_bidirectional_attention", json!("all"));
    refused(name, ahead, &["use_bidirectional_attention"]);
    let all = set("num_kv_shared_layers", json!(7));
    refused(name, all, &["num_kv_shared_layers", "layer 0"]);
    let rows = set("vocab_size_per_layer_input", json!(100));
    refused(name, rows, &["vocab_size_per_layer_input", "288"]);
    let pictures = set("use_bidirectional_attention", json!("vision"));
    assert!(changed_golden(name, pictures).is_ok());
}
