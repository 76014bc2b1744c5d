//! Texts that are encoded in pieces have the tokens of the whole, with every tokenizer at hand.

use std::path::PathBuf;

use proptest::test_runner::{TestCaseError, TestRunner};
use serde_json::{Value, json};

use super::*;
use crate::tokenizer::expressions::{LLAMA3, O200K, QWEN2};
use crate::tokenizer::room::Room;

const CL100K: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("readable")).expect("JSON")
}

/// The same with other flags of the added tokens.
fn with_flags(json: &Value, lstrip: bool, rstrip: bool, normalized: bool) -> Value {
    let mut json = json.clone();
    for token in json["added_tokens"].as_array_mut().expect("a list") {
        token["lstrip"] = lstrip.into();
        token["rstrip"] = rstrip.into();
        token["normalized"] = normalized.into();
    }
    json
}

/// The demo's vocabulary behind other steps, which are those of known models.
fn byte_level_variants() -> Vec<(String, Value)> {
    let demo = read(repository().join("models/demo/hf/tokenizer.json"));
    let byte_level = |regex: bool, prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex});
    let split = |regex: &str, behavior: &str, invert: bool| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert});
    let sequence = |steps: &[Value]| json!({"type": "Sequence", "pretokenizers": steps});
    let bytes = byte_level(false, false);
    let nfc = json!({"type": "NFC"});
    let steps = [
        ("gpt-2", json!(null), byte_level(true, false)),
        ("prefixed", json!(null), byte_level(true, true)),
        (
            "llama-3",
            json!(null),
            sequence(&[split(LLAMA3, "Isolated", false), bytes.clone()]),
        ),
        (
            "qwen-2",
            nfc.clone(),
            sequence(&[split(QWEN2, "Isolated", false), bytes.clone()]),
        ),
        (
            "o200k",
            nfc,
            sequence(&[split(O200K, "Isolated", false), bytes.clone()]),
        ),
        (
            "nfkc",
            json!({"type": "NFKC"}),
            sequence(&[split(LLAMA3, "Isolated", false), bytes.clone()]),
        ),
        (
            "cl100k",
            json!(null),
            sequence(&[split(CL100K, "Removed", true), bytes.clone()]),
        ),
        (
            "smollm",
            json!(null),
            sequence(&[
                json!({"type": "Digits", "individual_digits": true}),
                byte_level(true, false),
            ]),
        ),
        (
            "digits together",
            json!(null),
            sequence(&[
                json!({"type": "Digits", "individual_digits": false}),
                json!({"type": "Punctuation", "behavior": "Isolated"}),
                split(LLAMA3, "Isolated", false),
                bytes,
            ]),
        ),
    ];
    let mut variants = Vec::new();
    for (name, normalizer, pre_tokenizer) in steps {
        let mut json = demo.clone();
        json["normalizer"] = normalizer;
        json["pre_tokenizer"] = pre_tokenizer;
        let other = format!("{name}, other tokens");
        variants.push((other.clone(), with_flags(&json, false, true, false)));
        variants.push((other, with_flags(&json, true, false, true)));
        variants.push((name.to_owned(), json));
    }
    let golden = read(repository().join("tests/golden/tiny/qwen3_bf16/tokenizer.json"));
    variants.push(("golden".into(), golden));
    variants
}

