//! A Hugging Face `tokenizer.json`: encoded by the `tokenizers` crate, decoded here.

mod adjacency;
mod components;
mod continuing;
mod growth;
pub(super) mod outline;
mod seams;
mod symbols;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{
    Model, ModelWrapper, OffsetReferential, OffsetType, PreTokenizer, PreTokenizerWrapper,
};

use super::detokenizer::TextPosition;
use super::room::{Room, too_long};
use super::special::Names;
use super::vocabulary::{Spelling, TokenKind, Vocabulary, byte_token};
use crate::error::{ModelError, Result};
use crate::limits::MAX_TOKENS;
use continuing::{Section, begins_once, without_prefix};
use seams::{Seams, is_metaspace};

/// Name of the file, for messages about text that came without its path.
const FILE: &str = "tokenizer.json";

/// Most that the crate allocates for a byte of the normalised text: for each word its text, twice, where each of its
/// bytes came from, and the symbols that merge. Tests measure 140; the allocator rounds up.
const BYTES_PER_BYTE: u64 = 224;

/// An encoder out of a `tokenizer.json`.
#[derive(Debug)]
pub(super) struct HfEncoder {
    /// Whether special tokens are parsed is a state of the crate's tokenizer, hence the lock.
    inner: Mutex<tokenizers::Tokenizer>,
    /// Its pre-tokenizer for texts that go on, if that is another one.
    without_prefix: Option<PreTokenizerWrapper>,
    seams: Seams,
    /// Pieces of a section go on as sections do: nothing is put in front of them.
    goes_on: bool,
    /// Most bytes that the steps before the model make of one.
    growth: usize,
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
    #[serde(rename = "type")]
    kind: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    unk_token: Option<String>,
    byte_fallback: Option<bool>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

impl HfEncoder {
    /// Builds vocabulary and encoder.
    ///
    /// # Errors
    /// Text that is no `tokenizer.json`, or too much of one; parts other than those of byte-level BPE and
    /// SentencePiece's BPE; ids with gaps.
    pub(super) fn build(json: &str) -> Result<(Vocabulary, Self)> {
        outline::check(json)?;
        let mut head: Head = serde_json::from_str(json).map_err(|e| damaged("(whole file)", &e))?;
        head.added_tokens.sort_unstable_by_key(|t| t.id);
        components::check(&head)?;
        let growth = growth::check(head.normalizer.as_ref(), head.pre_tokenizer.as_ref())?;
        let mut inner = guarded("model", || tokenizers::Tokenizer::from_str(json))?;
        // Cutting and filling up are for batches of training texts; a prompt is taken as it is.
        inner
            .with_truncation(None)
            .map_err(|e| damaged("truncation", &e))?;
        inner.with_padding(None);
        // BOS is put in front by `Tokenizer`, so it has nothing to do; with a template of more sequences than one it
        // panics.
        inner.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        let ModelWrapper::BPE(bpe) = inner.get_model() else {
            return Err(ModelError::unsupported(
                FILE,
                "model.type",
                "a model other than BPE",
                "convert the model to GGUF",
            ));
        };
        // Merges that are left out at random are for training: a text has the same tokens every time.
        if bpe.dropout.is_some() {
            let mut bpe = bpe.clone();
            bpe.dropout = None;
            inner.with_model(bpe);
        }
        let vocab = read_vocabulary(&inner, &head)?;
        let ids = 0..vocab.len() as u32;
        let seams = Seams::of(
            &head,
            ids.filter_map(|id| inner.get_model().id_to_token(id)),
        );
        let encoder = Self {
            without_prefix: inner.get_pre_tokenizer().and_then(without_prefix),
            inner: Mutex::new(inner),
            seams,
            goes_on: is_metaspace(&head),
            growth,
        };
        Ok((vocab, encoder))
    }

    /// Whether something is put in front of the first text only, and not of those behind added tokens.
    pub(super) fn begins_once(&self) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.get_pre_tokenizer().is_some_and(begins_once)
    }

    /// Most memory that encoding takes for each byte that is encoded at once.
    pub(super) fn bytes_per_byte(&self) -> u64 {
        BYTES_PER_BYTE * self.growth as u64
    }

