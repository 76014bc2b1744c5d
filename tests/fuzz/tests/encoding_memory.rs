//! Encoding stays within the memory that it is said to take, whatever the text.

use std::path::Path;

use allocation_counter::measure;
use forebay_fuzz::targets::tokenizer::{
    byte_level, byte_level_json, sentence_piece, sentence_piece_json,
};
use forebay_models::tokenizer::{EncodeOptions, Tokenizer, TokenizerModel, TokenizerSpec};
use serde_json::{Value, json};

fn from_json(json: &Value) -> Tokenizer {
    let spec = TokenizerSpec {
        model: TokenizerModel::HfJson(json.to_string()),
        bos: None,
        eog: Vec::new(),
        add_bos: false,
    };
    Tokenizer::from_spec(spec).expect("a tokenizer")
}

fn tokenizers() -> Vec<(&'static str, Tokenizer)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo/hf/tokenizer.json");
    let demo: Value =
        serde_json::from_slice(&std::fs::read(path).expect("readable")).expect("JSON");
    let mut metaspace = sentence_piece_json();
    metaspace["normalizer"] = Value::Null;
    metaspace["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true});
    let mut digits = demo.clone();
    digits["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]});
    let own = |spec| Tokenizer::from_spec(spec).expect("a tokenizer");
    vec![
        ("demo", from_json(&demo)),
        ("digits", from_json(&digits)),
        ("byte-level", from_json(&byte_level_json())),
        ("sentence-piece", from_json(&sentence_piece_json())),
        ("metaspace", from_json(&metaspace)),
        ("own byte-level", own(byte_level("llama-bpe"))),
        ("own sentence-piece", own(sentence_piece())),
    ]
}

#[test]
fn encoding_stays_within_what_is_claimed_for_it() {
    let parts = [
        "\n", " ", "a", "a1", "1", "½", "٣", "é", "你", "，", "the ", "the\n", "'", "a'", "\u{a0}",
        "\u{a0}é", "😀", "e\u{301}", "<s>", "<x>", "t1h ", "!a", "\t ", "th",
    ];
    for (name, tokenizer) in tokenizers() {
        let mut worst = (0.0, "");
        for most in [0, 4096, 131_072] {
            let claimed = tokenizer.encoding_memory().bytes(most);
            for part in parts {
                // As long as can be encoded at once, about, and much longer.
                for length in [2 << 10, 16 << 10, 64 << 10, 300_000] {
                    let text = part.repeat(length / part.len() - 1);
                    let options = EncodeOptions {
                        add_bos: false,
                        parse_special: true,
                    };
                    let used = measure(|| drop(tokenizer.encode_up_to(&text, options, most)));
                    let share = used.bytes_max as f64 / claimed as f64;
                    if share > worst.0 {
                        worst = (share, part);
                    }
                    assert!(
                        used.bytes_max <= claimed,
                        "{name}: {} bytes of {part:?} for {most} tokens took {} of {claimed} bytes",
                        text.len(),
                        used.bytes_max
                    );
                }
            }
        }
        println!(
            "{name}: at most {:.0}% of what is claimed, for {:?}",
            worst.0 * 100.0,
            worst.1
        );
    }
}
