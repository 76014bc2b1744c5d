//! Which parts a `tokenizer.json` may be made of: those that models with byte-level BPE or SentencePiece's BPE have,
//! with parameters that the crate can take. With others it panics, or encodes what cannot be decoded here.

use std::fmt::Display;

use serde_json::Value;

use super::{AddedToken, FILE, Head, damaged, flatten};
use crate::error::{ModelError, Result};

/// Longest regular expression; the longest known has 260 bytes.
const MAX_REGEX: usize = 4096;
/// Most groups and classes in one: the crate's parser calls itself for each.
const MAX_GROUPS: usize = 200;
/// Most steps of one kind.
const MAX_STEPS: usize = 64;

const NORMALIZERS: &[&str] = &["NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace"];
const PRE_TOKENIZERS: &[&str] = &["ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"];
const DECODERS: &[&str] = &[
    "ByteLevel",
    "ByteFallback",
    "Fuse",
    "Metaspace",
    "Replace",
    "Strip",
];

/// Checks every part of the file but its post-processor, which is not used.
///
/// # Errors
/// A part that is not known, or known to fail; the field is named.
pub(super) fn check(head: &Head) -> Result<()> {
    // The crate takes a model that does not say its type for whatever fits.
    if head.model.kind.as_deref().is_some_and(|kind| kind != "BPE") {
        let kind = head.model.kind.as_deref().unwrap_or_default();
        return Err(unsupported(
            "model.type",
            format!("a model of type {kind:?}"),
        ));
    }
    // The crate cuts as many bytes off the right half of every merge, and panics where it has fewer.
    let prefix = head.model.continuing_subword_prefix.as_deref();
    if prefix.is_some_and(|prefix| !prefix.is_empty()) {
        let problem = "a mark on tokens inside a word";
        return Err(unsupported("model.continuing_subword_prefix", problem));
    }
    for (field, whole, known) in [
        ("normalizer", &head.normalizer, NORMALIZERS),
        ("pre_tokenizer", &head.pre_tokenizer, PRE_TOKENIZERS),
        ("decoder", &head.decoder, DECODERS),
    ] {
        let steps = steps_of(whole.as_ref());
        if steps.len() > MAX_STEPS {
            return Err(unsupported(field, format!("{} steps", steps.len())));
        }
        for step in steps {
            let kind = step["type"].as_str().unwrap_or("?");
            if !known.contains(&kind) {
                return Err(unsupported(field, format!("a step of type {kind:?}")));
            }
            check_step(field, kind, step)?;
        }
    }
    check_added(&head.added_tokens)
}

/// The steps of a part, sequences resolved.
pub(super) fn steps_of(whole: Option<&Value>) -> Vec<&Value> {
    let mut steps = Vec::new();
    if let Some(whole) = whole.filter(|whole| !whole.is_null()) {
        flatten(whole, &mut steps);
    }
    steps
}

fn check_step(field: &str, kind: &str, step: &Value) -> Result<()> {
    let text = |name: &str| step[name].as_str().is_some_and(|text| !text.is_empty());
    let needs = |there: bool, what: &str| match there {
        true => Ok(()),
        false => Err(damaged(
            field,
            &format!("{kind}: {what} is missing or empty"),
        )),
    };
    match kind {
        "Prepend" => needs(text("prepend"), "prepend"),
        "Metaspace" => needs(text("replacement"), "replacement"),
        "Replace" if field == "decoder" => Ok(()),
        "Replace" => {
            let pattern = step["pattern"]["String"].as_str();
            if step["pattern"]["Regex"].is_string() {
                return Err(unsupported(field, "replacing by a regular expression"));
            }
            needs(pattern.is_some_and(|p| !p.is_empty()), "pattern.String")?;
            needs(text("content"), "content")
        }
        "Split" => {
            let (text, regex) = (&step["pattern"]["String"], &step["pattern"]["Regex"]);
            let pattern = text.as_str().or_else(|| regex.as_str()).unwrap_or_default();
            needs(!pattern.is_empty(), "pattern")?;
            let groups = pattern.bytes().filter(|b| matches!(b, b'(' | b'[')).count();
            if regex.is_string() && (pattern.len() > MAX_REGEX || groups > MAX_GROUPS) {
                let size = format!("{} bytes with {groups} groups", pattern.len());
                return Err(unsupported(
                    field,
                    format!("a regular expression of {size}"),
                ));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A token that swallows the spaces behind it and one that begins with a space would both claim them: the crate then
/// cuts a text backwards, and panics.
fn check_added(added: &[AddedToken]) -> Result<()> {
    let spaced = |t: &&AddedToken| t.content.starts_with(char::is_whitespace);
    if !added.iter().any(|t| t.rstrip) {
        return Ok(());
    }
    match added.iter().find(spaced) {
        Some(token) => {
            let content = &token.content;
            let problem = format!("{content:?} begins with a space, which others take away");
            Err(damaged("added_tokens.rstrip", &problem))
        }
        None => Ok(()),
    }
}

fn unsupported(field: &str, problem: impl Display) -> ModelError {
    ModelError::unsupported(
        FILE,
        field,
        problem.to_string(),
        "byte-level BPE and SentencePiece's BPE do without: convert the model to GGUF",
    )
}
