//! The tokenizer of a GGUF file.

use std::collections::BTreeSet;
use std::path::Path;

use super::pre_tokenizer::{self, GEMMA4, PreTokenizer};
use super::{TokenizerModel, TokenizerSpec, end_of_generation};
use crate::error::{ModelError, Result};
use crate::gguf::{Array, Metadata, Value};

const ARCHITECTURE: &str = "general.architecture";
const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

const BOS: &str = "tokenizer.ggml.bos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";

/// ggml's token types that are given here.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Keys of the ids that end a generation.
const EOG_KEYS: [&str; 6] = [
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

/// Ids that SentencePiece models have if the file names none: `<s>` and `</s>`.
const SPM_BOS: u32 = 1;
const SPM_EOS: u32 = 2;

/// Takes the tokenizer out of the metadata of the GGUF file at `path`, without a copy of its strings, with llama.cpp's
/// defaults (`llama-vocab.cpp`) for what the file does not say. A byte-level vocabulary without `tokenizer.ggml.pre` is
/// older than the key; how it was cut is not known, which is a [doubt](TokenizerSpec::doubt).
///
/// # Errors
/// Missing or contradictory fields; a flag or an id that is there but unusable, since its default would change
/// the text without a word; a tokenizer or pre-tokenizer this engine does not have.
pub fn spec_from_gguf(mut meta: Metadata, path: &Path) -> Result<TokenizerSpec> {
    let tokens = take_strings(&mut meta, path, TOKENS);
    let merges = take_strings(&mut meta, path, MERGES);
    let meta = &meta;
    let model = meta.str(MODEL).ok_or_else(|| missing(path, MODEL))?;
    let tokens = tokens?;
    if tokens.is_empty() {
        return Err(ModelError::damaged(path, TOKENS, "the vocabulary is empty"));
    }
    let mut types = match meta.get(TYPES) {
        Some(_) => meta.i32s(TYPES).ok_or_else(|| missing(path, TYPES))?,
        None => vec![NORMAL; tokens.len()],
    };
    same_length(path, TYPES, types.len(), tokens.len())?;
    let eog = end_of_generation_ids((meta, path), &tokens, &mut types, model == "llama")?;
    let bos = id(meta, path, BOS, tokens.len())?
        .or((model == "llama" && tokens.len() > SPM_BOS as usize).then_some(SPM_BOS));
    let (model, adds_bos) = match model {
        "gpt2" if meta.str(PRE) != Some(GEMMA4) => {
            byte_level((meta, path), tokens, types, merges?)?
        }
        "gpt2" | GEMMA4 => {
            let model = TokenizerModel::SentencePieceMerges {
                tokens,
                types,
                merges: merges?,
            };
            (model, true)
        }
        "llama" => sentence_piece(meta, path, tokens, types)?,
        other => {
            return Err(ModelError::unsupported(
                path,
                MODEL,
                format!("the tokenizer {other:?}"),
                "use a model whose tokenizer is gpt2 (byte-level BPE), llama or gemma4 (SentencePiece), or one in \
                 a folder with tokenizer.json",
            ));
        }
    };
    let add_bos = match (&model, flag(meta, path, ADD_BOS)?) {
        // The first files of these models say that they want none, though they do.
        (TokenizerModel::SentencePieceMerges { .. }, _) => true,
        (_, stated) => stated.unwrap_or(adds_bos),
    };
    Ok(TokenizerSpec {
        model,
        bos,
        eog,
        add_bos: add_bos && bos.is_some(),
    })
}

/// The model, and whether its prompts begin with BOS if the file does not tell.
fn byte_level(
    (meta, path): (&Metadata, &Path),
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
) -> Result<(TokenizerModel, bool)> {
    let pre = match meta.get(PRE) {
        Some(_) => meta
            .str(PRE)
            .ok_or_else(|| wrong(path, PRE, "it is not a string"))?,
        None => pre_tokenizer::DEFAULT,
    };
    let parsed = PreTokenizer::parse(pre).ok_or_else(|| PreTokenizer::unknown(path, PRE, pre))?;
    let model = TokenizerModel::ByteLevelBpe {
        pre: pre.to_owned(),
        tokens,
        types,
        merges,
    };
    Ok((model, parsed.adds_bos()))
}

fn sentence_piece(
    meta: &Metadata,
    path: &Path,
    tokens: Vec<String>,
    types: Vec<i32>,
) -> Result<(TokenizerModel, bool)> {
    let scores = meta.f32s(SCORES).ok_or_else(|| missing(path, SCORES))?;
    same_length(path, SCORES, scores.len(), tokens.len())?;
    if let Some(id) = scores.iter().position(|score| score.is_nan()) {
        let problem = format!("the score of token {id} is no number");
        return Err(ModelError::damaged(path, SCORES, problem));
    }
    // JSON, in which it is kept, has no infinity.
    let scores = scores.iter().map(|score| score.clamp(f32::MIN, f32::MAX));
    let model = TokenizerModel::SentencePiece {
        tokens,
        scores: scores.collect(),
        types,
        add_space_prefix: flag(meta, path, ADD_SPACE)?.unwrap_or(true),
        // The special tokens of this architecture swallow the white space behind them; the file does not say so.
        swallows_space: meta.str(ARCHITECTURE) == Some("phi3"),
    };
    Ok((model, true))
}

/// The ids that end a generation, in order: those the file gives and those known by name. Tokens
/// known by name are made control tokens where the file says otherwise, so that they are not shown.
///
/// # Errors
/// An id in the file that is no id of the vocabulary.
fn end_of_generation_ids(
    (meta, path): (&Metadata, &Path),
    tokens: &[String],
    types: &mut [i32],
    is_spm: bool,
) -> Result<Vec<u32>> {
    let mut eog = BTreeSet::new();
    for key in EOG_KEYS {
        eog.extend(id(meta, path, key, tokens.len())?);
    }
    if is_spm && meta.get(EOG_KEYS[0]).is_none() && tokens.len() > SPM_EOS as usize {
        eog.insert(SPM_EOS);
    }
    for ((id, text), kind) in (0u32..).zip(tokens).zip(types) {
        if end_of_generation::is_named(text, *kind == CONTROL) {
            eog.insert(id);
            *kind = CONTROL;
        }
    }
    let id_of = |name: &str| tokens.iter().position(|t| t == name).map(|at| at as u32);
    end_of_generation::keep_message_ends(&mut eog, id_of);
    Ok(eog.into_iter().collect())
}

/// A token id; `None` where the file gives none.
fn id(meta: &Metadata, path: &Path, key: &str, n_tokens: usize) -> Result<Option<u32>> {
    if meta.get(key).is_none() {
        return Ok(None);
    }
    let id = meta.u64(key).filter(|&id| id < n_tokens as u64);
    let id = id.and_then(|id| u32::try_from(id).ok());
    let problem = || format!("it is not the id of one of the {n_tokens} tokens");
    id.map(Some).ok_or_else(|| wrong(path, key, problem()))
}

/// A flag; `None` where the file gives none.
fn flag(meta: &Metadata, path: &Path, key: &str) -> Result<Option<bool>> {
    match meta.get(key) {
        None => Ok(None),
        Some(_) => meta
            .bool(key)
            .map(Some)
            .ok_or_else(|| wrong(path, key, "it is not a boolean")),
    }
}

fn wrong(path: &Path, field: &str, problem: impl Into<String>) -> ModelError {
    ModelError::Format {
        path: path.to_owned(),
        field: field.to_owned(),
        problem: problem.into(),
        remedy: "correct the key, or convert the model again, with its tokenizer".to_owned(),
    }
}

fn take_strings(meta: &mut Metadata, path: &Path, key: &str) -> Result<Vec<String>> {
    match meta.entries.remove(key) {
        Some(Value::Array(Array::Str(strings))) => Ok(strings),
        _ => Err(missing(path, key)),
    }
}

fn missing(path: &Path, field: &str) -> ModelError {
    ModelError::Format {
        path: path.to_owned(),
        field: field.to_owned(),
        problem: "the field is missing or has another type".to_owned(),
        remedy: "convert the model again, with its tokenizer".to_owned(),
    }
}

fn same_length(path: &Path, field: &str, found: usize, n_tokens: usize) -> Result<()> {
    if found == n_tokens {
        return Ok(());
    }
    let problem = format!("{found} entries for {n_tokens} tokens");
    Err(ModelError::damaged(path, field, problem))
}
