//! SentencePiece's BPE: a text is cut into characters, and the neighbours that form the token with
//! the highest score merge first; what is no token in the end is spelled in byte tokens.
//!
//! Control, unknown and byte tokens never come out of ordinary text, as in SentencePiece itself:
//! a prompt that spells out `</s>` does not end the sequence unless special tokens are parsed.

use std::path::Path;

use super::merge::{Merge, Merger, NONE};
use super::pairs::BytePairs;
use super::room::{Room, too_long};
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
    /// Bytes that stand side by side in a token.
    pairs: BytePairs,
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
        let mut pairs = BytePairs::new();
        for (id, text) in (0u32..).zip(tokens) {
            let kind = types
                .get(id as usize)
                .map_or(TokenKind::Normal, |&t| TokenKind::from_ggml(t));
            if vocab.push(&text, kind, Spelling::SentencePiece) {
                index.insert(id, &vocab);
                pairs.add(vocab.bytes(id).unwrap_or_default());
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
            pairs,
        };
        Ok((vocab, encoder))
    }

    /// Appends the tokens of `text`, which holds no special token, until there are more than fit. `begins` says that
    /// nothing or a special token stands before it.
    ///
    /// # Errors
    /// A long run of characters that may all merge.
    pub(super) fn encode(
        &self,
        (text, begins): (&str, bool),
        vocab: &Vocabulary,
        merger: &mut Merger,
        (room, out): (Room, &mut Vec<u32>),
    ) -> Result<()> {
        let mut run = String::new();
        if begins && self.add_space_prefix {
            run.push(' ');
        }
        // Begin of the last characters of the run that may merge with each other.
        let mut apart = 0;
        for c in text.chars() {
            if !room.holds(out) {
                return Ok(());
            }
            // The vocabulary cannot tell the escape from the space it stands for.
            let c = if c == ESCAPED_SPACE { ' ' } else { c };
            let before = run.as_bytes().last().copied();
            if before.is_some_and(|before| self.pairs.are_apart(before, first_byte(c))) {
                apart = run.len();
                if c == ' ' && before != Some(b' ') {
                    self.encode_run(&run, vocab, merger, out);
                    run.clear();
                    apart = 0;
                }
            }
            if run.len() + c.len_utf8() > room.run {
                if apart == 0 {
                    return Err(too_long(room.run));
                }
                self.encode_run(&run[..apart], vocab, merger, out);
                run.drain(..apart);
                apart = 0;
            }
            run.push(c);
        }
        if room.holds(out) {
            self.encode_run(&run, vocab, merger, out);
        }
        Ok(())
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

fn first_byte(c: char) -> u8 {
    c.encode_utf8(&mut [0; 4]).as_bytes()[0]
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
