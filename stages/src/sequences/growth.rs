//! Steps of tests: tokens that several sequences grow by.

use super::{Copies, SequenceId, Sequences, TokenPlace};

/// Adds tokens to sequences; the places of all, and the tokens.
pub(crate) fn grow(
    sequences: &mut Sequences,
    growth: &[(SequenceId, &[u64])],
    copies: &mut Copies,
) -> (Vec<TokenPlace>, Vec<u64>) {
    copies.clear();
    let (mut places, mut tokens) = (Vec::new(), Vec::new());
    for &(sequence, new) in growth {
        let first = sequences.len(sequence);
        let extended = sequences.extend(sequence, new.len(), copies);
        extended.expect("room for all");
        places.extend((first..first + new.len()).map(|position| TokenPlace {
            sequence,
            position: position as u32,
        }));
        tokens.extend_from_slice(new);
    }
    (places, tokens)
}
