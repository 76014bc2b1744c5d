//! Damaged and hostile safetensors folders: an error that names the place, never a panic, never
//! memory in proportion to a number in the file.

mod hf_writer;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_models::source::HfSource;
use hf_writer::{Folder, tiny};
use proptest::prelude::*;

fn error_of(path: &Path) -> String {
    HfSource::open(path)
        .err()
        .expect("a folder that must be refused")
        .to_string()
}

/// Asserts that a folder whose checkpoint has this header (and `data_bytes` zeros after it) is
/// refused with a message that has all `parts`.
fn header_refused(header: &str, data_bytes: usize, parts: &[&str]) {
    let folder = tiny().write();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let message = error_of(folder.path());
    for part in parts.iter().chain(&["model.safetensors"]) {
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
}

fn tensor(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}}}"#)
}

#[test]
fn headers_that_lie_about_lengths_are_errors() {
    for huge in [u64::MAX, 1 << 62, 1 << 33, 1 << 20] {
        let folder = tiny().write();
        let file = folder.path().join("model.safetensors");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[..8].copy_from_slice(&huge.to_le_bytes());
        std::fs::write(&file, &bytes).unwrap();
        assert!(error_of(folder.path()).contains("header length"), "{huge}");
        // A sparse file makes the length plausible; it is still no reason to reserve it.
        OpenOptions::new()
            .write(true)
            .open(&file)
            .unwrap()
            .set_len(1 << 36)
            .unwrap();
        let message = error_of(folder.path());
        assert!(message.contains("model.safetensors: header"), "{message}");
    }
}

#[test]
fn names_cannot_steer_the_terminal_or_fill_it() {
    let folder = tiny().write();
    let name = format!("\\u001b]0;{}\\u0007", "x".repeat(1 << 20));
    let header = tensor(&name, "F32", "[1]", 0, 4);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 4]);
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let message = error_of(folder.path());
    assert!(message.contains("\\u{1b}]0;xx"), "{message:.300}");
    assert!(!message.contains(['\u{1b}', '\u{7}']));
    assert!(message.len() < 2000, "{} bytes", message.len());
}

/// Half a million tensors, or settings of hundreds of MB, took more memory than any model needs.
#[test]
fn sizes_beyond_any_model_are_errors() {
    let tensors: Vec<String> = (0..70_000)
        .map(|i| {
            format!(
                r#""{i}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}}"#,
                4 * i,
                4 * i + 4
            )
        })
        .collect();
    let header = format!("{{{}}}", tensors.join(","));
    header_refused(
        &header,
        280_000,
        &["header", "70000 tensors", "65536 accepted"],
    );
    header_refused(
        &" ".repeat(9 << 20),
        0,
        &["header length", "8388608 accepted"],
    );

    for (name, bytes, what) in [
        ("tokenizer.json", 600 << 20, "67108864 accepted"),
        ("tokenizer_config.json", 17 << 20, "16777216 accepted"),
        ("generation_config.json", 3 << 20, "2097152 accepted"),
        ("config.json", 3 << 20, "2097152 accepted"),
    ] {
        let folder = tiny().write();
        let file = std::fs::File::create(folder.path().join(name)).unwrap();
        file.set_len(bytes).unwrap();
        let message = error_of(folder.path());
        for part in [name, what, &bytes.to_string(), "download it again"] {
            assert!(message.contains(part), "{part:?} is missing in: {message}");
        }
    }
}

