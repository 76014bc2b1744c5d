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

/// What one core claims: from its own list first, then from the others'.
#[derive(Debug, Default)]
pub struct Claimant {
    /// The round, the same for all.
    round: u64,
    /// How many lists were found finished in it, starting with the claimant's own.
    finished: usize,
}

impl Claimant {
    /// The next round begins.
    pub fn begin(&mut self) {
        (self.round, self.finished) = (self.round + 1, 0);
    }

    /// Whether all lists were found finished.
    pub fn is_finished(&self, claims: &Claims) -> bool {
        self.finished == claims.cursors.len()
    }

    /// Claims the next entry, for the claimant whose own list is `own`: its list and its place there. `len` tells how
    /// many entries a list has in this round.
    pub fn next(
        &mut self,
        claims: &Claims,
        own: usize,
        mut len: impl FnMut(usize) -> usize,
    ) -> Option<(usize, usize)> {
        let lists = claims.cursors.len();
        while self.finished < lists {
            let list = (own + self.finished) % lists;
            if let Some(place) = claims.claim(list, self.round, len(list)) {
                return Some((list, place));
            }
            self.finished += 1;
        }
        None
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

    #[test]
    fn claimants_begin_with_their_own_list_and_find_all_finished() {
        let claims = Claims::new(3);
        let mut claimant = Claimant::default();
        for _ in 0..2 {
            claimant.begin();
            assert!(!claimant.is_finished(&claims));
            let all = std::iter::from_fn(|| claimant.next(&claims, 1, |list| [1, 2, 0][list]));
            assert_eq!(all.collect::<Vec<_>>(), [(1, 0), (1, 1), (0, 0)]);
            assert!(claimant.is_finished(&claims));
        }
    }
}
