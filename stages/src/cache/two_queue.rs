//! PowerInfer-2's cache policy (section 4.2): LRU at neuron granularity with two queues.
//!
//! A neuron enters at the head of the inactive queue. Its second access moves it to the head of the
//! active queue, and so do later ones. When the active queue holds over 90% of the cache, its tail
//! moves to the inactive queue until it does not. At capacity the inactive tail is dropped.
//!
//! Neurons that a cluster is about to use are *held* and never dropped. All links are indices into
//! arrays allocated once.

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Free,
    Inactive,
    Active,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    neuron: u32,
    prev: u32,
    next: u32,
    holds: u16,
    queue: Queue,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: usize,
}

const EMPTY: List = List {
    head: NONE,
    tail: NONE,
    len: 0,
};

/// Directory of a neuron cache with a fixed number of slots.
#[derive(Debug)]
pub struct TwoQueue {
    /// Slot by neuron, `[n_neurons]`.
    slot_of: Vec<u32>,
    /// `[n_slots]`
    entries: Vec<Entry>,
    inactive: List,
    active: List,
    free: Vec<u32>,
}

impl TwoQueue {
    /// A cache of `slots` slots for neurons `0..neurons`.
    pub fn new(neurons: usize, slots: usize) -> Self {
        let blank = Entry {
            neuron: NONE,
            prev: NONE,
            next: NONE,
            holds: 0,
            queue: Queue::Free,
        };
        Self {
            slot_of: vec![NONE; neurons],
            entries: vec![blank; slots],
            inactive: EMPTY,
            active: EMPTY,
            free: (0..slots as u32).rev().collect(),
        }
    }

    /// Bytes of the directory itself.
    pub fn bytes(neurons: usize, slots: usize) -> usize {
        neurons * size_of::<u32>() + slots * (size_of::<Entry>() + size_of::<u32>())
    }

    /// Looks `neuron` up; a hit counts as an access and holds the slot.
    pub fn hold(&mut self, neuron: usize) -> Option<usize> {
        let slot = self.slot_of[neuron];
        if slot == NONE {
            return None;
        }
        self.unlink(slot);
        self.push_front(slot, Queue::Active);
        self.entries[slot as usize].holds += 1;
        while self.active.len * 10 > self.entries.len() * 9 {
            let tail = self.active.tail;
            self.unlink(tail);
            self.push_front(tail, Queue::Inactive);
        }
        Some(slot as usize)
    }

