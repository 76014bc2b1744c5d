//! Tokenizers: from GGUF metadata and from `tokenizer.json`, one type for both.

mod bpe;
mod breaks;
mod byte_alphabet;
mod detokenizer;
mod encoder;
mod end_of_generation;
mod gguf_spec;
mod hf;
mod hf_spec;
pub(crate) mod limits;
mod merge;
mod merge_table;
mod pairs;
mod pre_tokenizer;
mod room;
mod special;
mod spm;
mod unicode_class;
mod vocabulary;

use serde::{Deserialize, Serialize};

pub use detokenizer::{Detokenizer, TextPosition};
pub use encoder::{EncodeOptions, Tokenizer};
pub use gguf_spec::spec_from_gguf;
pub use hf::{catches_panics, catching};
pub(crate) use hf_spec::TokenName;
pub use hf_spec::spec_from_hf;
pub use room::EncodingMemory;

/// Everything needed to build a tokenizer; stored in the packed file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenizerSpec {
    /// The vocabulary and its algorithm.
    pub model: TokenizerModel,
    /// Id put in front of a prompt when `add_bos` is set.
    pub bos: Option<u32>,
    /// Ids that end a generation.
    pub eog: Vec<u32>,
    /// Whether a prompt begins with `bos`.
    pub add_bos: bool,
}

/// Where the vocabulary comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TokenizerModel {
    /// The text of a Hugging Face `tokenizer.json`.
    HfJson(String),
    /// Byte-level BPE out of GGUF metadata.
    ByteLevelBpe {
        /// `tokenizer.ggml.pre`, such as `gpt-2`, `llama-bpe` or `qwen2`.
        pre: String,
        /// Token texts in GPT-2's byte alphabet, by id.
        tokens: Vec<String>,
        /// ggml token types by id (1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte).
        types: Vec<i32>,
        /// Merges as `"left right"`, best first.
        merges: Vec<String>,
    },
    /// SentencePiece-style with byte fallback out of GGUF metadata.
    SentencePiece {
        /// Token texts with `U+2581` for spaces, by id.
        tokens: Vec<String>,
        /// Scores by id, higher merges first.
        scores: Vec<f32>,
        /// ggml token types by id.
        types: Vec<i32>,
        /// Whether a space is put in front of the text.
        add_space_prefix: bool,
        /// Whether special tokens swallow the white space behind them, as Phi-3's do.
        swallows_space: bool,
    },
    /// The same with a list of merges in place of scores, out of GGUF metadata.
    SentencePieceMerges {
        /// Token texts with `U+2581` for spaces, by id.
        tokens: Vec<String>,
        /// ggml token types by id.
        types: Vec<i32>,
        /// Merges as `"left right"`, best first.
        merges: Vec<String>,
    },
}

impl TokenizerSpec {
    /// What is doubtful about the tokens that this tokenizer makes, for the user to know.
    pub fn doubt(&self) -> Option<&'static str> {
        let TokenizerModel::ByteLevelBpe { pre, .. } = &self.model else {
            return None;
        };
        (pre == pre_tokenizer::DEFAULT).then_some(
            "the model does not say how its tokenizer cuts texts (tokenizer.ggml.pre), so llama.cpp's default is used, \
             and the output may be worse than the model's; convert the model again with a current llama.cpp",
        )
    }
}

#[cfg(test)]
mod expressions;
#[cfg(test)]
mod tests;
