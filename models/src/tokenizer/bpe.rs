//! Byte-level BPE (GPT-2, Llama 3, Qwen 2, SmolLM): a text is cut into words, a word into bytes, and
//! the bytes merge in the order of a list of merges.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::byte_alphabet;
use super::merge::{Merge, Merger, NONE};
use super::pairs::BytePairs;
use super::pre_tokenizer::PreTokenizer;
use super::room::{Room, too_long};
use super::unicode_class::CharClasses;
use super::vocabulary::{Spelling, TextIndex, TokenKind, Vocabulary, slot_count};
use crate::error::{ModelError, Result};

/// The field whose content the merges are, for messages.
const MERGES: &str = "tokenizer.ggml.merges";

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
        let merges = MergeTable::build(merges, &index, &vocab, path)?;
        let mut pairs = BytePairs::new();
        for [.., merged] in &merges.merges {
            pairs.add(vocab.bytes(*merged).unwrap_or_default());
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

/// From a pair of tokens to its merge: an open-addressing table of indices into the list.
#[derive(Debug)]
struct MergeTable {
    /// Left, right and merged token by rank.
    merges: Vec<[u32; 3]>,
    slots: Vec<u32>,
}

impl MergeTable {
    fn build(
        list: Vec<String>,
        index: &TextIndex,
        vocab: &Vocabulary,
        path: &Path,
    ) -> Result<Self> {
        let mut table = Self {
            merges: Vec::with_capacity(list.len()),
            slots: vec![NONE; slot_count(list.len())],
        };
        let mut bytes = Vec::new();
        for (rank, merge) in list.into_iter().enumerate() {
            let pair = parse_merge(&merge, index, vocab, &mut bytes).ok_or_else(|| {
                let problem = format!(
                    "merge {rank} ({merge:?}) is not a pair of tokens whose union is a token"
                );
                ModelError::damaged(path, MERGES, problem)
            })?;
            let slot = table.find(pair[0], pair[1]);
            table.merges.push(pair);
            // The first of equal pairs has the best rank; a later one is never found.
            if table.slots[slot] == NONE {
                table.slots[slot] = rank as u32;
            }
        }
        Ok(table)
    }

    fn get(&self, left: u32, right: u32) -> Option<Merge> {
        let rank = self.slots[self.find(left, right)];
        let merge = self.merges.get(rank as usize)?;
        Some(Merge {
            rank,
            merged: merge[2],
        })
    }

    /// The slot that holds the pair, or the empty one where it belongs.
    fn find(&self, left: u32, right: u32) -> usize {
        let mask = self.slots.len() - 1;
        let key = (u64::from(left) << 32) | u64::from(right);
        let mut slot = xxh3_64(&key.to_le_bytes()) as usize & mask;
        while let Some(&[l, r, _]) = self.merges.get(self.slots[slot] as usize) {
            if (l, r) == (left, right) {
                break;
            }
            slot = (slot + 1) & mask;
        }
        slot
    }
}

/// Left, right and merged token of a merge written `"left right"`.
fn parse_merge(
    merge: &str,
    index: &TextIndex,
    vocab: &Vocabulary,
    bytes: &mut Vec<u8>,
) -> Option<[u32; 3]> {
    let (left, right) = merge.split_once(' ')?;
    bytes.clear();
    if !byte_alphabet::decode_into(left, bytes) {
        return None;
    }
    let middle = bytes.len();
    if !byte_alphabet::decode_into(right, bytes) {
        return None;
    }
    Some([
        index.get(&bytes[..middle], vocab)?,
        index.get(&bytes[middle..], vocab)?,
        index.get(bytes, vocab)?,
    ])
}
