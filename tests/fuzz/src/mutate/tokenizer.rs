//! Changes to the parts of a `tokenizer.json`: other steps, other parameters, other sizes.

use serde_json::{Value, json};

use crate::random::Random;

/// Texts for parameters: what steps replace, prepend, split at or take away.
const TEXTS: [&str; 18] = [
    "",
    " ",
    "\u{2581}",
    "a",
    "th",
    "\u{2581}t",
    "\n",
    "<s>",
    "é",
    "e\u{301}",
    "你",
    "。",
    "'",
    "1",
    "\u{0}",
    "  ",
    "#",
    "K",
];

/// Regular expressions, of known models and of nobody.
const EXPRESSIONS: [&str; 16] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lo}\p{M}]*[\p{Ll}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s+$",
    r"\p{N}",
    r"a*",
    r"(?=t)",
    r"(?<=t)h",
    r"\bt|h\b",
    r"^.|.$",
    r"(t|h|e)+|\1",
    r"(a+)+b|.",
    r"t++h|\s",
];

const BEHAVIORS: [&str; 5] = [
    "Removed",
    "Isolated",
    "MergedWithPrevious",
    "MergedWithNext",
    "Contiguous",
];

/// Changes `input`, a tokenizer, at one to three places; `other` is another one.
pub fn change(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let whole = serde_json::from_slice::<Value>(input)
        .ok()
        .filter(Value::is_object);
    let Some(mut whole) = whole.filter(|_| !random.one_in(3)) else {
        super::json::change(input, other, random);
        return;
    };
    loop {
        change_part(&mut whole, random);
        if random.below(3) != 0 {
            break;
        }
    }
    *input = whole.to_string().into_bytes();
}

fn change_part(whole: &mut Value, random: &mut Random) {
    match random.below(9) {
        0 | 1 => whole["normalizer"] = steps("normalizers", random, normalizer),
        2..=4 => whole["pre_tokenizer"] = steps("pretokenizers", random, pre_tokenizer),
        5 => whole["decoder"] = steps("decoders", random, decoder),
        6 => added_token(whole, random),
        7 => model_setting(whole, random),
        _ => vocabulary(whole, random),
    }
}

/// One step, a few in sequence, sequences within them, or none.
fn steps(list: &str, random: &mut Random, step: fn(&mut Random) -> Value) -> Value {
    match random.below(8) {
        0 => Value::Null,
        1 => {
            let many = *random.pick(&[0, 1, 8, 70]);
            let one = step(random);
            json!({"type": "Sequence", list: vec![one; many]})
        }
        2..=4 => {
            let n = 1 + random.below(3);
            let mut parts: Vec<Value> = (0..n).map(|_| step(random)).collect();
            if random.one_in(6) {
                parts = vec![json!({"type": "Sequence", list: parts})];
            }
            json!({"type": "Sequence", list: parts})
        }
        _ => step(random),
    }
}

/// A text, sometimes a long one.
fn text(random: &mut Random) -> String {
    let times = *random.pick(&[1, 1, 1, 1, 2, 70, 1000]);
    random.pick(&TEXTS).repeat(times)
}

fn flag(random: &mut Random) -> bool {
    random.one_in(2)
}

fn pattern(random: &mut Random) -> Value {
    match random.below(3) {
        0 => json!({"String": text(random)}),
        1 if random.one_in(8) => {
            let times = *random.pick(&[10, 300, 3000]);
            json!({"Regex": "(".repeat(times) + "t" + &")".repeat(times)})
        }
        _ => json!({"Regex": random.pick(&EXPRESSIONS)}),
    }
}

fn normalizer(random: &mut Random) -> Value {
    match random.below(14) {
        0..=3 => json!({"type": random.pick(&["NFC", "NFD", "NFKC", "NFKD"])}),
        4 | 5 => json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}),
        6 => json!({"type": "Replace", "pattern": pattern(random), "content": text(random)}),
        7 | 8 => json!({"type": "Prepend", "prepend": text(random)}),
        9 => json!({"type": "Prepend", "prepend": "\u{2581}"}),
        10 => {
            let n = 4 * (1 + random.below(8));
            let map: String = (0..n)
                .map(|_| *random.pick(&['A', 'B', 'z', '/', '8']))
                .collect();
            json!({"type": "Precompiled", "precompiled_charsmap": map})
        }
        11 => json!({"type": "Strip", "strip_left": flag(random), "strip_right": flag(random)}),
        12 => json!({"type": random.pick(&["Lowercase", "StripAccents", "Nmt", "ByteLevel"])}),
        _ => json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                    "strip_accents": null, "lowercase": flag(random)}),
    }
}

