//! Every family of pre-tokenizers, and both kinds of SentencePiece, against the `tokenizers` crate with the steps of
//! the models' own `tokenizer.json`.
//!
//! The merges are learned from texts that are not cut at all, so they join whatever stands side by side: a word that
//! is cut elsewhere has other tokens.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use super::random_texts::{Random, random_text};
use super::*;
use crate::tokenizer::expressions::*;

/// Texts that each family is compared on.
const TEXTS: usize = 2000;
/// Texts that merges are learned from.
const LEARNED: usize = 300;
const MERGES: usize = 500;
/// Tokens that no merge makes.
const WHOLE: usize = 200;

fn split(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

/// Cuts where the expression does not match, and so nowhere else.
fn matches_of(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Removed", "invert": true})
}

fn digits(individual: bool) -> Value {
    json!({"type": "Digits", "individual_digits": individual})
}

/// The byte alphabet, with or without GPT-2's cut before it.
fn byte_level(cuts: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cuts})
}

/// Names, the pre-tokenizer whose stages they have, and whether merges are ignored.
const CUT_BY_EXPRESSIONS: [(&[&str], &str, bool); 14] = [
    (
        &["llama-bpe", "falcon3", "pixtral", "glm4"],
        "llama-bpe",
        true,
    ),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], "llama-bpe", false),
    (&["qwen2", "stablelm2", "megrez"], "qwen2", false),
    (&["bailingmoe"], "bailingmoe", false),
    (&["seed-coder"], "seed-coder", false),
    (&["qwen35"], "qwen35", false),
    (&["tekken"], "tekken", true),
    (&["gpt-4o", "llama4"], "gpt-4o", false),
    (&["kimi-k2"], "kimi-k2", false),
    (&["minicpm5"], "minicpm5", true),
    (&["deepseek-llm"], "deepseek-llm", false),
    (&["deepseek-coder"], "deepseek-coder", false),
    (&["deepseek-v3", "hunyuan-dense"], "deepseek-v3", false),
    // llama.cpp's own; no model has this pipeline.
    (&["default"], "default", false),
];

/// Names, the steps of their `pre_tokenizer`, and whether merges are ignored.
fn families() -> Vec<(&'static [&'static str], Vec<Value>, bool)> {
    let mut families: Vec<(&'static [&'static str], Vec<Value>, bool)> = vec![
        (&["gpt-2", "mpt"], vec![byte_level(true)], false),
        (
            &["smollm", "starcoder", "command-r"],
            vec![digits(true), byte_level(true)],
            false,
        ),
        (
            &["minimax-m2"],
            vec![matches_of(O200K), byte_level(false)],
            false,
        ),
    ];
    families.extend(CUT_BY_EXPRESSIONS.map(|(names, pre, ignore)| {
        let stages = STAGES.iter().find(|(name, _)| *name == pre);
        let stages = stages.expect("a pre-tokenizer with expressions").1;
        let mut steps: Vec<Value> = stages.iter().map(|regex| split(regex)).collect();
        steps.push(byte_level(false));
        (names, steps, ignore)
    }));
    families
}

/// Merges of the most frequent pairs in `texts`, whose symbols are below `n_symbols`; the merged symbols are
/// numbered from there.
fn learn(mut texts: Vec<Vec<u32>>, n_symbols: u32) -> Vec<(u32, u32)> {
    let mut merges = Vec::new();
    for next in (n_symbols..).take(MERGES) {
        let mut counts: HashMap<(u32, u32), u32> = HashMap::new();
        for pair in texts.iter().flat_map(|text| text.windows(2)) {
            *counts.entry((pair[0], pair[1])).or_default() += 1;
        }
        let best = counts.into_iter().max_by_key(|&(pair, n)| (n, pair));
        let (pair, _) = best.expect("texts are longer than that");
        for text in &mut texts {
            let mut at = 0;
            while at + 1 < text.len() {
                if (text[at], text[at + 1]) == pair {
                    text[at] = next;
                    text.remove(at + 1);
                }
                at += 1;
            }
        }
        merges.push(pair);
    }
    merges
}

fn learned_texts() -> impl Iterator<Item = String> {
    let mut random = Random(1);
    (0..LEARNED).map(move |_| random_text(&mut random))
}

/// Texts of tokens, and merges by these texts.
struct Learned {
    tokens: Vec<String>,
    merges: Vec<(String, String)>,
}