#[test]
fn headers_that_are_not_tensors_are_errors() {
    header_refused("", 0, &["header"]);
    header_refused("not json", 0, &["header"]);
    header_refused("[1, 2]", 0, &["header"]);
    header_refused(r#"{"a": 5}"#, 0, &["header"]);
    header_refused(
        r#"{"a": {"dtype": "F32", "shape": [1]}}"#,
        4,
        &["header", "data_offsets"],
    );
    header_refused(
        r#"{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}}"#,
        4,
        &["header", "F31"],
    );
    header_refused(&tensor("a", "F32", "[-1]", 0, 4), 4, &["header"]);
    header_refused(&tensor("a", "F32", "[1.5]", 0, 4), 4, &["header"]);
    header_refused(&"[".repeat(100_000), 0, &["header"]);
}

#[test]
fn offsets_and_shapes_must_agree() {
    header_refused(&tensor("a", "F32", "[2]", 0, 4), 4, &["header"]);
    header_refused(&tensor("a", "F32", "[1]", 4, 8), 8, &["header"]);
    header_refused(&tensor("a", "F32", "[1]", 4, 0), 4, &["header"]);
    header_refused(
        &tensor("a", "F32", "[1]", 0, 4),
        3,
        &["describes 4 bytes", "has 3"],
    );
    header_refused(
        &tensor("a", "F32", "[1]", 0, 4),
        5,
        &["describes 4 bytes", "has 5"],
    );
    let max = u64::MAX;
    header_refused(&tensor("a", "F32", "[1]", max - 3, max), 4, &["header"]);
    header_refused(
        &tensor("a", "F32", "[4294967296,4294967296]", 0, 4),
        4,
        &["header"],
    );
    header_refused(
        &tensor("a", "F32", "[18446744073709551616]", 0, 4),
        4,
        &["header"],
    );
}

#[test]
fn tensors_of_other_kinds_are_named() {
    let norm = "model.norm.weight";
    header_refused(
        &tensor(norm, "I32", "[64]", 0, 256),
        256,
        &[norm, "I32", "not supported"],
    );
    header_refused(
        &tensor(norm, "F64", "[64]", 0, 512),
        512,
        &[norm, "F64", "not supported"],
    );
    header_refused(
        &tensor(norm, "F32", "[]", 0, 4),
        4,
        &[norm, "not supported"],
    );
    header_refused(
        &tensor(norm, "F32", "[0]", 0, 0),
        0,
        &[norm, "[0]", "not supported"],
    );
    header_refused(
        &tensor(norm, "F32", "[4,4,4]", 0, 256),
        256,
        &[norm, "[4, 4, 4]"],
    );
    header_refused(
        &tensor(norm, "F32", "[63]", 0, 252),
        252,
        &[norm, "1 rows of 63"],
    );
    header_refused(
        &tensor("visual.weight", "F32", "[1]", 0, 4),
        4,
        &["visual.weight", "ignore"],
    );
    header_refused("{}", 0, &["the tensor is missing"]);
}

#[test]
fn an_index_stays_inside_its_folder() {
    let sharded = || {
        let mut folder = tiny();
        folder.shards = 2;
        folder.write()
    };
    HfSource::open(sharded().path()).unwrap();
    for hostile in [
        "../model.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "",
        ".",
        "..",
    ] {
        let folder = sharded();
        let index = format!(r#"{{"weight_map": {{"model.norm.weight": "{hostile}"}}}}"#);
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        let message = error_of(folder.path());
        assert!(
            message.contains("weight_map.model.norm.weight"),
            "{message}"
        );
        assert!(
            message.contains("is not the name of a file in the folder"),
            "{message}"
        );
    }
    for (index, part) in [
        ("{}", "missing field `weight_map`"),
        (r#"{"weight_map": 5}"#, "integer `5`, expected a map"),
        (
            r#"{"weight_map": {"a": 7}}"#,
            "integer `7`, expected a string",
        ),
        (
            r#"{"weight_map": {"a": "absent.safetensors"}}"#,
            "weight_map.a: absent.safetensors is missing; download it",
        ),
        (
            r#"{"weight_map": {"a": "model-00001-of-00002.safetensors"}}"#,
            "weight_map.a: the tensor is not in",
        ),
        (r#"{"weight_map": {}}"#, "weight_map: it names no file"),
        ("[", "EOF while parsing"),
        ("7", "integer `7`, expected"),
    ] {
        let folder = sharded();
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        let message = error_of(folder.path());
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
}

#[test]
fn files_without_an_index_ask_for_it() {
    let mut folder = tiny();
    folder.shards = 2;
    let folder = folder.write();
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    let message = error_of(folder.path());
    assert!(
        message.contains("download model.safetensors.index.json as well"),
        "{message}"
    );
}

/// Those of mixtures of experts name some ten thousand matrices.
#[test]
fn an_index_may_be_as_long_as_a_mixture_of_experts_needs() {
    let mut folder = tiny();
    folder.shards = 2;
    let folder = folder.write();
    let index = folder.path().join("model.safetensors.index.json");
    let mut text = std::fs::read_to_string(&index).unwrap();
    text.push_str(&" ".repeat(8 << 20));
    std::fs::write(&index, &text).unwrap();
    HfSource::open(folder.path()).unwrap();
    text.push_str(&" ".repeat(32 << 20));
    std::fs::write(&index, text).unwrap();
    let message = error_of(folder.path());
    assert!(message.contains("exceed the"), "{message}");
}

#[test]
fn a_tensor_in_two_shards_is_an_error() {
    let mut folder = tiny();
    folder.shards = 2;
    let folder = folder.write();
    let shard = |n: usize| {
        folder
            .path()
            .join(format!("model-0000{n}-of-00002.safetensors"))
    };
    std::fs::copy(shard(1), folder.path().join("copy.safetensors")).unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    // The second entry of the first shard now leads to the copy, which holds all of them again.
    let text = text.replacen("model-00001-of-00002", "copy", 1);
    std::fs::write(&index, text).unwrap();
    let message = error_of(folder.path());
    assert!(message.contains("again"), "{message}");
}

#[test]
fn checkpoints_that_are_no_files_are_errors() {
    let folder = tiny().write();
    let file = folder.path().join("model.safetensors");
    std::fs::remove_file(&file).unwrap();
    let message = error_of(folder.path());
    assert!(
        message.contains("neither model.safetensors nor"),
        "{message}"
    );
    std::fs::write(folder.path().join("pytorch_model.bin"), b"PK").unwrap();
    let message = error_of(folder.path());
    assert!(
        message.contains("PyTorch") && message.contains("safe_serialization"),
        "{message}"
    );
    std::fs::create_dir(&file).unwrap();
    let message = error_of(folder.path());
    assert!(message.contains("not a regular file"), "{message}");
}

#[test]
fn a_checkpoint_cut_anywhere_is_an_error() {
    let folder = tiny().write();
    let path = folder.path().join("model.safetensors");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let all = file.metadata().unwrap().len();
    let header = header_bytes(&path);
    HfSource::open(folder.path()).unwrap();
    for len in [all - 1, all / 2].into_iter().chain((0..=header).rev()) {
        file.set_len(len).unwrap();
        assert!(
            HfSource::open(folder.path()).is_err(),
            "opened with {len} bytes"
        );
    }
}

fn header_bytes(path: &Path) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    8 + u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

#[test]
fn any_flipped_bit_of_a_header_is_survived() {
    let folder = tiny().write();
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let mut refused = 0;
    let header = &bytes[..header_bytes(&path) as usize];
    for (at, &byte) in header.iter().enumerate() {
        let flipped = byte ^ (1 << (at % 8));
        file.write_all_at(&[flipped], at as u64).unwrap();
        refused += usize::from(HfSource::open(folder.path()).is_err());
        file.write_all_at(&[byte], at as u64).unwrap();
    }
    // Names, shapes, types and offsets all matter; only free text may change unnoticed.
    assert!(refused > 1000, "{refused}");
    HfSource::open(folder.path()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_number_in_the_configuration_is_survived(
        field in 0..FIELDS.len(),
        value in prop_oneof![
            any::<u64>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            any::<f64>().prop_map(serde_json::Value::from),
            (0..64u64).prop_map(serde_json::Value::from),
            Just(serde_json::Value::Null),
            Just(serde_json::json!([])),
            Just(serde_json::json!({"type": "linear", "factor": -1})),
            Just(serde_json::json!("text")),
        ],
    ) {
        let folder: Folder = tiny();
        let written = folder.write_with_config(FIELDS[field], value);
        if let Err(e) = HfSource::open(written.path()) {
            prop_assert!(e.to_string().contains(".json") || e.to_string().contains(".safetensors"), "{e}");
        }
    }
}

const FIELDS: [&str; 14] = [
    "model_type",
    "architectures",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
];
