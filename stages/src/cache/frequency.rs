//! Least frequently used, with counts that age, and a bonus for recent use.
//!
//! A neuron's count goes up with each access, and all counts are halved once per forty accesses and slot (TinyLFU's
//! sample, Einziger et al., ACM ToS 13(4), 2017, is ten), so that what was popular long ago can leave. The neuron with
//! the lowest count is dropped first; among equal counts, the one that was used longer ago.
//!
//! A neuron used in this token or the previous one counts as if it had been used [`BONUS`] times more: six tenths of a
//! token's neurons are also the next one's (PowerInfer-2, section 4.3). It may still be dropped before a popular one,
//! so that a scan, or a token that wants more than there are slots, does not empty the cache. Counts alone, halved
//! every ten accesses, missed a tenth more on the 7B shape.
//!
//! Slots are in one list per count and age, so every operation is O(1): the end of a token and halving move whole
//! lists, because a slot's mark tells when its count was right, and later halvings are applied when the mark is read.
//! The directory keeps the mark of a neuron that is dropped, so a count outlives its neuron's stay.

use super::directory::{Directory, List};
use super::policy::Policy;

const COUNT_BITS: u32 = 6;
/// Accesses beyond this are not counted.
const MAX_COUNT: u32 = (1 << COUNT_BITS) - 1;
/// Halvings are numbered with the remaining bits of a 31-bit mark, and may wrap: at worst, a neuron
/// absent for 2^25 of them is overrated.
const HALVING_MASK: u32 = (1 << (31 - COUNT_BITS)) - 1;
/// Accesses per slot between halvings.
const ACCESSES_PER_SLOT: usize = 40;
/// The value of use in this token or the previous one, in accesses.
const BONUS: u32 = 8;
/// Preloaded neurons were used in an earlier run: they count more than a neuron just read for the first time, even with
/// the bonus.
const PRELOADED_COUNT: u32 = 16;

/// Last used in this token, in the previous one, or earlier.
#[derive(Clone, Copy)]
enum Age {
    Now,
    Previous,
    Earlier,
}

const fn list(age: Age, count: u32) -> List {
    List::of_policy((age as u32) << COUNT_BITS | count)
}

/// Lists of the policy: one per count and age.
pub(super) const LISTS: usize = 3 << COUNT_BITS;

const BEST_FIRST: [List; LISTS] = {
    let mut lists = [list(Age::Now, 0); LISTS];
    let (mut at, mut worth) = (0, MAX_COUNT + BONUS + 1);
    while worth > 0 {
        worth -= 1;
        if worth >= BONUS {
            lists[at] = list(Age::Now, worth - BONUS);
            lists[at + 1] = list(Age::Previous, worth - BONUS);
            at += 2;
        }
        if worth <= MAX_COUNT {
            lists[at] = list(Age::Earlier, worth);
            at += 1;
        }
    }
    lists
};

/// Counts of accesses.
#[derive(Debug)]
pub(super) struct Frequency {
    /// Accesses between halvings.
    period: usize,
    /// Accesses since the last halving.
    accesses: usize,
    /// Halvings so far, modulo 2^25.
    halvings: u32,
}

impl Frequency {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            period: slots.saturating_mul(ACCESSES_PER_SLOT),
            accesses: 0,
            halvings: 0,
        }
    }

    /// The slot's current count.
    fn count(&self, directory: &Directory, slot: u32) -> u32 {
        let mark = directory.mark(slot);
        let age = self.halvings.wrapping_sub(mark >> COUNT_BITS) & HALVING_MASK;
        (mark & MAX_COUNT) >> age.min(COUNT_BITS)
    }

    fn set_count(&self, directory: &mut Directory, slot: u32, count: u32) {
        directory.set_mark(slot, self.halvings << COUNT_BITS | count);
    }

    fn accessed(&mut self, directory: &mut Directory, slot: u32) {
        self.accesses += 1;
        if self.accesses >= self.period {
            self.accesses = 0;
            self.halve(directory);
        }
        let count = (self.count(directory, slot) + 1).min(MAX_COUNT);
        self.set_count(directory, slot, count);
        directory.push_front(list(Age::Now, count), slot);
    }

    fn halve(&mut self, directory: &mut Directory) {
        self.halvings = (self.halvings + 1) & HALVING_MASK;
        for age in [Age::Now, Age::Previous, Age::Earlier] {
            directory.prepend_all(list(age, 0), list(age, 1));
            for count in 1..=MAX_COUNT / 2 {
                directory.prepend_all(list(age, count), list(age, 2 * count));
                directory.prepend_all(list(age, count), list(age, 2 * count + 1));
            }
        }
    }
}

impl Policy for Frequency {
    fn best_first(&self) -> &'static [List] {
        &BEST_FIRST
    }

    fn entered(&mut self, directory: &mut Directory, slot: u32) {
        self.accessed(directory, slot);
    }

    fn preloaded(&mut self, directory: &mut Directory, slot: u32) {
        self.set_count(directory, slot, PRELOADED_COUNT);
        directory.push_back(list(Age::Earlier, PRELOADED_COUNT), slot);
    }

    fn hit(&mut self, directory: &mut Directory, slot: u32) {
        self.accessed(directory, slot);
    }

    fn victim(&self, directory: &Directory) -> Option<u32> {
        let worst_first = BEST_FIRST.iter().rev();
        worst_first
            .copied()
            .find_map(|list| directory.last_unheld(list))
    }

    fn end_token(&mut self, directory: &mut Directory) {
        for count in 0..=MAX_COUNT {
            let previous = list(Age::Previous, count);
            directory.prepend_all(list(Age::Earlier, count), previous);
            directory.prepend_all(previous, list(Age::Now, count));
        }
    }
}