    /// Gives `neuron`, which must be absent, a held slot: a free one, or that of the least recently
    /// used neuron which nobody holds, inactive ones first. `None` when all are held.
    pub fn admit(&mut self, neuron: usize) -> Option<usize> {
        debug_assert_eq!(self.slot_of[neuron], NONE);
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.evict()?,
        };
        self.slot_of[neuron] = slot;
        self.push_front(slot, Queue::Inactive);
        let entry = &mut self.entries[slot as usize];
        entry.neuron = neuron as u32;
        entry.holds = 1;
        Some(slot as usize)
    }

    /// Ends one hold of `slot`.
    pub fn release(&mut self, slot: usize) {
        debug_assert!(self.entries[slot].holds > 0);
        self.entries[slot].holds -= 1;
    }

    /// Makes the neuron in the held `slot` absent: its bytes could not be read. The slot stays held
    /// until its release and is the first to be reused then.
    pub fn disown(&mut self, slot: usize) {
        let neuron = self.entries[slot].neuron;
        if neuron != NONE {
            self.slot_of[neuron as usize] = NONE;
            self.entries[slot].neuron = NONE;
        }
        self.unlink(slot as u32);
        self.push_back_inactive(slot as u32);
    }

    /// Neurons in the cache.
    pub fn len(&self) -> usize {
        self.active.len + self.inactive.len
    }

    /// Whether the cache holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn evict(&mut self) -> Option<u32> {
        let slot = self
            .unheld_tail(self.inactive)
            .or_else(|| self.unheld_tail(self.active))?;
        self.unlink(slot);
        self.vacate(slot);
        Some(slot)
    }

    fn unheld_tail(&self, list: List) -> Option<u32> {
        let mut at = list.tail;
        while at != NONE && self.entries[at as usize].holds > 0 {
            at = self.entries[at as usize].prev;
        }
        (at != NONE).then_some(at)
    }

    fn vacate(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if entry.neuron != NONE {
            self.slot_of[entry.neuron as usize] = NONE;
        }
        entry.queue = Queue::Free;
    }

    fn list(&mut self, queue: Queue) -> &mut List {
        if queue == Queue::Active {
            &mut self.active
        } else {
            &mut self.inactive
        }
    }

    fn push_front(&mut self, slot: u32, queue: Queue) {
        let list = self.list(queue);
        let old = list.head;
        list.head = slot;
        list.len += 1;
        if old == NONE {
            list.tail = slot;
        } else {
            self.entries[old as usize].prev = slot;
        }
        let entry = &mut self.entries[slot as usize];
        (entry.prev, entry.next, entry.queue) = (NONE, old, queue);
    }

    fn push_back_inactive(&mut self, slot: u32) {
        let old = self.inactive.tail;
        self.inactive.tail = slot;
        self.inactive.len += 1;
        if old == NONE {
            self.inactive.head = slot;
        } else {
            self.entries[old as usize].next = slot;
        }
        let entry = &mut self.entries[slot as usize];
        (entry.prev, entry.next, entry.queue) = (old, NONE, Queue::Inactive);
    }

    fn unlink(&mut self, slot: u32) {
        let Entry {
            prev, next, queue, ..
        } = self.entries[slot as usize];
        if prev != NONE {
            self.entries[prev as usize].next = next;
        }
        if next != NONE {
            self.entries[next as usize].prev = prev;
        }
        let list = self.list(queue);
        list.len -= 1;
        if list.head == slot {
            list.head = next;
        }
        if list.tail == slot {
            list.tail = prev;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// The paper's words, written down with deques.
    struct Model {
        active: VecDeque<usize>,
        inactive: VecDeque<usize>,
        slots: usize,
    }

    impl Model {
        fn access(&mut self, neuron: usize) -> bool {
            let hit = self.active.contains(&neuron) || self.inactive.contains(&neuron);
            if hit {
                self.active.retain(|&n| n != neuron);
                self.inactive.retain(|&n| n != neuron);
                self.active.push_front(neuron);
                while self.active.len() * 10 > self.slots * 9 {
                    let tail = self.active.pop_back().expect("over 90% is not empty");
                    self.inactive.push_front(tail);
                }
            } else {
                if self.active.len() + self.inactive.len() == self.slots {
                    let _ = self.inactive.pop_back().or_else(|| self.active.pop_back());
                }
                self.inactive.push_front(neuron);
            }
            hit
        }
    }

    proptest! {
        #[test]
        fn follows_the_paper(slots in 2usize..20, accesses in prop::collection::vec(0usize..40, 0..300)) {
            let mut cache = TwoQueue::new(40, slots);
            let mut model = Model { active: VecDeque::new(), inactive: VecDeque::new(), slots };
            for neuron in accesses {
                let hit = match cache.hold(neuron) {
                    Some(slot) => { cache.release(slot); true }
                    None => { let slot = cache.admit(neuron).expect("nothing is held"); cache.release(slot); false }
                };
                prop_assert_eq!(hit, model.access(neuron));
                prop_assert_eq!(cache.active.len, model.active.len());
                prop_assert_eq!(cache.len(), model.active.len() + model.inactive.len());
            }
        }
    }

    #[test]
    fn held_neurons_are_never_dropped() {
        let mut cache = TwoQueue::new(10, 3);
        let held: Vec<usize> = (0..3).map(|n| cache.admit(n).expect("room")).collect();
        assert_eq!(cache.admit(3), None);
        cache.release(held[1]);
        assert_eq!(cache.admit(3), Some(held[1]));
        assert!(cache.hold(1).is_none());
        assert_eq!(cache.hold(0), Some(held[0]));
    }

    #[test]
    fn disowned_neurons_are_absent_and_their_slots_come_back() {
        let mut cache = TwoQueue::new(4, 2);
        let slot = cache.admit(2).expect("room");
        cache.disown(slot);
        assert!(cache.hold(2).is_none());
        cache.release(slot);
        let first = cache.admit(0).expect("a free slot");
        let second = cache.admit(1).expect("the disowned slot");
        assert_ne!(first, second);
        cache.release(first);
        cache.release(second);
        assert_eq!(cache.hold(0), Some(first));
    }
}
