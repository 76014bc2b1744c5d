//! A small hand-made `tokenizer.json`, decoded here and by the crate.

use crate::tokenizer::{EncodeOptions, Tokenizer, TokenizerModel, TokenizerSpec};

const PLAIN: EncodeOptions = EncodeOptions {
    add_bos: false,
    parse_special: false,
};
const FULL: EncodeOptions = EncodeOptions {
    add_bos: true,
    parse_special: true,
};

/// A Llama 2 style `tokenizer.json`: `<s>` 0, 256 byte tokens from 1, pieces, `[user]` 263.
fn llama2_json() -> String {
    let mut vocab = serde_json::Map::new();
    vocab.insert("<s>".into(), 0.into());
    for byte in 0..256 {
        vocab.insert(format!("<0x{byte:02X}>"), (byte + 1).into());
    }
    for (id, text) in (257..).zip(["\u{2581}", "a", "b", "\u{2581}a", "ab", "\u{2581}ab"]) {
        vocab.insert(text.into(), id.into());
    }
    let token = |id: u32, content: &str, special: bool| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": special})
    };
    serde_json::json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"},
        "added_tokens": [token(0, "<s>", true), token(263, "[user]", false)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "byte_fallback": true,
            "fuse_unk": true, "ignore_merges": false, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "vocab": vocab,
            "merges": ["a b", "\u{2581} a", "\u{2581} ab"]},
    })
    .to_string()
}

fn hf_spec(json: String) -> TokenizerSpec {
    TokenizerSpec {
        model: TokenizerModel::HfJson(json),
        bos: Some(0),
        eog: vec![],
        add_bos: true,
    }
}

#[test]
fn hf_json_is_encoded_without_cutting_filling_or_a_second_bos() {
    let tokenizer = Tokenizer::from_spec(hf_spec(llama2_json())).unwrap();
    assert_eq!(tokenizer.vocab_size(), 264);
    assert_eq!(
        tokenizer.encode("ab a ab b", FULL).unwrap(),
        [0, 262, 260, 262, 257, 259]
    );
    assert_eq!(tokenizer.encode("<s>ab", FULL).unwrap(), [0, 262]);
    assert!(!tokenizer.encode("<s>ab", PLAIN).unwrap().contains(&0));
    assert_eq!(tokenizer.encode("[user]", PLAIN).unwrap(), [263]);
    assert!(tokenizer.is_control(0) && !tokenizer.is_control(263));
}

#[test]
fn hf_json_decodes_as_the_crate_does() {
    let reference: tokenizers::Tokenizer = llama2_json().parse().unwrap();
    let tokenizer = Tokenizer::from_spec(hf_spec(llama2_json())).unwrap();
    for text in ["", "ab a", "  ab", "a你b", "😀\n"] {
        let ids = tokenizer.encode(text, PLAIN).unwrap();
        assert_eq!(tokenizer.decode(&ids, true), text);
        assert_eq!(reference.decode(&ids, true).unwrap(), text);
    }
    assert_eq!(tokenizer.token_bytes(0xe4 + 1), Some(&[0xe4][..]));
    assert_eq!(tokenizer.decode(&[0, 262], false), "<s> ab");
}

#[test]
fn hf_json_that_cannot_be_decoded_is_refused() {
    for (from, to, expected) in [
        ("ByteFallback", "Unknown", "a step of type"),
        ("\"content\":\" \"}", "\"content\":\"_\"}", "decoder"),
        ("263", "4294967295", "added_tokens.id"),
        // Found by fuzzing: 208 MB were reserved for it.
        ("263", "16777215", "has id 16777215 here, and id 263"),
        // Its id would not come out of a text.
        ("263", "264", "has id 264 here, and id 263"),
        ("\"[user]\"", "\"\"", "id 263 is empty"),
        ("\"\u{2581}ab\":262", "\"\u{2581}ab\":900", "gaps"),
    ] {
        let json = llama2_json();
        assert!(json.contains(from), "{from}");
        let error = Tokenizer::from_spec(hf_spec(json.replace(from, to))).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("tokenizer.json") && message.contains(expected),
            "{message}"
        );
    }
}

