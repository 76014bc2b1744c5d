//! What is fuzzed, one reader per file.

mod bundle;
mod folder;
mod gguf;
mod hot_set;
mod machine;
mod plan;
mod profile;
mod size;
mod text;
pub mod tokenizer;
mod tokenizer_steps;
mod trace;

#[path = "../../../../models/tests/gguf_writer/mod.rs"]
mod gguf_writer;
#[path = "../../../../models/tests/hf_writer/mod.rs"]
mod hf_writer;

use std::path::{Path, PathBuf};

use anyhow::Result;
use forebay_models::error::ModelError;
use forebay_models::tokenizer::{EncodeOptions, TextPosition, Tokenizer, TokenizerSpec};

use crate::target::Target;

/// Makes a target that keeps its files in a folder.
pub type Make = fn(&Path) -> Result<Box<dyn Target>>;

/// All targets by name.
pub const TARGETS: [(&str, Make); 20] = [
    ("gguf", gguf::make),
    ("bundle", bundle::sections),
    ("bundle-experts", bundle::sections_of_experts),
    ("bundle-expert-neurons", bundle::sections_of_expert_neurons),
    ("bundle-hot-neurons", bundle::sections_with_hot_neurons),
    ("bundle-file", bundle::whole),
    ("hot-set", hot_set::make),
    ("safetensors", folder::safetensors),
    ("config", folder::config),
    ("config-experts", folder::config_of_experts),
    ("shard-index", folder::index),
    ("tokenizer", tokenizer::spec),
    ("tokenizer-json", tokenizer::json),
    ("tokenizer-steps", tokenizer_steps::make),
    ("text", text::make),
    ("plan", plan::make),
    ("machine", machine::make),
    ("profile", profile::make),
    ("trace", trace::make),
    ("size", size::make),
];

/// A model with random weights and the architecture that the name says.
fn tiny(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../golden/tiny").join(name)
}

/// How an error refuses, without the names that an input may choose freely.
fn refusal(error: &ModelError) -> String {
    match error {
        ModelError::Io { action, .. } => format!("cannot {action}"),
        ModelError::Format { field, problem, .. }
        | ModelError::Unsupported { field, problem, .. }
        | ModelError::Parameter { field, problem, .. } => {
            // A field of the file format, not a tensor's or a key's name.
            let field = if field.len() < 24 { field } else { "" };
            format!("{problem} {field}")
        }
    }
}

/// Encodes texts with the tokenizer of `spec` and decodes what comes of it.
fn use_tokenizer(spec: TokenizerSpec) -> Result<(), String> {
    const TEXT: &str = " the other\u{2581}th½ 你好\n</s><s><0x0A>\u{301}\0";
    let tokenizer = Tokenizer::from_spec(spec).map_err(|e| refusal(&e))?;
    for parse_special in [false, true] {
        let options = EncodeOptions {
            add_bos: true,
            parse_special,
        };
        let ids = tokenizer.encode(TEXT, options).map_err(|e| refusal(&e))?;
        let again = tokenizer.encode(TEXT, options).map_err(|e| refusal(&e))?;
        assert_eq!(ids, again, "one text, two encodings");
        check_decoding(&tokenizer, &ids);
        let n = tokenizer.vocab_size();
        let own = ids.iter().all(|&id| (id as usize) < n);
        assert!(own, "ids outside the vocabulary of {n}: {ids:?}");
    }
    check_decoding(&tokenizer, &[0, 1, u32::MAX, 7]);
    Ok(())
}

/// Tokens decoded one by one give the text of decoding them together.
fn check_decoding(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    for skip in [false, true] {
        let mut stream = tokenizer.detokenizer(skip, TextPosition::Start);
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(&stream.finish());
        assert_eq!(text, tokenizer.decode(ids, skip), "streamed and whole text");
    }
    tokenizer.decode(ids, true)
}
