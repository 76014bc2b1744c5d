//! How much of a text is encoded, and how much memory that may take.

use crate::error::ModelError;

/// Longest run without a place to cut, for the longest texts and for the shortest.
const LONGEST_RUN: usize = 64 << 10;
const SHORTEST_RUN: usize = 8 << 10;
/// The `tokenizers` crate gets so much shorter runs, since it takes so much more memory for each byte.
const CRATE_PART: usize = 4;

/// Bytes for the `tokenizers` crate: few, since it takes hundreds of bytes for each.
const PIECE: usize = 2 << 10;

/// Memory of a token of the text: its id, in the few lists that a generation has, and the text itself.
const BYTES_PER_TOKEN: u64 = 32;

/// What is left for a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Tokens, those that are there already included.
    pub(super) tokens: usize,
    /// Bytes that are encoded at once, at most.
    pub(super) run: usize,
    /// The same for the `tokenizers` crate.
    pub(super) crate_run: usize,
    /// Bytes that are given to the `tokenizers` crate at once, where there is a place to cut.
    pub(super) piece: usize,
}

impl Room {
    pub(super) fn of(tokens: usize) -> Self {
        // A usual token has four bytes.
        let usual = tokens.saturating_mul(4);
        let run = usual.clamp(SHORTEST_RUN, LONGEST_RUN);
        Self {
            tokens,
            run,
            crate_run: run / CRATE_PART,
            piece: PIECE,
        }
    }

    /// Whether `ids` are not too many yet.
    pub(super) fn holds(self, ids: &[u32]) -> bool {
        ids.len() <= self.tokens
    }

    /// Ids to reserve room for, for a text of `bytes`.
    pub(super) fn likely_tokens(self, bytes: usize) -> usize {
        (bytes / 4).min(self.tokens) + 2
    }
}

/// Memory that encoding takes with one tokenizer.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncodingMemory {
    /// For each byte that is encoded at once by this program, or by the `tokenizers` crate.
    pub(super) own: u64,
    pub(super) of_crate: u64,
}

impl EncodingMemory {
    /// Bytes for texts of up to `tokens` tokens.
    pub fn bytes(self, tokens: usize) -> u64 {
        let room = Room::of(tokens);
        self.own * room.run as u64
            + self.of_crate * room.crate_run as u64
            + BYTES_PER_TOKEN * tokens as u64
    }
}

/// The error for a text with a run that cannot be encoded at once.
pub(super) fn too_long(longest: usize) -> ModelError {
    ModelError::Parameter {
        field: "text".into(),
        problem: format!("more than {longest} bytes without a place where this tokenizer can cut"),
        remedy: "give a larger context, or break long lines and runs of one character".into(),
    }
}
