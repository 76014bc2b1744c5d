//! Clusters that are read before a flight wants them: guesses for the next layers of a token, and of a step of several
//! tokens what its layer and probably the next one want.

use forebay_models::network::MOST_GUESSED_LAYERS;

use super::{ExpertStore, Request};

/// What became of guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuessCounts {
    /// Clusters that were read because it was guessed that they would be wanted.
    pub read: u64,
    /// Those of them that were wanted before they were evicted.
    pub wanted: u64,
}

/// Guesses are read while at most so many certain reads of the core are in flight: a disk that has few is not busy.
pub(super) const BESIDE: usize = 8;

/// Guesses of a token that are read together: what is with the I/O actor cannot be given up any more, and clusters are
/// long enough for a disk to be busy with a few.
pub(super) const MOST_GUESSES: usize = 4;

/// After so many guesses have been read, it is decided how far ahead to guess.
const TRIAL: u32 = 64;

/// How many layers ahead it pays to guess.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    layers: usize,
    read: u32,
    wanted: u32,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            layers: MOST_GUESSED_LAYERS,
            read: 0,
            wanted: 0,
        }
    }
}

impl Reach {
    /// A guess is read. If fewer than half of the last ones came true, the next ones go less far; if three quarters
    /// did, further.
    fn count(&mut self) {
        self.read += 1;
        if self.read < TRIAL {
            return;
        }
        if self.wanted < TRIAL / 2 {
            self.layers = (self.layers - 1).max(1);
        } else if self.wanted >= TRIAL / 4 * 3 {
            self.layers = (self.layers + 1).min(MOST_GUESSED_LAYERS);
        }
        (self.read, self.wanted) = (0, 0);
    }
}

/// A prompt keeps at most 1/`KEPT_SHARE` of the cells for what is still to be computed.
pub(super) const KEPT_SHARE: usize = 4;

impl ExpertStore {
    /// How many layers ahead it pays to guess, as those before have come true or not.
    pub fn reach(&self) -> usize {
        self.reach.layers
    }

    /// The next layers may want these clusters, the likeliest first. They are read while little else is; those that
    /// were named before and have not been read yet are given up.
    pub fn guess(&mut self, likely: impl Iterator<Item = Request>) {
        self.keeps = false;
        self.name(likely);
    }

    /// This layer of a prompt wants these clusters, or the next one will want nearly all of them. They are read like
    /// guesses, but stay until that layer is over.
    pub fn preload(&mut self, likely: impl Iterator<Item = Request>) {
        self.keeps = true;
        self.layer = self.layer.wrapping_add(1);
        // The layer for which these were read is over: its tokens did not use them.
        self.release_kept(|age| age >= 2);
        self.name(likely);
    }

    pub(super) fn release_kept(&mut self, is_over: impl Fn(u32) -> bool) {
        let mut i = 0;
        while let Some(&(cell, layer)) = self.kept.get(i) {
            if !is_over(self.layer.wrapping_sub(layer)) {
                i += 1;
                continue;
            }
            self.kept.swap_remove(i);
            self.ahead[cell] = false;
            self.release(cell);
        }
    }

    fn name(&mut self, likely: impl Iterator<Item = Request>) {
        self.guesses.clear();
        let room = self.guesses.capacity();
        let absent = likely.filter(|request| self.cache.slot_of(request.key).is_none());
        self.guesses.extend(absent.take(room));
    }

    /// A flight wants `key`: it needs no guess any more. After it is computed, it may be evicted, and a prompt would
    /// read it again for nobody.
    pub(super) fn unname(&mut self, key: usize) {
        if let Some(i) = self.guesses.iter().position(|named| named.key == key) {
            self.guesses.remove(i);
        }
    }

    /// A flight wants the cluster in a cell.
    pub(super) fn count_wanted(&mut self, cell: usize) {
        if std::mem::take(&mut self.counted[cell]) {
            self.guess_counts.wanted += 1;
            self.reach.wanted += 1;
        }
    }

    /// Most cells that a prompt keeps: it leaves most to what is wanted now.
    pub(super) fn most_kept(&self) -> usize {
        self.used / KEPT_SHARE
    }

    /// Makes the read of the likeliest absent guess due.
    pub(super) fn admit_guess(&mut self) {
        let is_enough = match self.keeps {
            true => self.guessing + self.kept.len() >= self.most_kept(),
            false => self.guessing >= MOST_GUESSES,
        };
        if is_enough {
            return;
        }
        while let Some(request) = self.guesses.pop_front() {
            if self.has(request.key) {
                continue;
            }
            if let Some(cell) = self.admit(request) {
                (self.guessed[cell], self.began_as_guess[cell]) = (true, true);
                self.guessing += 1;
                self.counted[cell] = !self.keeps;
                if !self.keeps {
                    self.guess_counts.read += 1;
                    self.reach.count();
                }
            }
            return;
        }
    }
}