/// SentencePiece's BPE over a few letters, behind the steps of known models.
fn sentence_piece_variants() -> Vec<(String, Value)> {
    let mut tokens: Vec<String> = strings(&["<unk>", "<s>", "</s>"]);
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let letters = [
        "\u{2581}", "a", "b", "c", "s", "1", "2", ".", ",", "'", "\n", "é", "你", "好", "，", "。",
    ];
    tokens.extend(strings(&letters));
    let merges = [
        ("\u{2581}", "a"),
        ("a", "b"),
        ("\u{2581}a", "b"),
        ("\u{2581}", "\u{2581}"),
        ("\u{2581}\u{2581}", "\u{2581}\u{2581}"),
        ("\n", "\n"),
        ("你", "好"),
        ("'", "s"),
        (".", "\n"),
        ("b", "c"),
    ];
    tokens.extend(merges.iter().map(|(l, r)| format!("{l}{r}")));
    let vocab: serde_json::Map<_, _> = (0..)
        .zip(&tokens)
        .map(|(id, t)| (t.clone(), json!(id)))
        .collect();
    let added = |id: usize, content: &str, (rstrip, normalized): (bool, bool)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": rstrip,
               "normalized": normalized, "special": true})
    };
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]});
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let prepend = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"}, replace]});
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": split});
    let gemma = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    let mut variants = Vec::new();
    for (name, normalizer, pre_tokenizer) in [
        ("llama-2", prepend, json!(null)),
        ("gemma", replace, gemma),
        ("metaspace first", json!(null), metaspace("first", false)),
        ("metaspace always", json!(null), metaspace("always", true)),
        ("metaspace never", json!(null), metaspace("never", true)),
    ] {
        for (rstrip, normalized) in [(false, false), (true, false), (false, true)] {
            // Without either, unknown characters vanish.
            for (byte_fallback, unknown) in [
                (true, json!("<unk>")),
                (false, json!("<unk>")),
                (false, json!(null)),
            ] {
                let flags = (rstrip, normalized);
                variants.push((
                    format!("{name} {flags:?} {byte_fallback} {unknown}"),
                    json!({
                        "version": "1.0", "truncation": null, "padding": null,
                        "added_tokens": [added(1, "<s>", flags), added(2, "</s>", flags)],
                        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
                        "decoder": decoder,
                        "model": {"type": "BPE", "dropout": null, "unk_token": unknown, "fuse_unk": true,
                            "byte_fallback": byte_fallback, "ignore_merges": false, "vocab": vocab, "merges": merges},
                    }),
                ));
            }
        }
    }
    variants
}

/// Texts in which everything that matters to a cut is frequent.
fn long_texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => "[a-cA-Z ]{1,8}",
        3 => "[ \t\r\n]{1,4}",
        3 => "[0-9.,!?;:'/-]{1,4}",
        2 => "'(s|t|re|ve|m|ll|d|S|RE|lL|x)",
        2 => "(<s>|</s>|<\\|begin\\|>|<\\|end\\|>|<s|\\|>|<\\|)[ \n]{0,2}",
        2 => "[你好中，。、 ]{1,4}",
        2 => "[йижк\u{306} ]{1,6}",
        1 => "[é½Ⅷ٣一가あが😀！—\u{301}\u{300}\u{338}\u{212a}\u{37e}\u{958}\u{2581}]{1,3}",
        1 => "[\u{a0}\u{2003}\u{3000}\u{85} ]{1,3}",
        1 => "\\PC{1,3}",
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// Compares pieces of `piece` bytes, and runs of at most `run`, with `whole`, for random texts.
fn check(
    name: &str,
    tokenizer: &Tokenizer,
    (piece, run): (usize, usize),
    whole: impl Fn(&str, bool) -> Vec<u32>,
) {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: ProptestConfig::default().cases.min(400),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let room = Room {
        tokens: usize::MAX,
        run,
        crate_run: run,
        piece,
    };
    let mut compared = 0;
    let run = runner.run(&long_texts(), |text| {
        for parse_special in [false, true] {
            let mut ids = Vec::new();
            let encoded = tokenizer.encode_into(&text, parse_special, room, &mut ids);
            if encoded.is_ok() && ids != whole(&text, parse_special) {
                let problem = format!("{name}, parse_special {parse_special}: {text:?}");
                return Err(TestCaseError::fail(problem));
            }
        }
        Ok(())
    });
    run.unwrap_or_else(|e| panic!("{e}"));
    let text = "abc, ab. Don't 12 say \u{4f60}\u{597d}\u{3002}\nthe ".repeat(40);
    let mut ids = Vec::new();
    compared += usize::from(
        tokenizer
            .encode_into(
                &text,
                true,
                Room {
                    run: 64,
                    crate_run: 64,
                    ..room
                },
                &mut ids,
            )
            .is_ok(),
    );
    assert_eq!(compared, 1, "{name}: usual text cannot be cut");
}

