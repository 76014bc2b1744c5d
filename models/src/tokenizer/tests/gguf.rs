//! Tokenizers out of GGUF metadata.

use std::path::Path;

use super::*;
use crate::gguf::{Array, Metadata, Value};

fn metadata(entries: &[(&str, Value)]) -> Metadata {
    let entries = entries
        .iter()
        .map(|(k, v)| (format!("tokenizer.ggml.{k}"), v.clone()))
        .collect();
    Metadata { entries }
}

fn gguf_bpe() -> Vec<(&'static str, Value)> {
    let tokens = ["a", "b", "ab", "<|eot_id|>", "<|x|>", "</s>"];
    vec![
        ("model", Value::Str("gpt2".into())),
        ("pre", Value::Str("llama-bpe".into())),
        ("tokens", Value::Array(Array::Str(strings(&tokens)))),
        ("merges", Value::Array(Array::Str(strings(&["a b"])))),
        ("bos_token_id", Value::U32(4)),
        ("eos_token_id", Value::U32(0)),
    ]
}

#[test]
fn gguf_defaults_are_those_of_llama_cpp() {
    let path = Path::new("m.gguf");
    let spec = spec_from_gguf(metadata(&gguf_bpe()), path).unwrap();
    assert_eq!(
        (spec.bos, spec.add_bos),
        (Some(4), true),
        "llama-bpe begins with BOS"
    );
    assert_eq!(spec.eog, [0, 3], "by key and by name");
    assert_eq!(spec.doubt(), None);
    let TokenizerModel::ByteLevelBpe { types, .. } = spec.model else {
        panic!("not byte-level");
    };
    assert_eq!(
        types,
        [1, 1, 1, 3, 1, 1],
        "an end of generation is a control token"
    );

    let mut entries = gguf_bpe();
    entries.retain(|(key, _)| *key != "pre");
    let spec = spec_from_gguf(metadata(&entries), path).unwrap();
    assert!(!spec.add_bos);
    let doubt = spec.doubt().expect("no word of how texts are cut");
    assert!(doubt.contains("tokenizer.ggml.pre"));
    assert!(matches!(spec.model, TokenizerModel::ByteLevelBpe { pre, .. } if pre == "default"));

    let spm = metadata(&[
        ("model", Value::Str("llama".into())),
        (
            "tokens",
            Value::Array(Array::Str(strings(&["<unk>", "<s>", "</s>"]))),
        ),
        ("scores", Value::Array(Array::F32(vec![0.0; 3]))),
    ]);
    let spec = spec_from_gguf(spm.clone(), path).unwrap();
    assert_eq!(
        (spec.bos, spec.add_bos, &spec.eog[..]),
        (Some(1), true, &[2][..])
    );
    assert!(matches!(
        spec.model,
        TokenizerModel::SentencePiece {
            add_space_prefix: true,
            ..
        }
    ));
}

/// What is kept of a tokenizer is JSON, which has no infinity.
#[test]
fn scores_without_end_keep_their_order() {
    let with = |scores: [f32; 3]| {
        metadata(&[
            ("model", Value::Str("llama".into())),
            (
                "tokens",
                Value::Array(Array::Str(strings(&["<unk>", "<s>", "</s>"]))),
            ),
            ("scores", Value::Array(Array::F32(scores.to_vec()))),
        ])
    };
    let path = Path::new("m.gguf");
    let spec = spec_from_gguf(with([f32::NEG_INFINITY, 0.0, f32::INFINITY]), path).unwrap();
    let kept: TokenizerSpec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
    assert_eq!(kept, spec);
    let error = spec_from_gguf(with([0.0, f32::NAN, 0.0]), path).unwrap_err();
    assert!(error.to_string().contains("score of token 1"), "{error}");
}

#[test]
fn gguf_errors_name_file_and_field() {
    let mut cases = Vec::new();
    for missing in ["model", "tokens", "merges"] {
        let mut entries = gguf_bpe();
        entries.retain(|(key, _)| *key != missing);
        cases.push((missing, entries));
    }
    for (field, value) in [
        ("model", Value::Str("rwkv".into())),
        ("pre", Value::Str("klingon".into())),
        ("token_type", Value::Array(Array::I32(vec![1, 1]))),
        ("token_type", Value::U32(1)),
        ("tokens", Value::Array(Array::Str(vec![]))),
        // Each would change the text without a word if it were taken for absent.
        ("pre", Value::U32(1)),
        ("add_bos_token", Value::U32(1)),
        ("add_bos_token", Value::Str("true".into())),
        ("bos_token_id", Value::U32(6)),
        ("bos_token_id", Value::I32(-1)),
        ("bos_token_id", Value::U64(1 << 32)),
        ("bos_token_id", Value::Str("<s>".into())),
        ("eos_token_id", Value::F32(0.0)),
        ("eot_token_id", Value::U32(9)),
        ("eom_token_id", Value::Bool(true)),
        ("fim_pad_token_id", Value::U32(u32::MAX)),
    ] {
        let mut entries = gguf_bpe();
        entries.retain(|(key, _)| *key != field);
        entries.push((field, value));
        cases.push((field, entries));
    }
    cases.push((
        "add_space_prefix",
        vec![
            ("model", Value::Str("llama".into())),
            ("tokens", Value::Array(Array::Str(strings(&["<unk>"])))),
            ("scores", Value::Array(Array::F32(vec![0.0]))),
            ("add_space_prefix", Value::U32(0)),
        ],
    ));
    for (field, entries) in cases {
        let error = spec_from_gguf(metadata(&entries), Path::new("m.gguf")).unwrap_err();
        let message = error.to_string();
        let expected = format!("m.gguf: tokenizer.ggml.{field}: ");
        assert!(message.starts_with(&expected), "{message}");
    }
}

