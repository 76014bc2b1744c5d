//! Work that any core may take: every core starts with a list of its own, and takes from the others' when it is
//! finished.
//!
//! Cores are never equally fast: some are smaller, one serves the disk's interrupts, another program occupies one. If
//! all wait for all, all wait for the slowest core's list.
//!
//! Here a list is only a cursor; every core knows its entries. Each list is used once per *round*; all cores count
//! rounds in the same way, so no cursor has to be reset. Claims order nothing: results are published by the
//! [exchange](crate::exchange) that ends the round.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering};

/// Bits of a cursor for the position in the list; the other bits are the number of the round.
const PLACE_BITS: u32 = 20;

/// Maximum number of entries in a list.
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

    /// Claims the next of a list's `len` entries for the caller alone; `None` when all have been claimed in this round.
    /// No core may enter the next round before all cores have found all lists of this one finished.
    ///
    /// # Panics
    /// There is no such list. In debug builds, if it is longer than [`MAX_LIST`].
    pub fn claim(&self, list: usize, round: u64, len: usize) -> Option<usize> {
        debug_assert!(len <= MAX_LIST, "a list of {len} entries");
        let cursor = &self.cursors[list];
        let start = round << PLACE_BITS;
        let mut now = cursor.load(Ordering::Relaxed);
        loop {
            // A cursor from an earlier round counts as the start of this one.
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
        // The other list has not been started.
        assert_eq!(claims.claim(1, 5, 1), Some(0));
    }
}
