//! Work that belongs to nobody in particular: every core has a list to begin with, and takes from the others'
//! when its own is at its end.
//!
//! Cores are never equally fast: some are smaller, one serves the disk's interrupts, a neighbour takes one away.
//! Where all wait for all, the slowest one's list is what everybody waits for.
//!
//! A list is only a cursor here; what its entries are, every core knows. Lists are gone through once per *round*, whose
//! number all cores count alike, so nobody has to put a cursor back. Claims order nothing: what was computed is
//! published by the [exchange](crate::exchange) that ends the round.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering};

/// Bits of a cursor for the place in the list; the rest number the round.
const PLACE_BITS: u32 = 20;

/// Most entries of a list.
pub const MAX_LIST: usize = (1 << PLACE_BITS) - 1;

/// One cursor per list.
#[derive(Debug)]
pub struct Claims {
    cursors: Box<[CachePadded<AtomicU64>]>, // [n]
}

impl Claims {
    /// Cursors for `n` lists.
    pub fn new(n: usize) -> Self {
        Self {
            cursors: (0..n)
                .map(|_| CachePadded::new(AtomicU64::new(0)))
                .collect(),
        }
    }

    /// Claims the next of the `len` entries of a list for the caller alone; none when all have been claimed in this
    /// round. No core may be in a later round before all have found all lists of this one at their end.
    ///
    /// # Panics
    /// There is no such list. In debug builds, if it is longer than [`MAX_LIST`].
    pub fn claim(&self, list: usize, round: u64, len: usize) -> Option<usize> {
        debug_assert!(len <= MAX_LIST, "a list of {len} entries");
        let cursor = &self.cursors[list];
        let start = round << PLACE_BITS;
        let mut now = cursor.load(Ordering::Relaxed);
        loop {
            // A cursor that was left in an earlier round stands at the start of this one.
            let place = now.max(start);
            if place - start >= len as u64 {
                return None;
            }
            let moved =
                cursor.compare_exchange_weak(now, place + 1, Ordering::Relaxed, Ordering::Relaxed);
            match moved {
                Ok(_) => return Some((place - start) as usize),
                Err(other) => now = other,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_round_gives_each_entry_once() {
        let claims = Claims::new(2);
        for round in [0, 1, 5] {
            let first: Vec<usize> = std::iter::from_fn(|| claims.claim(0, round, 3)).collect();
            assert_eq!(first, [0, 1, 2]);
            assert_eq!(claims.claim(1, round, 0), None);
            assert_eq!(claims.claim(0, round, 3), None);
        }
        // The other list was never begun.
        assert_eq!(claims.claim(1, 5, 1), Some(0));
    }
}
