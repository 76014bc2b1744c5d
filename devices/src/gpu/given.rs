//! What a job brings besides its numbers, in whole vectors of four words: tokens, extras, batches, and for experts
//! which tokens use them and where their panels are.

use super::buffers::TOKENS_AT;

/// Four words.
pub(super) type Vector = [u32; 4];

/// Bytes of a vector.
const BYTES: usize = size_of::<Vector>();

/// Appends to what a job brings.
#[derive(Debug)]
pub(super) struct Given<'a>(pub(super) &'a mut Vec<u8>);

impl Given<'_> {
    /// Appends vectors, and returns the number of the first one, as the shaders count.
    pub(super) fn vectors(&mut self, vectors: &[Vector]) -> usize {
        self.append(bytemuck::cast_slice(vectors))
    }

    /// Appends numbers, and returns that of the first one among all numbers.
    pub(super) fn numbers(&mut self, numbers: &[u32]) -> usize {
        BYTES / 4 * self.append(bytemuck::cast_slice(numbers))
    }

    /// The number that the next appended one has.
    pub(super) fn next_number(&self) -> usize {
        BYTES / 4 * (self.0.len() - TOKENS_AT).div_ceil(BYTES)
    }

    fn append(&mut self, bytes: &[u8]) -> usize {
        let first = (self.0.len() - TOKENS_AT).div_ceil(BYTES);
        self.0.resize(TOKENS_AT + BYTES * first, 0);
        self.0.extend_from_slice(bytes);
        first
    }
}
