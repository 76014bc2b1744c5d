//! Folders of MiniCPM: without a `model_type`, without factors, and as transformers saves version 4.

mod hf_writer;

use hf_writer::changed_golden;
use serde_json::{Map, Value, json};

const MINICPM: &str = "minicpm_bf16";

#[test]
fn a_folder_without_a_type_is_known_by_its_class() {
    let untyped = |class: Value| {
        changed_golden(MINICPM, |config| {
            config.remove("model_type");
            config.insert("architectures".into(), class);
        })
    };
    let plain = changed_golden(MINICPM, |_| ()).expect("the golden model");
    assert_eq!(untyped(json!(["MiniCPMForCausalLM"])), Ok(plain));
    for class in [json!(["LlamaForCausalLM"]), json!([]), Value::Null] {
        let message = untyped(class).expect_err("any architecture");
        for part in ["config.json: model_type: it is missing; add", "minicpm"] {
            assert!(message.contains(part), "{part:?} is missing in: {message}");
        }
    }
}

/// The model's own configuration and that of transformers assume different factors.
#[test]
fn factors_of_minicpm_have_defaults() {
    let factors = |change: fn(&mut Map<String, Value>)| {
        let network = changed_golden(MINICPM, |config| {
            for field in ["scale_emb", "scale_depth", "dim_model_base"] {
                config.remove(field);
            }
            change(config);
        });
        let network = network.unwrap_or_else(|e| panic!("{e}"));
        let residual = network.layers[0].ffn.residual_scale;
        [network.embedding_scale, residual, network.head.scale]
    };
    let root = 3f32.sqrt();
    assert_eq!(factors(|_| ()), [1.0, 1.0 / root, 1.0 / 64.0]);
    let of_transformers =
        factors(|config| _ = config.insert("model_type".into(), json!("minicpm4")));
    assert_eq!(of_transformers, [12.0, 1.4 / root, 256.0 / 64.0]);
}

#[test]
fn minicpm_4_is_the_same_as_transformers_saves_it() {
    let rope = |name: &str| {
        let factors = vec![json!(1.5); 8];
        let rope = json!({
            "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
            "original_max_position_embeddings": 64, "rope_theta": 10000.0,
        });
        (name.to_owned(), rope)
    };
    let own = changed_golden(MINICPM, |config| config.extend([rope("rope_scaling")]));
    let saved = changed_golden(MINICPM, |config| {
        config.extend([
            rope("rope_parameters"),
            ("model_type".into(), json!("minicpm4")),
        ]);
        config.remove("rope_theta");
    });
    assert!(own.is_ok(), "{own:?}");
    assert_eq!(saved, own);
}