fn pre_tokenizer(random: &mut Random) -> Value {
    match random.below(14) {
        0..=3 => {
            json!({"type": "ByteLevel", "add_prefix_space": flag(random), "trim_offsets": true,
                        "use_regex": flag(random)})
        }
        4..=6 => {
            json!({"type": "Split", "pattern": pattern(random), "behavior": "Isolated", "invert": false})
        }
        7 => {
            json!({"type": "Split", "pattern": pattern(random), "behavior": random.pick(&BEHAVIORS),
                    "invert": flag(random)})
        }
        8 | 9 => {
            json!({"type": "Metaspace", "replacement": random.pick(&["\u{2581}", "\u{2581}", "_", "t", ""]),
                        "prepend_scheme": random.pick(&["first", "never", "always"]), "split": flag(random)})
        }
        10 => json!({"type": "Digits", "individual_digits": flag(random)}),
        11 => json!({"type": "Punctuation", "behavior": random.pick(&BEHAVIORS)}),
        12 => json!({"type": "FixedLength", "length": random.below(4)}),
        _ => {
            json!({"type": random.pick(&["BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"])})
        }
    }
}

fn decoder(random: &mut Random) -> Value {
    match random.below(7) {
        0 | 1 => {
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})
        }
        2 => json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        3 => json!({"type": random.pick(&["ByteFallback", "Fuse"])}),
        4 => {
            json!({"type": "Strip", "content": random.pick(&[" ", "t", "\u{2581}"]), "start": random.below(3),
                    "stop": random.below(3)})
        }
        5 => {
            json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true})
        }
        _ => {
            json!({"type": random.pick(&["WordPiece", "CTC", "BPEDecoder"]), "prefix": "##", "cleanup": true})
        }
    }
}

/// Changes the flags of an added token, or adds one where its id has to be.
fn added_token(whole: &mut Value, random: &mut Random) {
    let tokens = whole["model"]["vocab"]
        .as_object()
        .map_or(0, serde_json::Map::len);
    let added = whole.pointer_mut("/added_tokens");
    let Some(added) = added.and_then(Value::as_array_mut) else {
        return;
    };
    if random.one_in(2) {
        let outside = added
            .iter()
            .filter(|t| t["id"].as_u64().is_some_and(|id| id >= tokens as u64));
        let id = tokens + outside.count();
        let content = text(random) + TEXTS[random.below(TEXTS.len())];
        let [single_word, lstrip, rstrip, normalized, special] = [(); 5].map(|()| flag(random));
        added.push(
            json!({"id": id, "content": content, "single_word": single_word, "lstrip": lstrip,
                          "rstrip": rstrip, "normalized": normalized, "special": special}),
        );
        return;
    }
    let at = random.below(added.len());
    if let Some(token) = added.get_mut(at).filter(|token| token.is_object()) {
        let name = *random.pick(&["single_word", "lstrip", "rstrip", "normalized", "special"]);
        token[name] = flag(random).into();
    }
}

fn model_setting(whole: &mut Value, random: &mut Random) {
    let Some(model) = whole.get_mut("model").filter(|model| model.is_object()) else {
        return;
    };
    match random.below(6) {
        0 => model["type"] = (*random.pick(&["BPE", "WordPiece", "WordLevel", "Unigram"])).into(),
        1 => model["unk_token"] = text(random).into(),
        2 => model["end_of_word_suffix"] = text(random).into(),
        3 => model["continuing_subword_prefix"] = text(random).into(),
        _ => {
            let name = *random.pick(&["fuse_unk", "byte_fallback", "ignore_merges"]);
            model[name] = flag(random).into();
        }
    }
}

/// Adds a token, or a merge of two.
fn vocabulary(whole: &mut Value, random: &mut Random) {
    let vocab = whole.pointer_mut("/model/vocab");
    let Some(vocab) = vocab.and_then(Value::as_object_mut) else {
        return;
    };
    let names: Vec<String> = vocab.keys().cloned().collect();
    if names.is_empty() {
        return;
    }
    let (left, right) = (random.pick(&names).clone(), random.pick(&names).clone());
    let new = match random.one_in(3) {
        true => text(random),
        false => format!("{left}{right}"),
    };
    let next = vocab.len();
    if !vocab.contains_key(&new) {
        // Added tokens behind it then have other ids, which is an error.
        vocab.insert(new, next.into());
    }
    let merges = whole.pointer_mut("/model/merges");
    if let Some(merges) = merges.and_then(Value::as_array_mut) {
        let at = random.below(merges.len() + 1);
        let merge = match merges.first().is_some_and(Value::is_array) {
            true => json!([left, right]),
            false => json!(format!("{left} {right}")),
        };
        merges.insert(at, merge);
    }
}
