//! The part of the block tables that the cores read in a step.

use std::ops::Range;

use super::{SequenceId, Sequences, TokenPlace};

/// Block tables of the sequences of a step.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    n_pools: usize,
    /// Where in `blocks` each table is, `[sequences][pools]`; empty for sequences that are not in the step.
    places: Vec<Range<usize>>,
    blocks: Vec<u32>,
}

impl Tables {
    /// Copies the tables of the sequences of `tokens`. Allocates only if they are more or longer than ever before.
    ///
    /// # Panics
    /// A token's sequence is not open.
    pub fn fill(&mut self, sequences: &Sequences, tokens: &[TokenPlace]) {
        self.n_pools = sequences.n_pools();
        self.places.clear();
        self.blocks.clear();
        for token in tokens {
            let first = token.sequence.index() * self.n_pools;
            if self.places.len() < first + self.n_pools {
                self.places.resize(first + self.n_pools, 0..0);
            }
            if !self.places[first].is_empty() {
                continue;
            }
            for pool in 0..self.n_pools {
                let start = self.blocks.len();
                self.blocks
                    .extend_from_slice(sequences.table(token.sequence, pool));
                self.places[first + pool] = start..self.blocks.len();
            }
        }
    }

    /// A sequence's blocks in a pool by `position / 64`.
    ///
    /// # Panics
    /// No token of the step is in this sequence.
    pub fn table(&self, sequence: SequenceId, pool: usize) -> &[u32] {
        &self.blocks[self.places[sequence.index() * self.n_pools + pool].clone()]
    }
}
