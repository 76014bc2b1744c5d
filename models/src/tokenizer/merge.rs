//! Greedy pair merging, which is all that BPE and SentencePiece's BPE do once a text is cut into
//! symbols: of all neighbouring pairs that may merge, the best one does, the leftmost among equals,
//! until none is left.
//!
//! A heap holds the candidate pairs and a doubly linked list the symbols, so a run of `n` symbols
//! costs O(n log n) whatever its content; the quadratic scan that is faster for short words would
//! let one long word stall the process.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// End of the list, and the id of a symbol that is no token.
pub(super) const NONE: u32 = u32::MAX;

/// Memory of a symbol while merging: itself and a candidate, in lists that grow by doubling.
pub(super) const BYTES_PER_SYMBOL: u64 = 2 * 2 * 20;

/// A run of the text that is, or may become, one token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// First byte in the text.
    pub(super) start: u32,
    /// Bytes; 0 once the symbol has been merged into its left neighbour.
    pub(super) len: u32,
    /// Token, or [`NONE`].
    pub(super) id: u32,
    prev: u32,
    next: u32,
}

/// A pair that may merge. The order of the fields is the order of the merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// Bytes of both symbols together, by which a stale candidate is told.
    len: u32,
    merged: u32,
}

/// A merge: smaller ranks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) rank: u32,
    /// Token that the pair becomes.
    pub(super) merged: u32,
}

/// Working memory of the merging, reused from word to word.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Forgets the last text.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.candidates.clear();
    }

    /// Appends a symbol of `len` bytes at `start`.
    pub(super) fn push(&mut self, start: u32, len: u32, id: u32) {
        let index = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        self.symbols.push(Symbol {
            start,
            len,
            id,
            prev: index.wrapping_sub(1), // NONE for the first
            next: NONE,
        });
    }

    /// Merges until nothing merges. `lookup` says what two neighbours become.
    pub(super) fn merge(&mut self, lookup: impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        for right in 1..self.symbols.len() as u32 {
            self.consider(right - 1, right, &lookup);
        }
        while let Some(Reverse(pair)) = self.candidates.pop() {
            let (left, right) = (
                self.symbols[pair.left as usize],
                self.symbols[pair.right as usize],
            );
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            let symbol = &mut self.symbols[pair.left as usize];
            symbol.len = pair.len;
            symbol.id = pair.merged;
            symbol.next = right.next;
            self.symbols[pair.right as usize].len = 0;
            if right.next != NONE {
                self.symbols[right.next as usize].prev = pair.left;
            }
            self.consider(left.prev, pair.left, &lookup);
            self.consider(pair.left, right.next, &lookup);
        }
    }

    /// The symbols that are left, in text order.
    pub(super) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.len != 0)
    }

    fn consider(
        &mut self,
        left: u32,
        right: u32,
        lookup: &impl Fn(&Symbol, &Symbol) -> Option<Merge>,
    ) {
        if left == NONE || right == NONE {
            return;
        }
        let (a, b) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some(Merge { rank, merged }) = lookup(a, b) {
            let len = a.len + b.len;
            self.candidates.push(Reverse(Candidate {
                rank,
                left,
                right,
                len,
                merged,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Merges over the alphabet 0..4 by a table; the merged id is 10 more than the pair's code.
    fn rule(a: u32, b: u32) -> Option<Merge> {
        let ranks = [
            (0, 1, 5),
            (1, 0, 3),
            (2, 2, 1),
            (3, 0, 3),
            (14, 0, 2),
            (26, 26, 0),
        ];
        let found = ranks.iter().find(|r| (r.0, r.1) == (a, b))?;
        Some(Merge {
            rank: found.2,
            merged: 10 + 4 * a + b,
        })
    }

    /// The definition, carried out naively.
    fn naive(mut ids: Vec<u32>) -> Vec<u32> {
        loop {
            let best = (1..ids.len())
                .filter_map(|i| rule(ids[i - 1], ids[i]).map(|m| (m.rank, i - 1, m.merged)))
                .min();
            let Some((_, at, merged)) = best else {
                return ids;
            };
            ids[at] = merged;
            ids.remove(at + 1);
        }
    }

    proptest! {
        #[test]
        fn equals_the_definition(ids in prop::collection::vec(0u32..4, 0..60)) {
            let mut merger = Merger::default();
            for (i, &id) in ids.iter().enumerate() {
                merger.push(i as u32, 1, id);
            }
            merger.merge(|a, b| rule(a.id, b.id));
            let merged: Vec<u32> = merger.symbols().map(|s| s.id).collect();
            prop_assert_eq!(merged, naive(ids.clone()));
            let bytes: u32 = merger.symbols().map(|s| s.len).sum();
            prop_assert_eq!(bytes as usize, ids.len());
        }
    }
}