/// Found by fuzzing: the crate panics where a merge's right half is shorter than the prefix.
#[test]
fn a_prefix_inside_words_is_refused_before_the_crate_cuts_it_off() {
    let marked = llama2_json().replace(
        r#""continuing_subword_prefix":null"#,
        r###""continuing_subword_prefix":"\u2581##""###,
    );
    assert_ne!(marked, llama2_json());
    let error = Tokenizer::from_spec(hf_spec(marked)).expect_err("a prefix");
    let message = error.to_string();
    assert!(message.contains("continuing_subword_prefix"), "{message}");
}

/// Found by fuzzing: the crate indexes a template's second sequence where a prompt is one.
#[test]
fn a_template_of_two_sequences_for_one_is_not_applied() {
    let one = r#"{"Sequence":{"id":"A","type_id":0}}]"#;
    let two = r#"{"Sequence":{"id":"B","type_id":0}}]"#;
    let json = llama2_json().replacen(one, two, 1);
    assert_ne!(json, llama2_json());
    let encode = |json| {
        let tokenizer = Tokenizer::from_spec(hf_spec(json)).expect("a tokenizer");
        tokenizer.encode("ab a", FULL).expect("tokens")
    };
    assert_eq!(encode(json), encode(llama2_json()));
}

/// Merges left out at random would make other tokens of the same prompt.
#[test]
fn dropout_is_for_training() {
    let json = llama2_json().replace(r#""dropout":null"#, r#""dropout":1.0"#);
    assert_ne!(json, llama2_json());
    let encode = |json| {
        let tokenizer = Tokenizer::from_spec(hf_spec(json)).expect("a tokenizer");
        tokenizer.encode("ab a ab b", FULL).expect("tokens")
    };
    assert_eq!(encode(json), encode(llama2_json()));
}

/// Found by fuzzing: sixty steps, each of which doubled the text.
#[test]
fn steps_that_make_a_text_ever_longer_are_refused() {
    let step =
        r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}"#;
    let bytes = |n: usize| {
        let steps = vec![step; n].join(",");
        let sequence =
            format!(r#""pre_tokenizer":{{"type":"Sequence","pretokenizers":[{steps}]}}"#);
        llama2_json().replace(r#""pre_tokenizer":null"#, &sequence)
    };
    let spaces = |n: usize| {
        let one = "\"content\":\"\u{2581}\"";
        let json = llama2_json();
        assert!(json.contains(one), "{json}");
        json.replace(one, &one.replace('\u{2581}', &"\u{2581}".repeat(n)))
    };
    for (json, field) in [(bytes(60), "pre_tokenizer"), (spaces(40), "normalizer")] {
        let error = Tokenizer::from_spec(hf_spec(json)).expect_err("too long");
        let message = error.to_string();
        assert!(
            message.contains(field) && message.contains("times longer"),
            "{message}"
        );
    }
    for json in [bytes(1), bytes(2), spaces(2)] {
        assert!(Tokenizer::from_spec(hf_spec(json)).is_ok());
    }
}

/// A small file may ask for much: objects of JSON take a hundred times their text.
#[test]
fn parts_that_are_too_large_are_refused_before_anything_is_made_of_them() {
    let json = llama2_json();
    let bomb = |n: usize| format!("[{}]", vec![r#"{"":0}"#; n].join(","));
    let merges = |n: usize| format!("\"merges\":[{}]", vec![r#""a b""#; n].join(","));
    let added = |n: usize| {
        let token = r#"{"id":0,"content":"x","special":true}"#;
        format!("\"added_tokens\":[{}],\"was\":[", vec![token; n].join(","))
    };
    for (from, to, expected) in [
        (
            "\"pre_tokenizer\":null",
            format!("\"pre_tokenizer\":{}", bomb(30_000)),
            "20000 values",
        ),
        (
            "\"unk_token\":null",
            format!("\"unk_token\":{}", bomb(30_000)),
            "20000 values",
        ),
        (
            "\"dropout\":null",
            format!("\"dropout\":null,\"vocab\":{}", bomb(1 << 21)),
            "tokens",
        ),
        (
            "\"merges\":[",
            format!("{},\"were\":[", merges((1 << 20) + 2)),
            "1048577 merges",
        ),
        (
            "\"added_tokens\":[",
            added((1 << 16) + 2),
            "65537 added tokens",
        ),
        (
            "\"version\"",
            "\"version\":\"1.0\",\"version\"".into(),
            "occurs twice",
        ),
    ] {
        assert!(json.contains(from), "{from}");
        let error = Tokenizer::from_spec(hf_spec(json.replacen(from, &to, 1))).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(expected), "{expected}: {message}");
    }
}

/// Found by forging: each made the crate panic.
#[test]
fn parts_that_the_crate_fails_on_are_refused() {
    let normalizers = r#""normalizers":["#;
    let parts = |kind: &str, step: &str| {
        let json = llama2_json();
        let (from, to) = match kind {
            "normalizer" => (normalizers.to_owned(), format!("{normalizers}{step},")),
            kind => (format!("\"{kind}\":null"), format!("\"{kind}\":{step}")),
        };
        assert!(json.contains(&from), "{from}: {json:.600}");
        json.replace(&from, &to)
    };
    let nested = "(".repeat(3000) + "a" + &")".repeat(3000);
    for (kind, step, expected) in [
        (
            "normalizer",
            r#"{"type":"Precompiled","precompiled_charsmap":"AAAA/w=="}"#.to_owned(),
            "Precompiled",
        ),
        (
            "normalizer",
            r#"{"type":"Replace","pattern":{"String":""},"content":"x"}"#.into(),
            "pattern",
        ),
        (
            "normalizer",
            r#"{"type":"Replace","pattern":{"Regex":"a*"},"content":""}"#.into(),
            "regular expression",
        ),
        (
            "normalizer",
            r#"{"type":"Replace","pattern":{"String":"a"},"content":""}"#.into(),
            "content",
        ),
        (
            "normalizer",
            r#"{"type":"Prepend","prepend":""}"#.into(),
            "prepend",
        ),
        (
            "pre_tokenizer",
            r#"{"type":"FixedLength","length":0}"#.into(),
            "FixedLength",
        ),
        (
            "pre_tokenizer",
            r#"{"type":"Split","pattern":{"Regex":""},"behavior":"Isolated","invert":false}"#
                .into(),
            "pattern",
        ),
        (
            "pre_tokenizer",
            format!(
                r#"{{"type":"Split","pattern":{{"Regex":"{nested}"}},"behavior":"Isolated","invert":false}}"#
            ),
            "3000 groups",
        ),
    ] {
        let error = Tokenizer::from_spec(hf_spec(parts(kind, &step))).expect_err(kind);
        let message = error.to_string();
        assert!(
            message.contains(kind) && message.contains(expected),
            "{message}"
        );
    }
}

#[test]
fn tokens_and_models_that_the_crate_fails_on_are_refused() {
    let taking = llama2_json()
        .replace(r#""rstrip":false"#, r#""rstrip":true"#)
        .replace("[user]", " user");
    let message = Tokenizer::from_spec(hf_spec(taking))
        .expect_err("overlapping")
        .to_string();
    assert!(message.contains("begins with a space"), "{message}");
    let unigram = llama2_json().replace(r#""type":"BPE""#, r#""type":"Unigram""#);
    let message = Tokenizer::from_spec(hf_spec(unigram))
        .expect_err("unigram")
        .to_string();
    assert!(message.contains("model.type"), "{message}");
}

/// Whatever else the crate panics over is an error of the file, while it is read and while a text is encoded.
#[test]
fn panics_of_the_crate_are_errors() {
    let error = super::guarded::<()>("model", || panic!("the crate fails")).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("tokenizer.json: model") && message.contains("GGUF"),
        "{message}"
    );
    assert!(!super::catches_panics());
    assert!(super::guarded("model", || Ok(super::catches_panics())).unwrap());
}
