//! From tokens back to text, as they come: characters whose bytes are spread over several tokens
//! are held back until they are whole.

use std::sync::Arc;

use super::vocabulary::Vocabulary;

/// Where a detokenized run of tokens stands in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextPosition {
    /// At the beginning: the space that some tokenizers put in front of every text is taken away.
    Start,
    /// After other text, as a reply follows its prompt: every space is kept.
    Continuation,
}

/// Turns a stream of tokens into a stream of text. Pushing the tokens one by one and finishing gives
/// exactly the text of decoding them together.
///
/// Bytes that are not UTF-8 become `U+FFFD` as in [`String::from_utf8_lossy`]; an incomplete
/// character is held back until the tokens that complete it arrive, or [`Self::finish`] is called.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    vocab: Arc<Vocabulary>,
    skip_special: bool,
    /// Control tokens that are not skipped.
    shown: Vec<u32>,
    strip_space: bool,
    /// Bytes not yet given out: between calls, the beginning of one character.
    pending: Vec<u8>,
}

impl Detokenizer {
    pub(super) fn new(vocab: Arc<Vocabulary>, skip_special: bool, position: TextPosition) -> Self {
        let strip_space = vocab.strips_first_space && position == TextPosition::Start;
        Self {
            vocab,
            skip_special,
            shown: Vec::new(),
            strip_space,
            pending: Vec::with_capacity(64),
        }
    }

    /// Shows the names of these control tokens, whatever becomes of others.
    #[must_use]
    pub fn showing(mut self, shown: Vec<u32>) -> Self {
        self.shown = shown;
        self
    }

    /// The text that `id` completes; empty where it completes none.
    pub fn push(&mut self, id: u32) -> String {
        let mut out = String::new();
        self.push_into(id, &mut out);
        out
    }

    /// Appends the text that `id` completes to `out`; allocates nothing where `out` has room for it.
    pub fn push_into(&mut self, id: u32, out: &mut String) {
        let skips = self.skip_special && !self.shown.contains(&id);
        let mut bytes = self.vocab.shown(id, skips);
        if self.strip_space && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.strip_space = false;
        }
        self.pending.extend_from_slice(bytes);
        let mut taken = 0;
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            taken += chunk.valid().len();
            if chunk.invalid().is_empty() {
                continue;
            }
            let at_end = taken + chunk.invalid().len() == self.pending.len();
            if at_end && may_be_completed(chunk.invalid()) {
                break;
            }
            out.push(char::REPLACEMENT_CHARACTER);
            taken += chunk.invalid().len();
        }
        self.pending.drain(..taken);
    }

    /// Ends the text: what is left of an incomplete character becomes `U+FFFD`.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Whether more bytes could make `bytes`, which are not a character, one.
fn may_be_completed(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}