/// Adds a token for each merge of two; the merges by their texts.
fn join(tokens: &mut Vec<String>, pairs: &[(u32, u32)]) -> Vec<(String, String)> {
    let mut merges = Vec::new();
    for &(left, right) in pairs {
        let text = |id: u32| tokens[id as usize].clone();
        let merge = (text(left), text(right));
        tokens.push(format!("{}{}", merge.0, merge.1));
        merges.push(merge);
    }
    merges
}

/// Byte-level tokens: bytes, what merges make, and pieces of text that they do not.
fn byte_level_tokens() -> Learned {
    let bytes = |text: String| text.bytes().map(u32::from).collect();
    let pairs = learn(learned_texts().map(bytes).collect(), 256);
    let alphabet: Vec<String> = (0..=255).map(letter).collect();
    let mut tokens = alphabet.clone();
    let merges = join(&mut tokens, &pairs);
    let mut random = Random(2);
    let pieces = learned_texts().map(|text| {
        let word = text.split_whitespace().next().unwrap_or("the").to_owned();
        let space = if random.below(2) == 0 { " " } else { "" };
        format!("{space}{word}")
    });
    let spelled = |text: String| text.bytes().map(|b| &*alphabet[usize::from(b)]).collect();
    tokens.extend(pieces.map(spelled).take(WHOLE));
    let mut seen = BTreeSet::new();
    tokens.retain(|token| seen.insert(token.clone()));
    Learned { tokens, merges }
}

impl Learned {
    fn vocabulary(&self) -> serde_json::Map<String, Value> {
        let numbered = (0..).zip(&self.tokens);
        numbered.map(|(id, t)| (t.clone(), json!(id))).collect()
    }

    fn merge_lines(&self) -> Vec<String> {
        let lines = self.merges.iter().map(|(l, r)| format!("{l} {r}"));
        lines.collect()
    }

    /// Without merges that join a number of the byte alphabet with something else. Falcon's tokenizer cuts there, and
    /// so its own vocabulary has none.
    fn without_mixed_numbers(mut self) -> Self {
        let is_mixed = |text: &str| {
            let kinds: BTreeSet<bool> = text.chars().map(char::is_numeric).collect();
            kinds.len() > 1
        };
        self.merges
            .retain(|(left, right)| !is_mixed(&format!("{left}{right}")));
        self
    }
}

fn crate_tokenizer(parts: Value) -> tokenizers::Tokenizer {
    let mut json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
    });
    for (key, value) in parts.as_object().expect("parts") {
        json[key] = value.clone();
    }
    json.to_string().parse().expect("a tokenizer")
}

/// The crate's tokenizer with the steps of a family.
fn byte_level_reference(
    learned: &Learned,
    steps: &[Value],
    ignore_merges: bool,
) -> tokenizers::Tokenizer {
    crate_tokenizer(json!({
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": ignore_merges, "vocab": learned.vocabulary(), "merges": learned.merges},
    }))
}

fn own(model: TokenizerModel) -> Tokenizer {
    let spec = TokenizerSpec {
        model,
        bos: None,
        eog: vec![],
        add_bos: false,
    };
    Tokenizer::from_spec(spec).expect("a tokenizer")
}

fn own_byte_level(name: &str, learned: &Learned) -> Tokenizer {
    own(TokenizerModel::ByteLevelBpe {
        pre: name.into(),
        tokens: learned.tokens.clone(),
        types: vec![1; learned.tokens.len()],
        merges: learned.merge_lines(),
    })
}

fn compare(name: &str, own: &Tokenizer, reference: &tokenizers::Tokenizer) {
    let mut random = Random(3);
    for _ in 0..TEXTS {
        let text = random_text(&mut random);
        let expected = reference.encode_fast(&*text, false).expect("encoded");
        let ids = own.encode(&text, PLAIN).expect("encoded");
        assert_eq!(ids, expected.get_ids(), "{name}: {text:?}");
    }
}

#[test]
fn byte_level_families_equal_their_models_own_tokenizers() {
    let learned = byte_level_tokens();
    for (names, steps, ignore_merges) in families() {
        let reference = byte_level_reference(&learned, &steps, ignore_merges);
        let first = own_byte_level(names[0], &learned);
        compare(names[0], &first, &reference);
        for name in &names[1..] {
            let same = own_byte_level(name, &learned);
            let mut random = Random(4);
            for _ in 0..100 {
                let text = random_text(&mut random);
                let ids = first.encode(&text, PLAIN).expect("encoded");
                assert_eq!(same.encode(&text, PLAIN).expect("encoded"), ids, "{name}");
            }
        }
    }
}

