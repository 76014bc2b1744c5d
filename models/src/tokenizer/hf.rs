//! A Hugging Face `tokenizer.json`: encoded by the `tokenizers` crate, decoded here.

mod growth;

use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{Model, ModelWrapper};

use super::vocabulary::{Spelling, TokenKind, Vocabulary, byte_token};
use crate::error::{ModelError, Result};

/// Name of the file, for messages about text that came without its path.
const FILE: &str = "tokenizer.json";

/// Most ids a vocabulary may have; far above any model's, far below what exhausts memory.
const MAX_TOKENS: u32 = 1 << 24;

/// An encoder out of a `tokenizer.json`.
#[derive(Debug)]
pub(super) struct HfEncoder {
    /// Whether special tokens are parsed is a state of the crate's tokenizer, hence the lock.
    inner: Mutex<tokenizers::Tokenizer>,
}

/// The parts of the file that decide how tokens are written.
#[derive(Deserialize)]
struct Head {
    /// Sorted by id once read.
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    decoder: Option<Value>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    #[serde(default)]
    model: ModelHead,
}

#[derive(Default, Deserialize)]
struct ModelHead {
    continuing_subword_prefix: Option<String>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    special: bool,
}

impl HfEncoder {
    /// Builds vocabulary and encoder.
    ///
    /// # Errors
    /// Text that is no `tokenizer.json`, a decoder other than those of byte-level BPE and
    /// SentencePiece, ids with gaps.
    pub(super) fn build(json: &str) -> Result<(Vocabulary, Self)> {
        let mut head: Head = serde_json::from_str(json).map_err(|e| damaged("(whole file)", &e))?;
        head.added_tokens.sort_unstable_by_key(|t| t.id);
        // The crate cuts as many bytes off the right half of every merge, and panics where it has fewer.
        let prefix = head.model.continuing_subword_prefix.as_deref();
        if prefix.is_some_and(|prefix| !prefix.is_empty()) {
            return Err(ModelError::unsupported(
                FILE,
                "model.continuing_subword_prefix",
                "a mark on tokens inside a word",
                "byte-level BPE and SentencePiece have none: convert the model to GGUF",
            ));
        }
        growth::check(head.normalizer.as_ref(), head.pre_tokenizer.as_ref())?;
        let mut inner = tokenizers::Tokenizer::from_str(json).map_err(|e| damaged("model", &e))?;
        // Cutting and filling up are for batches of training texts; a prompt is taken as it is.
        inner
            .with_truncation(None)
            .map_err(|e| damaged("truncation", &e))?;
        inner.with_padding(None);
        // BOS is put in front by `Tokenizer`, so it has nothing to do; with a template of more sequences than one it
        // panics.
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        // Merges that are left out at random are for training: a text has the same tokens every time.
        if let ModelWrapper::BPE(bpe) = inner.get_model()
            && bpe.dropout.is_some()
        {
            let mut bpe = bpe.clone();
            bpe.dropout = None;
            inner.with_model(bpe);
        }
        let vocab = read_vocabulary(&inner, &head)?;
        Ok((
            vocab,
            Self {
                inner: Mutex::new(inner),
            },
        ))
    }