    /// Appends the tokens of `text`, without those of the file's post-processor, until there are more than fit. The
    /// crate gets what stands between two breaks on its own.
    ///
    /// # Errors
    /// What the crate refuses to encode, or a text without a place to cut it.
    pub(super) fn encode(
        &self,
        (text, position): (&str, TextPosition),
        names: Names<'_>,
        room: Room,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.set_encode_special_tokens(matches!(names, Names::Plain));
        let usual = inner.get_pre_tokenizer();
        let mut at = 0;
        for end in names.breaks().iter().copied().chain([text.len()]) {
            let begin = at;
            while at < end && room.holds(out) {
                let rest = &text[at..end];
                let length = self.seams.first_piece(rest, room.piece, room.crate_run);
                let length = length.ok_or_else(|| too_long(room.crate_run))?;
                let continues = at > 0 || position == TextPosition::Continuation;
                let piece = &rest[..length];
                // Pieces of a section are cut where the file's own steps make no difference.
                guarded("model", || {
                    match continues && (at == begin || self.goes_on) {
                        true => self.encode_more(&inner, piece, out),
                        false => encode_piece(&inner, piece, (continues, usual), out),
                    }
                })?;
                at += length;
            }
        }
        Ok(())
    }

    /// Appends the tokens of a piece that goes on where another ended: nothing is put in front of it, only in front of
    /// what follows the first added token in it, where the file wants that.
    fn encode_more(
        &self,
        inner: &tokenizers::Tokenizer,
        piece: &str,
        out: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        let usual = (true, inner.get_pre_tokenizer());
        let Some(without_prefix) = &self.without_prefix else {
            return encode_piece(inner, piece, usual, out);
        };
        let normalizer = Section {
            normalizer: inner.get_normalizer(),
            continues: true,
        };
        let added = inner.get_added_vocabulary();
        let words = added.extract_and_normalize(Some(&normalizer), piece);
        let parts = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let first = parts.first().filter(|(_, _, tokens)| tokens.is_none());
        let (text, rest) = piece.split_at(first.map_or(0, |(_, (_, end), _)| *end));
        encode_piece(inner, text, (true, Some(without_prefix)), out)?;
        encode_piece(inner, rest, usual, out)
    }
}

/// Appends the tokens of a piece, stage by stage as the crate does, but word by word where it makes all tokens first.
fn encode_piece(
    inner: &tokenizers::Tokenizer,
    piece: &str,
    (continues, pre_tokenizer): (bool, Option<&PreTokenizerWrapper>),
    out: &mut Vec<u32>,
) -> tokenizers::Result<()> {
    let normalizer = Section {
        normalizer: inner.get_normalizer(),
        continues,
    };
    let added = inner.get_added_vocabulary();
    let mut words = added.extract_and_normalize(Some(&normalizer), piece);
    if let Some(pre_tokenizer) = pre_tokenizer {
        pre_tokenizer.pre_tokenize(&mut words)?;
    }
    for (word, _, tokens) in words.get_splits(OffsetReferential::Normalized, OffsetType::None) {
        match tokens {
            Some(tokens) => out.extend(tokens.iter().map(|token| token.id)),
            None => out.extend(
                inner
                    .get_model()
                    .tokenize(word)?
                    .iter()
                    .map(|token| token.id),
            ),
        }
    }
    // Remembered words would take more and more memory, up to 80 MB.
    if let ModelWrapper::BPE(bpe) = inner.get_model() {
        bpe.clear_cache();
    }
    Ok(())
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic on this thread would be caught and become an error: a program's panic hook need not print it.
pub fn catches_panics() -> bool {
    GUARDED.get()
}

/// Runs code of others, which may panic; `None` if it does.
pub fn catching<T>(run: impl FnOnce() -> T) -> Option<T> {
    GUARDED.set(true);
    let done = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(false);
    done.ok()
}

/// Runs code of the crate, which panics over files that nobody has tried it with.
///
/// # Errors
/// It fails or panics.
fn guarded<T>(field: &str, run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catching(run) {
        Some(done) => done.map_err(|e| damaged(field, &e)),
        None => Err(ModelError::unsupported(
            FILE,
            field,
            "a tokenizer that the tokenizers crate fails on",
            "convert the model to GGUF",
        )),
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
    if n_tokens as usize > MAX_TOKENS {
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
        if added.is_some_and(|token| token.rstrip) {
            vocab.swallowing.push(id);
        }
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
