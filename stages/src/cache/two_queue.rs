//! PowerInfer-2's cache policy (section 4.2): LRU at neuron granularity with two queues.
//!
//! A neuron enters at the head of the inactive queue. Its second access moves it to the head of the
//! active queue, as do later ones. While the active queue has over 90% of the cache, its tail moves
//! to the inactive queue. At capacity the inactive tail is dropped.
//!
//! Preloaded neurons were used before this run: they fill the active queue, then the inactive one.

use super::directory::{Directory, List};
use super::policy::Policy;

const ACTIVE: List = List::of_policy(0);
const INACTIVE: List = List::of_policy(1);

/// Marks of slots by their queue.
const IN_INACTIVE: u32 = 0;
const IN_ACTIVE: u32 = 1;

/// Two queues.
#[derive(Debug, Default)]
pub(super) struct TwoQueue {
    /// Slots in the active queue.
    active: usize,
}

impl TwoQueue {
    /// Whether `active` slots are more than the active queue may have.
    fn is_over(active: usize, directory: &Directory) -> bool {
        active * 10 > directory.slots() * 9
    }

    fn leave_queue(&mut self, directory: &Directory, slot: u32) {
        if directory.mark(slot) == IN_ACTIVE {
            self.active -= 1;
        }
    }
}

impl Policy for TwoQueue {
    fn best_first(&self) -> &'static [List] {
        &[ACTIVE, INACTIVE]
    }

    fn entered(&mut self, directory: &mut Directory, slot: u32) {
        directory.set_mark(slot, IN_INACTIVE);
        directory.push_front(INACTIVE, slot);
    }

    fn preloaded(&mut self, directory: &mut Directory, slot: u32) {
        if Self::is_over(self.active + 1, directory) {
            directory.set_mark(slot, IN_INACTIVE);
            directory.push_back(INACTIVE, slot);
        } else {
            directory.set_mark(slot, IN_ACTIVE);
            directory.push_back(ACTIVE, slot);
            self.active += 1;
        }
    }

    fn hit(&mut self, directory: &mut Directory, slot: u32) {
        self.leave_queue(directory, slot);
        directory.set_mark(slot, IN_ACTIVE);
        directory.push_front(ACTIVE, slot);
        self.active += 1;
        while Self::is_over(self.active, directory)
            && let Some(tail) = directory.back(ACTIVE)
        {
            self.active -= 1;
            directory.set_mark(tail, IN_INACTIVE);
            directory.push_front(INACTIVE, tail);
        }
    }

    fn victim(&self, directory: &Directory) -> Option<u32> {
        directory
            .last_unheld(INACTIVE)
            .or_else(|| directory.last_unheld(ACTIVE))
    }

    fn leaving(&mut self, directory: &mut Directory, slot: u32) {
        self.leave_queue(directory, slot);
    }
}
