//! The part of the block tables that the cores read in a step, and which recurrent states they change.

use std::ops::Range;

use super::{SequenceId, Sequences, TokenPlace};

/// Block tables and states of the sequences of a step.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    n_pools: usize,
    /// Where in `blocks` each table is, `[sequences][pools]`; empty for sequences that are not in the step.
    places: Vec<Range<usize>>,
    blocks: Vec<u32>,
    /// Recurrent states, `[sequences]`; `None` for sequences that are not in the step or have none.
    states: Vec<Option<u32>>,
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
        self.states.clear();
        let mut last = None;
        for token in tokens {
            if last.replace(token.sequence) == Some(token.sequence) {
                continue;
            }
            let index = token.sequence.index();
            if self.states.len() <= index {
                self.states.resize(index + 1, None);
            }
            self.states[index] = sequences.state(token.sequence);
            let first = index * self.n_pools;
            if self.places.len() < first + self.n_pools {
                self.places.resize(first + self.n_pools, 0..0);
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

    /// A sequence's recurrent state.
    pub fn state(&self, sequence: SequenceId) -> Option<u32> {
        self.states.get(sequence.index()).copied().flatten()
    }
}
