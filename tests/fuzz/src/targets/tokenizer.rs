//! Tokenizers as data: the section of a packed model, and `tokenizer.json`.

use std::path::Path;

use anyhow::Result;
use forebay_models::tokenizer::{TokenizerModel, TokenizerSpec, spec_from_hf};
use serde_json::json;

use super::{refusal, use_tokenizer};
use crate::mutate;
use crate::random::Random;
use crate::target::{Placed, Target};

/// One pre-tokenizer of each family.
pub const PRE_TOKENIZERS: [&str; 16] = [
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "smollm",
    "default",
    "falcon",
    "minicpm5",
    "seed-coder",
    "qwen35",
    "tekken",
    "gpt-4o",
    "kimi-k2",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "glm4",
];

/// The section.
struct Spec;

/// Makes the target that reads sections.
pub fn spec(_: &Path) -> Result<Box<dyn Target>> {
    Ok(Box::new(Spec))
}

/// Byte-level BPE over a few letters.
pub fn byte_level(pre: &str) -> TokenizerSpec {
    let tokens = [
        "<s>",
        "</s>",
        "t",
        "h",
        "e",
        "Ġ",
        "th",
        "the",
        "Ġthe",
        "<|im_end|>",
    ];
    TokenizerSpec {
        model: TokenizerModel::ByteLevelBpe {
            pre: pre.into(),
            tokens: tokens.map(String::from).to_vec(),
            types: vec![3, 3, 1, 1, 1, 1, 1, 1, 1, 4],
            merges: ["t h", "th e", "Ġ the"].map(String::from).to_vec(),
        },
        bos: Some(0),
        eog: vec![1, 9],
        add_bos: true,
    }
}

/// SentencePiece over a few letters.
pub fn sentence_piece() -> TokenizerSpec {
    let tokens = [
        "<unk>",
        "<s>",
        "</s>",
        "<0x0A>",
        "\u{2581}",
        "t",
        "h",
        "th",
        "\u{2581}th",
    ];
    TokenizerSpec {
        model: TokenizerModel::SentencePiece {
            tokens: tokens.map(String::from).to_vec(),
            scores: vec![0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0],
            types: vec![2, 3, 3, 6, 1, 1, 1, 1, 1],
            add_space_prefix: true,
            swallows_space: false,
        },
        bos: Some(1),
        eog: vec![2],
        add_bos: true,
    }
}

/// Pieces with a list of merges in place of scores.
pub fn by_merges(mut spec: TokenizerSpec, merges: &[&str]) -> TokenizerSpec {
    if let TokenizerModel::SentencePiece { tokens, types, .. } = spec.model {
        let merges = merges.iter().map(|m| (*m).to_owned()).collect();
        spec.model = TokenizerModel::SentencePieceMerges {
            tokens,
            types,
            merges,
        };
    }
    spec
}

impl Target for Spec {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let mut specs = PRE_TOKENIZERS.map(byte_level).to_vec();
        specs.push(sentence_piece());
        specs.push(by_merges(sentence_piece(), &["t h", "\u{2581} th"]));
        specs
            .iter()
            .map(|s| serde_json::to_vec(s).expect("JSON"))
            .collect()
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::json::change(input, other, random);
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let spec: TokenizerSpec = serde_json::from_slice(input).map_err(|e| e.to_string())?;
        use_tokenizer(spec)
    }
}

/// `tokenizer.json` beside settings that name BOS.
struct Json {
    folder: std::path::PathBuf,
    file: Placed,
}

/// Makes the target that reads `tokenizer.json`.
pub fn json(folder: &Path) -> Result<Box<dyn Target>> {
    let settings = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}});
    std::fs::write(folder.join("tokenizer_config.json"), settings.to_string())?;
    Ok(Box::new(Json {
        file: Placed::new(folder, "tokenizer.json")?,
        folder: folder.into(),
    }))
}

/// The tokens with their ids, and the two that are special.
fn added() -> serde_json::Value {
    let token = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": special})
    };
    json!([
        token(0, "<s>", true),
        token(1, "</s>", true),
        token(9, "<x>", false)
    ])
}

/// Byte-level BPE with the post-processor and normalizers of many models.
pub fn byte_level_json() -> serde_json::Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added(),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+|\\s+"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"<s>": 0, "</s>": 1, "t": 2, "h": 3, "e": 4, "Ġ": 5, "th": 6, "the": 7, "Ġthe": 8},
            "merges": ["t h", "th e", "Ġ the"]},
    })
}

/// SentencePiece's BPE as it is converted.
pub fn sentence_piece_json() -> serde_json::Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added(),
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": {"<s>": 0, "</s>": 1, "<unk>": 2, "<0x0A>": 3, "\u{2581}": 4, "t": 5, "h": 6, "th": 7, "\u{2581}th": 8},
            "merges": ["t h", "\u{2581} th"]},
    })
}

impl Target for Json {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let mut random_merges = byte_level_json();
        random_merges["model"]["dropout"] = json!(0.5);
        [byte_level_json(), sentence_piece_json(), random_merges]
            .map(|json| json.to_string().into_bytes())
            .to_vec()
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::json::change(input, other, random);
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        self.file.put(input, 0).map_err(|e| e.to_string())?;
        let spec = spec_from_hf(&self.folder).map_err(|e| refusal(&e))?;
        use_tokenizer(spec)
    }
}