/// Of a variant.
fn tokenizer(name: &str, json: &str) -> Tokenizer {
    let spec = TokenizerSpec {
        model: TokenizerModel::HfJson(json.to_owned()),
        bos: None,
        eog: vec![],
        add_bos: false,
    };
    Tokenizer::from_spec(spec).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn pieces_for_the_crate_equal_the_whole() {
    for (name, json) in byte_level_variants()
        .into_iter()
        .chain(sentence_piece_variants())
    {
        let json = json.to_string();
        let tokenizer = tokenizer(&name, &json);
        let reference = std::cell::RefCell::new(json.parse::<tokenizers::Tokenizer>().unwrap());
        let whole = |text: &str, parse_special: bool| {
            let mut reference = reference.borrow_mut();
            reference.set_encode_special_tokens(!parse_special);
            reference
                .encode_fast(text, false)
                .unwrap()
                .get_ids()
                .to_vec()
        };
        // Cut wherever that is allowed.
        check(&name, &tokenizer, (1, usize::MAX), whole);
    }
}

#[test]
fn parts_of_words_equal_the_whole() {
    let mut specs = vec![
        ("letters".to_owned(), bpe_spec()),
        ("pieces".into(), spm_spec()),
    ];
    match std::env::var_os("FOREBAY_TOKENIZERS").map(PathBuf::from) {
        None => {
            eprintln!("SKIPPED: FOREBAY_TOKENIZERS is not set; only small vocabularies are tried")
        }
        Some(folder) => {
            for name in ["gpt-2", "llama-bpe", "llama-spm", "qwen2"] {
                let path = folder.join(format!("ggml-vocab-{name}.gguf"));
                let gguf = crate::gguf::Gguf::open(&path).unwrap();
                specs.push((
                    name.into(),
                    spec_from_gguf(gguf.metadata().clone(), &path).unwrap(),
                ));
            }
        }
    }
    for (name, spec) in specs {
        let tokenizer = Tokenizer::from_spec(spec).unwrap();
        let whole = |text: &str, parse_special: bool| {
            let mut ids = Vec::new();
            tokenizer
                .encode_into(text, parse_special, Room::of(usize::MAX), &mut ids)
                .unwrap();
            ids
        };
        for run in [4, 9, 30] {
            check(&name, &tokenizer, (1, run), whole);
        }
    }
}

#[test]
fn encoding_stops_behind_the_last_token_that_fits() {
    let spec = |model| TokenizerSpec {
        model,
        bos: Some(0),
        eog: vec![],
        add_bos: true,
    };
    let demo = read(repository().join("models/demo/hf/tokenizer.json"));
    let hf = Tokenizer::from_spec(spec(TokenizerModel::HfJson(demo.to_string()))).unwrap();
    for tokenizer in [hf, bpe(), spm()] {
        let text = "abc cab ".repeat(100_000);
        let whole = tokenizer.encode(&text, FULL).unwrap();
        for most in [0, 1, 100, 5000] {
            let ids = tokenizer.encode_up_to(&text, FULL, most).unwrap();
            assert!(
                ids.len() > most && ids.len() < most + 3000,
                "{} of {most}",
                ids.len()
            );
            assert_eq!(ids, whole[..ids.len()]);
        }
        assert_eq!(
            tokenizer.encode_up_to(&text, FULL, whole.len()).unwrap(),
            whole
        );
        // A text that names BOS itself has one, too.
        let bos = String::from_utf8_lossy(tokenizer.token_bytes(tokenizer.bos().unwrap()).unwrap());
        let begun = tokenizer
            .encode_up_to(&format!("{bos}{text}"), FULL, 10)
            .unwrap();
        assert!(begun.len() > 10);
    }
}

#[test]
fn a_run_without_a_place_to_cut_is_an_error() {
    let demo = read(repository().join("models/demo/hf/tokenizer.json"));
    let spec = TokenizerSpec {
        model: TokenizerModel::HfJson(demo.to_string()),
        ..bpe_spec()
    };
    for (tokenizer, run, longest) in [
        (Tokenizer::from_spec(spec).unwrap(), "\n", 16 << 10),
        (bpe(), "l", 64 << 10),
        (spm(), "a", 64 << 10),
    ] {
        let long = run.repeat(70_000);
        for (text, most) in [(&*long, usize::MAX), (&long[..longest / 8 + 2], 100)] {
            let error = tokenizer.encode_up_to(text, PLAIN, most).unwrap_err();
            let message = error.to_string();
            assert!(message.contains("without a place") && message.contains("larger context"));
        }
        assert!(tokenizer.encode(&long[..longest - 1], PLAIN).is_ok());
    }
}

/// Usual text of any script can be cut every few words, and so can source code.
#[test]
fn usual_text_can_be_cut() {
    let texts = [
        "The quick brown fox jumps over the lazy dog. ",
        "Съешь же ещё этих мягких французских булок, да выпей чаю. ",
        "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。",
        "다람쥐 헌 쳇바퀴에 타고파. ",
        "fn main() {\n    let x = [1, 2, 3];\n    println!(\"{x:?}\");\n}\n",
        "अगर चाँद पर घर होता, तो हम वहाँ रहते। ",
    ];
    let named = ["gpt-2", "llama-3", "qwen-2", "o200k", "cl100k", "smollm"];
    for (name, json) in byte_level_variants() {
        if !named.contains(&&*name) {
            continue;
        }
        let spec = TokenizerSpec {
            model: TokenizerModel::HfJson(json.to_string()),
            ..bpe_spec()
        };
        let tokenizer = Tokenizer::from_spec(spec).unwrap();
        let room = Room {
            tokens: usize::MAX,
            run: 100,
            crate_run: 100,
            piece: 50,
        };
        for text in texts {
            let mut ids = Vec::new();
            let done = tokenizer.encode_into(&text.repeat(20), true, room, &mut ids);
            assert!(done.is_ok(), "{name}: {text}");
        }
    }
}

/// Neither a text that goes on where another ended nor what stands behind a break gets a space in front.
#[test]
fn nothing_is_put_in_front_of_a_text_that_goes_on() {
    let variants = byte_level_variants()
        .into_iter()
        .chain(sentence_piece_variants());
    for (name, json) in variants {
        let tokenizer = tokenizer(&name, &json.to_string());
        let of = |text, position, breaks: &[usize]| {
            let ids = tokenizer.encode_unbroken((text, position), breaks, usize::MAX);
            ids.unwrap_or_else(|e| panic!("{name}: {e}"))
        };
        let text = |ids: &[u32]| {
            ids.iter()
                .filter_map(|&id| tokenizer.token_bytes(id))
                .flatten()
                .copied()
                .collect::<Vec<u8>>()
        };
        let more = of("ab", TextPosition::Continuation, &[]);
        assert_eq!(text(&more), b"ab", "{name}");
        // What the file puts in front is there once.
        let (whole, broken) = (
            of("abb", TextPosition::Start, &[]),
            of("abb", TextPosition::Start, &[2]),
        );
        assert_eq!(text(&whole), text(&broken), "{name}");
    }
}

/// What follows a control token has the tokens that it has in one text with that.
#[test]
fn a_text_behind_a_control_token_has_the_tokens_of_one_text() {
    for (name, json) in sentence_piece_variants() {
        let tokenizer = tokenizer(&name, &json.to_string());
        let after = |last, text| tokenizer.encode_after(last, text, true, usize::MAX);
        let of = |text| after(None, text).unwrap();
        let mut parts = of("ab</s>");
        // A name that is looked for in the normalised text may not be found in it.
        assert!(
            parts.last() == Some(&2) || name.contains(", true)"),
            "{name}"
        );
        if parts.last() != Some(&2) {
            continue;
        }
        parts.extend(after(Some(2), "ab").unwrap());
        assert_eq!(parts, of("ab</s>ab"), "{name}");
    }
}

/// A tokenizer that turns spaces into signs needs neither spaces nor signs between words to cut a text.
#[test]
fn text_without_spaces_or_without_signs_can_be_cut() {
    let texts = [
        "天地玄黄，宇宙洪荒。",
        "2026-11-28,1.5;ab\r\n",
        "съешь же ещё этих мягких ",
    ];
    let room = Room {
        tokens: usize::MAX,
        run: 100,
        crate_run: 100,
        piece: 50,
    };
    let mut checked = 0;
    for (name, mut json) in sentence_piece_variants() {
        // As a token of Gemma's, whose beginning is also the end of a byte's name.
        let vocab = json["model"]["vocab"].as_object_mut().expect("an object");
        vocab.insert(">\u{2581}</".into(), json!(vocab.len()));
        let tokenizer = tokenizer(&name, &json.to_string());
        for text in texts {
            // Without bytes, all unknown characters that follow each other are one token.
            if !name.contains(") true ") || !(name.starts_with("meta") || name.starts_with("gemma"))
            {
                continue;
            }
            checked += 1;
            let text = text.repeat(40);
            let mut ids = Vec::new();
            let done = tokenizer.encode_into(&text, true, room, &mut ids);
            assert!(done.is_ok(), "{name}: {text}");
            let mut whole = Vec::new();
            let all = Room::of(usize::MAX);
            tokenizer.encode_into(&text, true, all, &mut whole).unwrap();
            assert_eq!(ids, whole, "{name}: {text}");
        }
    }
    assert!(checked >= 30, "{checked}");
}
