//! Least frequently used, with counts that age.
//!
//! A neuron's count goes up with each access, and all counts are halved once per ten accesses and
//! slot, TinyLFU's sample (Einziger et al., ACM ToS 13(4), 2017), so that what was popular long ago
//! can leave. The neuron with the least count is dropped first; among equal counts the one whose use
//! ended first, and among counts that became equal by halving the one that had less.
//!
//! Slots that nobody holds are in one list per count, those that are held in a list of their own, so
//! every operation is O(1): halving moves whole lists, because a slot's mark says when its count was
//! right, and what was halved since is taken off when the mark is read. The directory keeps the mark
//! of a neuron that is dropped, so a count outlives its neuron's stay.

use super::directory::{Directory, List};
use super::policy::Policy;

const COUNT_BITS: u32 = 6;
/// Accesses beyond this do not count.
const MAX_COUNT: u32 = (1 << COUNT_BITS) - 1;
/// Halvings are numbered with the bits of a 31-bit mark that counts leave, and may wrap: at worst a
/// neuron absent for 2^25 of them is overrated.
const HALVING_MASK: u32 = (1 << (31 - COUNT_BITS)) - 1;
/// Accesses per slot between halvings.
const ACCESSES_PER_SLOT: usize = 10;
/// Preloaded neurons were used in an earlier run, more than one just read for the first time.
const PRELOADED_COUNT: u32 = 2;

const HELD: List = List::of_policy(0);

const fn counted(count: u32) -> List {
    List::of_policy(1 + count)
}

/// Lists of the policy: one per count, and that of held slots.
pub(super) const LISTS: usize = MAX_COUNT as usize + 2;

const BEST_FIRST: [List; LISTS] = {
    let mut lists = [HELD; LISTS];
    let mut at = 1;
    while at < LISTS {
        lists[at] = counted((LISTS - 1 - at) as u32);
        at += 1;
    }
    lists
};

/// Counts of accesses.
#[derive(Debug)]
pub(super) struct Frequency {
    /// Accesses between halvings.
    period: usize,
    /// Accesses since the last one.
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

    /// The slot's count by now.
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
        directory.push_front(HELD, slot);
    }

    fn halve(&mut self, directory: &mut Directory) {
        self.halvings = (self.halvings + 1) & HALVING_MASK;
        directory.prepend_all(counted(0), counted(1));
        for count in 1..=MAX_COUNT / 2 {
            directory.prepend_all(counted(count), counted(2 * count));
            directory.prepend_all(counted(count), counted(2 * count + 1));
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
        directory.push_back(counted(PRELOADED_COUNT), slot);
    }

    fn hit(&mut self, directory: &mut Directory, slot: u32) {
        self.accessed(directory, slot);
    }

    fn idle(&mut self, directory: &mut Directory, slot: u32) {
        let count = self.count(directory, slot);
        directory.push_front(counted(count), slot);
    }

    fn victim(&self, directory: &Directory) -> Option<u32> {
        (0..=MAX_COUNT).find_map(|count| directory.back(counted(count)))
    }
}
