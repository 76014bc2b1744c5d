//! Merges by the pair of tokens that they join.

use std::path::Path;

use twox_hash::XxHash3_64;

use super::byte_alphabet;
use super::merge::{Merge, NONE};
use super::vocabulary::{Spelling, TextIndex, Vocabulary, push_unescaped, slot_count};
use crate::error::{ModelError, Result};

/// The field whose content the merges are, for messages.
const MERGES: &str = "tokenizer.ggml.merges";

/// From a pair of tokens to its merge: an open-addressing table of indices into the list.
#[derive(Debug)]
pub(super) struct MergeTable {
    /// Left, right and merged token by rank.
    merges: Vec<[u32; 3]>,
    slots: Vec<u32>,
}

impl MergeTable {
    /// Reads merges written as `"left right"` in the spelling of the vocabulary; they are freed as they are read.
    ///
    /// # Errors
    /// A merge of or into something that is no token.
    pub(super) fn build(
        list: Vec<String>,
        spelling: Spelling,
        (index, vocab): (&TextIndex, &Vocabulary),
        path: &Path,
    ) -> Result<Self> {
        let mut table = Self {
            merges: Vec::with_capacity(list.len()),
            slots: vec![NONE; slot_count(list.len())],
        };
        let mut bytes = Vec::new();
        for (rank, merge) in list.into_iter().enumerate() {
            let pair = parse(&merge, spelling, (index, vocab), &mut bytes).ok_or_else(|| {
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

    /// What two tokens become.
    pub(super) fn get(&self, left: u32, right: u32) -> Option<Merge> {
        let rank = self.slots[self.find(left, right)];
        let merge = self.merges.get(rank as usize)?;
        Some(Merge {
            rank,
            merged: merge[2],
        })
    }

    /// The tokens that merges make.
    pub(super) fn merged(&self) -> impl Iterator<Item = u32> {
        self.merges.iter().map(|&[.., merged]| merged)
    }

    /// The slot that holds the pair, or the empty one where it belongs.
    fn find(&self, left: u32, right: u32) -> usize {
        let mask = self.slots.len() - 1;
        let key = (u64::from(left) << 32) | u64::from(right);
        let mut slot = XxHash3_64::oneshot(&key.to_le_bytes()) as usize & mask;
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
fn parse(
    merge: &str,
    spelling: Spelling,
    (index, vocab): (&TextIndex, &Vocabulary),
    bytes: &mut Vec<u8>,
) -> Option<[u32; 3]> {
    let spell = |text: &str, bytes: &mut Vec<u8>| match spelling {
        Spelling::ByteAlphabet => byte_alphabet::decode_into(text, bytes),
        Spelling::SentencePiece => {
            push_unescaped(text, bytes);
            true
        }
    };
    let (left, right) = merge.split_once(' ')?;
    bytes.clear();
    if !spell(left, bytes) {
        return None;
    }
    let middle = bytes.len();
    if !spell(right, bytes) {
        return None;
    }
    Some([
        index.get(&bytes[..middle], vocab)?,
        index.get(&bytes[middle..], vocab)?,
        index.get(bytes, vocab)?,
    ])
}
