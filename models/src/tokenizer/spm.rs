//! SentencePiece's BPE: a text is cut into characters, and the neighbours that form the token with
//! the highest score, or that come first in a list of merges, merge first; what is no token in the
//! end is spelled in byte tokens.
//!
//! Control, unknown and byte tokens never come out of ordinary text, as in SentencePiece itself:
//! a prompt that spells out `</s>` does not end the sequence unless special tokens are parsed.

use std::path::Path;

use super::merge::{Merge, Merger, NONE};
use super::merge_table::MergeTable;
use super::pairs::BytePairs;
use super::room::{Room, too_long};
use super::vocabulary::{Spelling, TextIndex, TokenKind, Vocabulary, byte_token};
use crate::error::{ModelError, Result};

/// What stands for a space in the vocabulary.
const ESCAPED_SPACE: char = '\u{2581}';

/// Which neighbours merge first.
#[derive(Debug)]
enum Order {
    /// Those that form the token of the lowest rank. `[n_tokens]`
    Scores(Vec<u32>),
    /// Those that come first in a list, and none that are not in it.
    Merges(MergeTable),
}

/// A SentencePiece encoder over a [`Vocabulary`].
#[derive(Debug)]
pub(super) struct SentencePiece {
    pieces: Pieces,
    order: Order,
    add_space_prefix: bool,
}

/// What the tokens of a vocabulary are found by.
#[derive(Debug)]
struct Pieces {
    index: TextIndex,
    /// Token of each byte, [`NONE`] where the vocabulary has none. `[256]`
    byte_ids: Vec<u32>,
    unknown: Option<u32>,
    /// Bytes that stand side by side in a token.
    pairs: BytePairs,
}

impl SentencePiece {
    /// Builds vocabulary and encoder; `tokens` are freed as they are read.
    ///
    /// # Errors
    /// A score that is not a number.
    pub(super) fn by_scores(
        tokens: Vec<String>,
        scores: &[f32],
        types: &[i32],
        add_space_prefix: bool,
        path: &Path,
    ) -> Result<(Vocabulary, Self)> {
        let (mut vocab, pieces) = Pieces::read(tokens, types);
        vocab.strips_first_space = add_space_prefix;
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
            pieces,
            order: Order::Scores(ranks),
            add_space_prefix,
        };
        Ok((vocab, encoder))
    }

    /// The same with a list of merges in place of scores, and no space in front of a text.
    ///
    /// # Errors
    /// A merge of or into something that is no token.
    pub(super) fn by_merges(
        tokens: Vec<String>,
        types: &[i32],
        merges: Vec<String>,
        path: &Path,
    ) -> Result<(Vocabulary, Self)> {
        let (vocab, pieces) = Pieces::read(tokens, types);
        // A token that is the product of merges may be declared special all the same.
        let mut index = pieces.index.clone();
        for id in 0..vocab.len() as u32 {
            if vocab.kind(id) == Some(TokenKind::Control) {
                index.insert(id, &vocab);
            }
        }
        let merges = MergeTable::build(merges, Spelling::SentencePiece, (&index, &vocab), path)?;
        let encoder = Self {
            pieces,
            order: Order::Merges(merges),
            add_space_prefix: false,
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
            if before.is_some_and(|before| self.pieces.pairs.are_apart(before, first_byte(c))) {
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
        let token = |start: u32, len: u32| self.pieces.index.get(&bytes[range(start, len)], vocab);
        merger.clear();
        for (at, c) in run.char_indices() {
            let (at, len) = (at as u32, c.len_utf8() as u32);
            merger.push(at, len, token(at, len).unwrap_or(NONE));
        }
        merger.merge(|left, right| match &self.order {
            Order::Scores(ranks) => {
                let merged = token(left.start, left.len + right.len)?;
                let rank = *ranks.get(merged as usize)?;
                Some(Merge { rank, merged })
            }
            Order::Merges(merges) => merges.get(left.id, right.id),
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
        let ids = run
            .iter()
            .map(|&byte| self.pieces.byte_ids[usize::from(byte)]);
        if ids.clone().all(|id| id != NONE) {
            out.extend(ids);
        } else {
            out.extend(self.pieces.unknown);
        }
    }
}

impl Pieces {
    /// Reads the tokens; they are freed on the way.
    fn read(tokens: Vec<String>, types: &[i32]) -> (Vocabulary, Self) {
        let n_bytes = tokens.iter().map(String::len).sum();
        let mut vocab = Vocabulary::with_capacity(tokens.len(), n_bytes);
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
        let pieces = Self {
            index,
            byte_ids,
            unknown,
            pairs,
        };
        (vocab, pieces)
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