#[test]
fn bos_is_added_by_name_where_the_file_does_not_tell() {
    for (pre, adds_bos) in [
        ("falcon3", true),
        ("tekken", true),
        ("glm4", false),
        ("dbrx", false),
        ("qwen35", false),
        ("gpt-4o", false),
    ] {
        let mut entries = gguf_bpe();
        entries.retain(|(key, _)| *key != "pre");
        entries.push(("pre", Value::Str(pre.into())));
        let spec = spec_from_gguf(metadata(&entries), Path::new("m.gguf")).unwrap();
        assert_eq!(spec.add_bos, adds_bos, "{pre}");
        entries.push(("add_bos_token", Value::Bool(!adds_bos)));
        let spec = spec_from_gguf(metadata(&entries), Path::new("m.gguf")).unwrap();
        assert_eq!(spec.add_bos, !adds_bos, "{pre}");
    }
}

#[test]
fn pieces_with_merges_begin_with_bos_whatever_the_file_says() {
    let tokens = [
        "<bos>",
        "\u{2581}",
        "a",
        "\u{2581}a",
        "\n",
        "<0xC3>",
        "<0xA9>",
    ];
    let mut entries = vec![
        ("model", Value::Str("gemma4".into())),
        ("tokens", Value::Array(Array::Str(strings(&tokens)))),
        (
            "token_type",
            Value::Array(Array::I32(vec![3, 1, 1, 1, 1, 6, 6])),
        ),
        ("merges", Value::Array(Array::Str(strings(&["\u{2581} a"])))),
        ("bos_token_id", Value::U32(0)),
        ("add_bos_token", Value::Bool(false)),
    ];
    for named in [false, true] {
        if named {
            entries[0].1 = Value::Str("gpt2".into());
            entries.push(("pre", Value::Str("gemma4".into())));
        }
        let spec = spec_from_gguf(metadata(&entries), Path::new("m.gguf")).unwrap();
        let tokenizer = Tokenizer::from_spec(spec).unwrap();
        let ids = tokenizer.encode("a a\né", FULL).unwrap();
        assert_eq!(ids, [0, 2, 3, 4, 5, 6], "no space in front");
        assert_eq!(tokenizer.decode(&ids, true), "a a\né");
    }
}

/// As llama.cpp has it; `tokenizer.json` says so by itself.
#[test]
fn special_tokens_of_phi3_swallow_white_space() {
    let tokens = [
        "<unk>",
        "<s>",
        "</s>",
        "<0x0A>",
        "\u{2581}",
        "H",
        "i",
        "<|endoftext|>",
        "<|user|>",
        "<|end|>",
    ];
    let of = |architecture: &str| {
        let mut meta = metadata(&[
            ("model", Value::Str("llama".into())),
            ("tokens", Value::Array(Array::Str(strings(&tokens)))),
            ("scores", Value::Array(Array::F32(vec![0.0; 10]))),
            (
                "token_type",
                Value::Array(Array::I32(vec![2, 3, 4, 6, 1, 1, 1, 3, 3, 3])),
            ),
            ("add_space_prefix", Value::Bool(false)),
        ]);
        let name = Value::Str(architecture.into());
        meta.entries.insert("general.architecture".into(), name);
        Tokenizer::from_spec(spec_from_gguf(meta, Path::new("m.gguf")).unwrap()).unwrap()
    };
    let phi3 = of("phi3");
    let ids = |text: &str| phi3.encode(text, FULL).unwrap();
    assert_eq!(ids("<|user|>\nHi"), ids("<|user|>Hi"));
    assert_eq!(ids("<|user|> \n Hi<|end|>\n<|user|>\n"), [1, 8, 5, 6, 9, 8]);
    assert_eq!(ids("</s> Hi\n<|end|>"), [1, 2, 5, 6, 3, 9], "only behind");
    for (name, id) in [("<s>", 1), ("<|endoftext|>", 7), ("<unk>", 0)] {
        let text = format!("<|end|>{name}\nHi");
        assert_eq!(ids(&text), [1, 9, id, 3, 5, 6], "{name}");
    }
    assert_eq!(phi3.encode("<|user|>\n", PLAIN).unwrap().last(), Some(&3));
    // What stands behind a break is somebody else's, as where the crate encodes.
    let broken = |breaks: &[usize]| {
        let text = ("<|user|>\n Hi<|end|>", TextPosition::Start);
        phi3.encode_unbroken(text, breaks, usize::MAX).unwrap()
    };
    assert_eq!(broken(&[]), [8, 5, 6, 9]);
    assert_eq!(broken(&[9]), [8, 4, 5, 6, 9]);
    assert_eq!(broken(&[8]), [8, 3, 4, 5, 6, 9]);
    assert!(!broken(&[9, 13]).contains(&9));
    assert_eq!((phi3.swallowed(9, "\n <"), phi3.swallowed(5, "\n")), (2, 0));
    let llama = of("llama");
    assert_eq!(llama.encode("<|user|>\nHi", FULL).unwrap(), [1, 8, 3, 5, 6]);
}
