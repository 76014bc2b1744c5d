//! The names of `tokenizer.ggml.pre`: which stand for the same cuts, and what else they imply.

use std::path::Path;

use super::{PreTokenizer, Stage, cased, cl100k, deepseek, gpt2};
use crate::error::ModelError;

/// Names, cuts, whether merges are ignored for whole tokens, and whether prompts begin with BOS.
type Family = (&'static [&'static str], &'static [Stage], bool, bool);

const FAMILIES: [Family; 17] = [
    (
        &[
            "gpt-2",
            "phi-2",
            "olmo",
            "mpt",
            "exaone4",
            "jais",
            "trillion",
            "mellum",
            "roberta-bpe",
            "gigachat",
            "granite-docling",
            "a.x-4.0",
        ],
        gpt2::GPT2,
        false,
        false,
    ),
    (
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        gpt2::SINGLE_NUMBERS,
        false,
        false,
    ),
    (
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "lfm2",
            "midm-2.0",
        ],
        cl100k::LLAMA3,
        true,
        true,
    ),
    (&["glm4"], cl100k::LLAMA3, true, false),
    (
        &["dbrx", "smaug-bpe", "chatglm-bpe"],
        cl100k::LLAMA3,
        false,
        false,
    ),
    (&["minicpm5"], cl100k::MINICPM5, true, false),
    (
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "megrez",
            "hunyuan",
            "stablelm2",
            "solar-open",
            "grok-2",
            "f2llmv2",
            // Their own expressions are spelled otherwise and match the same.
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
        ],
        cl100k::QWEN2,
        false,
        false,
    ),
    (&["seed-coder"], cl100k::SEED_CODER, false, false),
    (&["qwen35"], cl100k::QWEN35, false, false),
    (&["tekken"], cased::TEKKEN, true, true),
    (
        &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        cased::O200K,
        false,
        false,
    ),
    (&["kimi-k2"], cased::KIMI_K2, false, false),
    (&["deepseek-llm"], deepseek::LLM, false, false),
    (&["deepseek-coder"], deepseek::CODER, false, false),
    (
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        deepseek::V3,
        false,
        false,
    ),
    (&["falcon"], gpt2::FALCON, false, false),
    (&[DEFAULT], gpt2::DEFAULT, false, false),
];

/// What files without a name get.
pub(in crate::tokenizer) const DEFAULT: &str = "default";

/// The name of a vocabulary that is no byte-level one.
pub(in crate::tokenizer) const GEMMA4: &str = "gemma4";

impl PreTokenizer {
    /// The pre-tokenizer of that name.
    pub(in crate::tokenizer) fn parse(name: &str) -> Option<Self> {
        let found = FAMILIES.iter().find(|(names, ..)| names.contains(&name));
        found.map(|&(_, stages, ignores_merges, adds_bos)| Self {
            stages,
            ignores_merges,
            adds_bos,
        })
    }

    /// The names that [`Self::parse`] knows.
    pub(in crate::tokenizer) fn names() -> impl Iterator<Item = &'static str> {
        FAMILIES.iter().flat_map(|(names, ..)| *names).copied()
    }

    /// The error for a name that is none of them.
    pub(in crate::tokenizer) fn unknown(path: &Path, field: &str, name: &str) -> ModelError {
        let known: Vec<&str> = Self::names().chain([GEMMA4]).collect();
        ModelError::unsupported(
            path,
            field,
            format!("the pre-tokenizer {name:?}"),
            format!(
                "ask for it at {}/issues, or use the model as a folder with tokenizer.json; known are: {}",
                env!("CARGO_PKG_REPOSITORY"),
                known.join(", ")
            ),
        )
    }
}