#[test]
fn falcon_equals_its_models_own_tokenizer() {
    let learned = byte_level_tokens().without_mixed_numbers();
    let punctuation = json!({"type": "Punctuation", "behavior": "Contiguous"});
    let steps = [
        punctuation,
        byte_level(true),
        digits(false),
        split("[0-9][0-9][0-9]"),
    ];
    let reference = byte_level_reference(&learned, &steps, false);
    compare("falcon", &own_byte_level("falcon", &learned), &reference);
}

/// SentencePiece's tokens: `<unk>`, byte tokens, most characters, and what merges make of them.
fn pieces() -> Learned {
    let mut tokens = strings(&["<unk>"]);
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let texts: Vec<String> = learned_texts()
        .map(|t| t.replace(' ', "\u{2581}"))
        .collect();
    let chars: BTreeSet<char> = texts.iter().flat_map(|text| text.chars()).collect();
    // Every eighth is spelled in bytes.
    let known: BTreeMap<char, u32> = (0..8 * 4096)
        .zip(chars)
        .filter(|(i, c)| i % 8 != 0 || *c == '\u{2581}')
        .zip(tokens.len() as u32..)
        .map(|((_, c), id)| (c, id))
        .collect();
    tokens.extend(known.keys().map(char::to_string));
    let symbols = |part: &[char]| part.iter().map(|c| known[c]).collect();
    let parts = |text: &String| {
        let chars: Vec<char> = text.chars().collect();
        let parts = chars.split(|c| !known.contains_key(c)).map(symbols);
        parts.collect::<Vec<Vec<u32>>>()
    };
    let pairs = learn(texts.iter().flat_map(parts).collect(), tokens.len() as u32);
    let merges = join(&mut tokens, &pairs);
    Learned { tokens, merges }
}

fn types_of_pieces(learned: &Learned) -> Vec<i32> {
    let mut types = vec![2];
    types.resize(257, 6);
    types.resize(learned.tokens.len(), 1);
    types
}

fn piece_reference(
    learned: &Learned,
    normalizer: Value,
    pre_tokenizer: Value,
) -> tokenizers::Tokenizer {
    crate_tokenizer(json!({
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false, "vocab": learned.vocabulary(), "merges": learned.merges},
    }))
}

fn escape_spaces() -> Value {
    json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"})
}

#[test]
fn pieces_by_merges_equal_gemmas_own_tokenizer() {
    let mut learned = pieces();
    let mut seen = BTreeSet::new();
    learned.tokens.retain(|token| seen.insert(token.clone()));
    let cut = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    let reference = piece_reference(&learned, escape_spaces(), cut);
    let own = own(TokenizerModel::SentencePieceMerges {
        tokens: learned.tokens.clone(),
        types: types_of_pieces(&learned),
        merges: learned.merge_lines(),
    });
    compare("gemma4", &own, &reference);
}

#[test]
fn pieces_by_scores_equal_llamas_own_tokenizer() {
    let mut learned = pieces();
    // Where several pairs make one token, the crate ranks the pairs and SentencePiece does not.
    let known: BTreeSet<String> = learned.tokens.iter().cloned().collect();
    let ways = |token: &str| {
        let ends = token.char_indices().skip(1).map(|(at, _)| at);
        ends.filter(|&at| known.contains(&token[..at]) && known.contains(&token[at..]))
            .count()
    };
    learned
        .merges
        .retain(|(left, right)| ways(&format!("{left}{right}")) == 1);
    let made: BTreeSet<String> = learned
        .merges
        .iter()
        .map(|(l, r)| format!("{l}{r}"))
        .collect();
    let is_made = |token: &String| token.chars().count() == 1 || made.contains(token);
    let mut seen = BTreeSet::new();
    learned.tokens = learned
        .tokens
        .into_iter()
        .enumerate()
        .filter(|(id, token)| *id < 257 || is_made(token))
        .map(|(_, token)| token)
        .filter(|token| seen.insert(token.clone()))
        .collect();
    learned
        .merges
        .retain(|(left, right)| seen.contains(left) && seen.contains(right));
    let normalizer = json!({"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u{2581}"}, escape_spaces()]});
    let reference = piece_reference(&learned, normalizer, json!(null));
    let own = own(TokenizerModel::SentencePiece {
        scores: (0..learned.tokens.len()).map(|id| -(id as f32)).collect(),
        types: types_of_pieces(&learned),
        tokens: learned.tokens,
        add_space_prefix: true,
        swallows_space: false,
    });
    compare("llama", &own, &reference);
}
