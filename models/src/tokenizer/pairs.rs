//! Which bytes stand side by side in a token. Others never merge, so a long word may be cut between them.

/// A set of pairs of bytes.
#[derive(Debug)]
pub(super) struct BytePairs {
    /// One bit per pair.
    bits: Vec<u64>,
}

impl BytePairs {
    pub(super) fn new() -> Self {
        Self {
            bits: vec![0; (1 << 16) / 64],
        }
    }

    /// Adds the pairs inside a token.
    pub(super) fn add(&mut self, token: &[u8]) {
        for pair in token.windows(2) {
            let at = index(pair);
            self.bits[at / 64] |= 1 << (at % 64);
        }
    }

    /// Length of the first part of `word`, at most `longest`; `None` if it has no place to cut.
    pub(super) fn first_part(&self, word: &[u8], longest: usize) -> Option<usize> {
        if word.len() <= longest {
            return Some(word.len());
        }
        let mut places = (1..=longest).rev();
        places.find(|&at| self.are_apart(word[at - 1], word[at]))
    }

    /// Whether no token has `left` and then `right`.
    pub(super) fn are_apart(&self, left: u8, right: u8) -> bool {
        let pair = index(&[left, right]);
        self.bits[pair / 64] >> (pair % 64) & 1 == 0
    }
}

fn index(pair: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([pair[0], pair[1]]))
}
