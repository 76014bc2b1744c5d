//! Byte-level BPE (GPT-2, Llama 3, Qwen 2, SmolLM): a text is cut into words, a word into bytes, and
//! the bytes merge in the order of a list of merges.

use std::path::Path;

use super::merge::{Merger, NONE};
use super::merge_table::MergeTable;
use super::pairs::BytePairs;
use super::pre_tokenizer::PreTokenizer;
use super::room::{Room, too_long};
use super::unicode_class::CharClasses;
use super::vocabulary::{Spelling, TextIndex, TokenKind, Vocabulary};
use crate::error::Result;

/// A byte-level BPE encoder over a [`Vocabulary`].
#[derive(Debug)]
pub(super) struct ByteLevelBpe {
    pre: PreTokenizer,
    classes: CharClasses,
    index: TextIndex,
    merges: MergeTable,
    /// Token of each byte, [`NONE`] if the vocabulary has none. `[256]`
    byte_ids: Vec<u32>,
    /// Bytes that merges may join.
    pairs: BytePairs,
}

impl ByteLevelBpe {
    /// Builds vocabulary and encoder; `tokens` and `merges` are freed as they are read.
    ///
    /// # Errors
    /// A merge of or into something that is no token.
    pub(super) fn build(
        pre: PreTokenizer,
        tokens: Vec<String>,
        types: &[i32],
        merges: Vec<String>,
        path: &Path,
    ) -> Result<(Vocabulary, Self)> {
        let n_bytes = tokens.iter().map(String::len).sum();
        let mut vocab = Vocabulary::with_capacity(tokens.len(), n_bytes);
        let mut index = TextIndex::with_capacity(tokens.len());
        for (id, text) in tokens.into_iter().enumerate() {
            let kind = types
                .get(id)
                .map_or(TokenKind::Normal, |&t| TokenKind::from_ggml(t));
            if vocab.push(&text, kind, Spelling::ByteAlphabet) {
                index.insert(id as u32, &vocab);
            }
        }
        let byte_ids = (0..=u8::MAX)
            .map(|byte| index.get(&[byte], &vocab).unwrap_or(NONE))
            .collect();
        // Some files declare a token special that is the product of merges. Entered last, it can be
        // found as such without hiding an ordinary token of the same bytes.
        for id in 0..vocab.len() as u32 {
            if vocab.kind(id) == Some(TokenKind::Control) {
                index.insert(id, &vocab);
            }
        }
        let merges = MergeTable::build(merges, Spelling::ByteAlphabet, (&index, &vocab), path)?;
        let mut pairs = BytePairs::new();
        for merged in merges.merged() {
            pairs.add(vocab.bytes(merged).unwrap_or_default());
        }
        let classes = CharClasses::new();
        Ok((
            vocab,
            Self {
                pre,
                classes,
                index,
                merges,
                byte_ids,
                pairs,
            },
        ))
    }

    /// Appends the tokens of `text`, which holds no special token, until there are more than fit. A byte that the
    /// vocabulary has no token for is left out, as llama.cpp and the `tokenizers` crate do.
    ///
    /// # Errors
    /// A long word that cannot be cut.
    pub(super) fn encode(
        &self,
        text: &str,
        vocab: &Vocabulary,
        merger: &mut Merger,
        (room, out): (Room, &mut Vec<u32>),
    ) -> Result<()> {
        let mut done = Ok(());
        self.pre.split(text, &self.classes, &mut |word| {
            if done.is_ok() && room.holds(out) {
                done = self.encode_word(word, vocab, merger, (room, out));
            }
        });
        done
    }

    fn encode_word(
        &self,
        word: &str,
        vocab: &Vocabulary,
        merger: &mut Merger,
        (room, out): (Room, &mut Vec<u32>),
    ) -> Result<()> {
        if self.pre.ignores_merges()
            && let Some(id) = self.index.get(word.as_bytes(), vocab)
            && vocab.kind(id) != Some(TokenKind::Control)
        {
            out.push(id);
            return Ok(());
        }
        let mut rest = word.as_bytes();
        while !rest.is_empty() && room.holds(out) {
            let end = self.pairs.first_part(rest, room.run);
            let (part, tail) = rest.split_at(end.ok_or_else(|| too_long(room.run))?);
            merger.clear();
            for (at, byte) in part.iter().enumerate() {
                let id = self.byte_ids[usize::from(*byte)];
                merger.push(at as u32, 1, id);
            }
            merger.merge(|left, right| self.merges.get(left.id, right.id));
            out.extend(merger.symbols().map(|s| s.id).filter(|&id| id != NONE));
            rest = tail;
        }
        Ok(())
    }
}
