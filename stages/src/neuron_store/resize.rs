//! Using less memory for a while: slots at the end go out of use, and their pages go back to the system.

use forebay_queues::slab::PAGE;

use super::{NeuronStore, Parts};

impl NeuronStore {
    /// Keeps `slots` slots in use, at most as many as there were at the start. Neurons in slots that go out of use are
    /// forgotten; how often they were wanted is not. The memory behind the slots in use is given back to the system,
    /// or committed again as neurons come.
    ///
    /// False, and nothing is changed, while memory is borrowed or a read is due or in flight: the slots are then held.
    pub fn resize(&mut self, slots: usize) -> bool {
        let slots = slots.min(self.parts.len());
        if slots == self.used {
            return true;
        }
        if self.lends() || self.is_reading() || !self.blocked.is_empty() {
            return false;
        }
        let Some(store) = &mut self.store else {
            return true;
        };
        if let Some(mut idle) = self.idle.take() {
            idle.take_up();
            assert!(store.join(idle).is_ok(), "the idle memory follows the rest");
        }
        for slot in slots..self.used {
            self.cache.withdraw(slot);
            self.parts[slot] = Parts::NONE;
        }
        for slot in self.used..slots {
            self.cache.release(slot);
        }
        self.used = slots;
        self.idle = store.split_off((slots * self.slot_bytes).next_multiple_of(PAGE));
        if let Some(idle) = &mut self.idle {
            // Memory that the system does not take stays with the process, but the slots are out of use.
            let _ = idle.give_back();
        }
        true
    }

    /// Slots in use.
    pub fn slots_in_use(&self) -> usize {
        self.used
    }
}