    /// Appends the tokens of `text`, without those of the file's post-processor.
    ///
    /// # Errors
    /// What the crate refuses to encode.
    pub(super) fn encode(&self, text: &str, parse_special: bool, out: &mut Vec<u32>) -> Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.set_encode_special_tokens(!parse_special);
        let encoding = inner
            .encode_fast(text, false)
            .map_err(|e| damaged("model", &e))?;
        out.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

fn damaged(field: &str, error: &dyn std::fmt::Display) -> ModelError {
    ModelError::damaged(Path::new(FILE), field, error.to_string())
}

fn read_vocabulary(inner: &tokenizers::Tokenizer, head: &Head) -> Result<Vocabulary> {
    let Decoding {
        spelling,
        byte_fallback,
        strips_first_space,
    } = Decoding::of(head)?;
    let n_model = inner.get_model().get_vocab_size();
    check_ids(inner, &head.added_tokens)?;
    let n_added = head.added_tokens.last().map_or(0, |t| t.id + 1);
    let n_tokens = u32::try_from(n_model).unwrap_or(u32::MAX).max(n_added);
    if n_tokens > MAX_TOKENS {
        let problem = format!("a vocabulary of {n_tokens} ids");
        return Err(damaged("model.vocab", &problem));
    }
    let mut vocab = Vocabulary::with_capacity(n_tokens as usize, 8 * n_model);
    vocab.strips_first_space = strips_first_space;
    let mut n_found = 0;
    for id in 0..n_tokens {
        let text = inner.get_model().id_to_token(id);
        n_found += usize::from(text.is_some());
        let added = head.added_tokens.binary_search_by_key(&id, |t| t.id);
        let added = added.ok().map(|at| &head.added_tokens[at]);
        let text = match added {
            Some(_) => inner.id_to_token(id),
            None => text,
        };
        let text = text.unwrap_or_default();
        let kind = match added {
            Some(token) if token.special => TokenKind::Control,
            Some(_) => TokenKind::UserDefined,
            None if byte_fallback && byte_token(&text).is_some() => TokenKind::Byte,
            None => TokenKind::Normal,
        };
        vocab.push(&text, kind, spelling);
    }
    if n_found != n_model {
        return Err(ModelError::unsupported(
            FILE,
            "model.vocab",
            "a vocabulary whose ids have gaps",
            "renumber the tokens from 0 without gaps",
        ));
    }
    Ok(vocab)
}

/// Added tokens must have the ids that the crate gives them, which follow the model's without a gap whatever the file
/// says: others would never come out of a text. So the ids that there are take no more memory than the tokens.
fn check_ids(inner: &tokenizers::Tokenizer, added: &[AddedToken]) -> Result<()> {
    let given = |token: &AddedToken| inner.token_to_id(&token.content);
    let Some(other) = added.iter().find(|token| given(token) != Some(token.id)) else {
        return Ok(());
    };
    let AddedToken { id, content, .. } = other;
    let problem = match given(other) {
        Some(given) => format!("{content:?} has id {id} here, and id {given} by its place"),
        None => format!("the token of id {id} is empty"),
    };
    Err(damaged("added_tokens.id", &problem))
}

/// How the file's decoder turns tokens into text.
struct Decoding {
    spelling: Spelling,
    byte_fallback: bool,
    strips_first_space: bool,
}

impl Decoding {
    fn of(head: &Head) -> Result<Self> {
        let mut steps = Vec::new();
        if let Some(decoder) = &head.decoder {
            flatten(decoder, &mut steps);
        }
        let step = |kind: &str| steps.iter().find(|s| s["type"] == kind);
        if step("ByteLevel").is_some() {
            return Ok(Self {
                spelling: Spelling::ByteAlphabet,
                byte_fallback: false,
                strips_first_space: false,
            });
        }
        let replaces = step("Replace")
            .is_some_and(|s| s["pattern"]["String"] == "\u{2581}" && s["content"] == " ");
        let metaspace = step("Metaspace");
        if !replaces && metaspace.is_none() {
            let kinds: Vec<_> = steps
                .iter()
                .map(|s| s["type"].as_str().unwrap_or("?"))
                .collect();
            return Err(ModelError::unsupported(
                FILE,
                "decoder",
                format!("a decoder of [{}]", kinds.join(", ")),
                "use a model with a ByteLevel, Metaspace or Replace decoder, or convert it to GGUF",
            ));
        }
        let prepends = metaspace.is_some_and(|s| s["prepend_scheme"] != "never");
        let strips = step("Strip").is_some_and(|s| s["content"] == " " && s["start"] != 0);
        Ok(Self {
            spelling: Spelling::SentencePiece,
            byte_fallback: step("ByteFallback").is_some(),
            strips_first_space: prepends || strips,
        })
    }
}

/// Appends the steps of a decoder, normalizer or pre-tokenizer, sequences resolved.
fn flatten<'v>(whole: &'v Value, steps: &mut Vec<&'v Value>) {
    let parts = ["decoders", "normalizers", "pretokenizers"];
    match parts.iter().find_map(|name| whole[*name].as_array()) {
        Some(parts) => parts.iter().for_each(|part| flatten(part, steps)),
        None => steps.push(whole),
    }
}

#[cfg(test)]
mod tests;
