//! SentencePiece's BPE: a text is cut into characters, and the neighbours that form the token with
//! the highest score merge first; what is no token in the end is spelled in byte tokens.
//!
//! Control, unknown and byte tokens never come out of ordinary text, as in SentencePiece itself:
//! a prompt that spells out `</s>` does not end the sequence unless special tokens are parsed.

use std::path::Path;

use super::merge::{Merge, Merger, NONE};
use super::vocabulary::{Spelling, TextIndex, TokenKind, Vocabulary, byte_token};
use crate::error::{ModelError, Result};

/// What stands for a space in the vocabulary.
const ESCAPED_SPACE: char = '\u{2581}';

/// A SentencePiece encoder over a [`Vocabulary`].
#[derive(Debug)]
pub(super) struct SentencePiece {
    index: TextIndex,
    /// Rank of each token, lower is better. `[n_tokens]`
    ranks: Vec<u32>,
    /// Token of each byte, [`NONE`] where the vocabulary has none. `[256]`
    byte_ids: Vec<u32>,
    unknown: Option<u32>,
    add_space_prefix: bool,
    /// No token holds a space behind another character, so that words can be merged one by one.
    words_are_separate: bool,
}

impl SentencePiece {
    /// Builds vocabulary and encoder; `tokens` are freed as they are read.
    ///
    /// # Errors
    /// A score that is not a number.
    pub(super) fn build(
        tokens: Vec<String>,
        scores: &[f32],
        types: &[i32],
        add_space_prefix: bool,
        path: &Path,
    ) -> Result<(Vocabulary, Self)> {
        let n_bytes = tokens.iter().map(String::len).sum();
        let mut vocab = Vocabulary::with_capacity(tokens.len(), n_bytes);
        vocab.strips_first_space = add_space_prefix;
        let mut index = TextIndex::with_capacity(tokens.len());
        let mut byte_ids = vec![NONE; 256];
        let mut unknown = None;
        let mut words_are_separate = true;
        for (id, text) in (0u32..).zip(tokens) {
            let kind = types
                .get(id as usize)
                .map_or(TokenKind::Normal, |&t| TokenKind::from_ggml(t));
            if vocab.push(&text, kind, Spelling::SentencePiece) {
                index.insert(id, &vocab);
                let bytes = vocab.bytes(id).unwrap_or_default();
                words_are_separate &= !bytes.windows(2).any(|b| b[0] != b' ' && b[1] == b' ');
            }
            match kind {
                TokenKind::Byte => {
                    if let Some(byte) = byte_token(&text) {
                        byte_ids[usize::from(byte)] = id;
                    }
                }
                TokenKind::Unknown => unknown = unknown.or(Some(id)),
                _ => {}
            }
        }
        let ranks = scores
            .iter()
            .enumerate()
            .map(|(id, &score)| {
                rank_of(score).ok_or_else(|| {
                    let problem = format!("the score of token {id} is not a number");
                    ModelError::damaged(path, "tokenizer.ggml.scores", problem)
                })
            })
            .collect::<Result<_>>()?;
        let encoder = Self {
            index,
            ranks,
            byte_ids,
            unknown,
            add_space_prefix,
            words_are_separate,
        };
        Ok((vocab, encoder))
    }

    /// Appends the tokens of `text`, which holds no special token. `begins` says that nothing or a
    /// special token stands before it.
    pub(super) fn encode(
        &self,
        text: &str,
        begins: bool,
        vocab: &Vocabulary,
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        let mut spaced = String::with_capacity(text.len() + 1);
        if begins && self.add_space_prefix {
            spaced.push(' ');
        }
        // The vocabulary cannot tell the escape from the space it stands for.
        spaced.extend(
            text.chars()
                .map(|c| if c == ESCAPED_SPACE { ' ' } else { c }),
        );
        let mut rest = &*spaced;
        while !rest.is_empty() {
            let end = if self.words_are_separate {
                word_end(rest)
            } else {
                rest.len()
            };
            let (word, tail) = rest.split_at(end);
            self.encode_run(word, vocab, merger, out);
            rest = tail;
        }
    }

    /// Appends the tokens of `run`, in which any neighbours may merge.
    fn encode_run(&self, run: &str, vocab: &Vocabulary, merger: &mut Merger, out: &mut Vec<u32>) {
        let bytes = run.as_bytes();
        let range = |start: u32, len: u32| start as usize..(start + len) as usize;
        let token = |start: u32, len: u32| self.index.get(&bytes[range(start, len)], vocab);
        merger.clear();
        for (at, c) in run.char_indices() {
            let (at, len) = (at as u32, c.len_utf8() as u32);
            merger.push(at, len, token(at, len).unwrap_or(NONE));
        }
        merger.merge(|left, right| {
            let merged = token(left.start, left.len + right.len)?;
            let rank = *self.ranks.get(merged as usize)?;
            Some(Merge { rank, merged })
        });
        for symbol in merger.symbols() {
            match symbol.id {
                NONE => self.spell(&bytes[range(symbol.start, symbol.len)], out),
                id => out.push(id),
            }
        }
    }

    /// Appends the byte tokens of `run`; the unknown token where one of them is missing.
    fn spell(&self, run: &[u8], out: &mut Vec<u32>) {
        let ids = run.iter().map(|&byte| self.byte_ids[usize::from(byte)]);
        if ids.clone().all(|id| id != NONE) {
            out.extend(ids);
        } else {
            out.extend(self.unknown);
        }
    }
}

/// End of the first word of `text` with the spaces in front of it.
fn word_end(text: &str) -> usize {
    let boundary = text
        .as_bytes()
        .windows(2)
        .position(|b| b[0] != b' ' && b[1] == b' ');
    boundary.map_or(text.len(), |at| at + 1)
}

/// Turns a score, of which the highest merges first, into a rank, of which the lowest does.
fn rank_of(score: f32) -> Option<u32> {
    let bits = (score + 0.0).to_bits(); // -0.0 + 0.0 is 0.0: zeros of both signs are equal
    let ascending = if bits >> 31 == 0 {
        bits | (1 << 31)
    } else {
        !bits
    };
    (!score.is_nan()).then_some(!ascending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_scores_downwards() {
        let scores = [
            f32::INFINITY,
            2.0,
            1.0,
            1e-40,
            0.0,
            -1e-40,
            -1.0,
            -31740.0,
            f32::NEG_INFINITY,
        ];
        for pair in scores.windows(2) {
            assert!(rank_of(pair[0]) < rank_of(pair[1]), "{pair:?}");
        }
        assert_eq!(rank_of(-0.0), rank_of(0.0));
        assert_eq!(rank_of(f32::NAN), None);
    }
}
