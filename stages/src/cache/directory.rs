//! What all policies share: which neuron is in which slot, how many hold it, and lists of slots.
//!
//! Lists are doubly linked rings through sentinels after the slots, so a slot leaves its list without knowing which
//! list it is, and a whole list moves in constant time. All links are indices into one array allocated at the start.

/// The neuron of a slot that has none.
const NO_NEURON: u32 = u32::MAX;
/// Marks, in `places`, a neuron that has no slot.
const ABSENT: u32 = 1 << 31;

/// A list of slots: [`List::FREE`] or one of the policy's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List(u32);

impl List {
    /// Slots that have no neuron.
    pub(super) const FREE: Self = Self(0);

    /// The policy's list number `index`.
    pub(super) const fn of_policy(index: u32) -> Self {
        Self(index + 1)
    }
}

/// A slot, or the sentinel of a list. If it is in no list, it links to itself.
#[derive(Clone, Copy, Debug)]
struct Entry {
    neuron: u32,
    prev: u32,
    next: u32,
    holds: u32,
    /// The policy's own mark.
    mark: u32,
}

/// Neurons, slots and lists of a cache.
#[derive(Debug)]
pub(super) struct Directory {
    /// Slot by neuron; for an absent neuron its last mark, with [`ABSENT`] set. `[n_neurons]`
    places: Vec<u32>,
    /// Slots, then sentinels. `[n_slots + n_lists]`
    entries: Vec<Entry>,
    slots: usize,
    residents: usize,
}

impl Directory {
    /// `slots` free slots for neurons `0..neurons`, and `lists` empty lists of the policy.
    ///
    /// # Panics
    /// If neurons or slots do not fit 31 bits.
    pub(super) fn new(neurons: usize, slots: usize, lists: usize) -> Self {
        let most = ABSENT as usize - 1;
        let all = slots.saturating_add(lists).saturating_add(1);
        assert!(
            neurons <= most && all <= most,
            "a neuron cache numbers neurons and slots with 31 bits, not {neurons} and {slots}"
        );
        let alone = |at: usize| Entry {
            neuron: NO_NEURON,
            prev: at as u32,
            next: at as u32,
            holds: 0,
            mark: 0,
        };
        let mut directory = Self {
            places: vec![ABSENT; neurons],
            entries: (0..all).map(alone).collect(),
            slots,
            residents: 0,
        };
        for slot in 0..slots as u32 {
            directory.push_back(List::FREE, slot);
        }
        directory
    }

    /// Bytes of a directory, saturating.
    pub(super) fn bytes(neurons: usize, slots: usize, lists: usize) -> usize {
        let entries = slots.saturating_add(lists).saturating_add(1);
        neurons
            .saturating_mul(size_of::<u32>())
            .saturating_add(entries.saturating_mul(size_of::<Entry>()))
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// Neurons that have a slot.
    pub(super) fn residents(&self) -> usize {
        self.residents
    }

    /// Free slots.
    pub(super) fn vacant(&self) -> usize {
        self.forwards(List::FREE).take(self.slots + 1).count()
    }

    /// Number of holds on all slots.
    pub(super) fn holds(&self) -> usize {
        self.entries.iter().map(|entry| entry.holds as usize).sum()
    }

    /// Whether no slot is free.
    pub(super) fn is_full(&self) -> bool {
        self.front(List::FREE).is_none()
    }

    pub(super) fn neurons_in_all(&self) -> usize {
        self.places.len()
    }

    pub(super) fn has_neuron(&self, neuron: usize) -> bool {
        neuron < self.places.len()
    }

    pub(super) fn slot_of(&self, neuron: usize) -> Option<u32> {
        let place = self.places[neuron];
        (place & ABSENT == 0).then_some(place)
    }

    /// Reads what looking these neurons up will change: their entries and the neighbouring ones. By the next token they
    /// have left the CPU's caches, and each lookup would wait for memory separately.
    pub(super) fn warm(&self, neurons: impl Iterator<Item = usize>) {
        let links = |entry: &Entry| {
            let [prev, next] = [entry.prev, entry.next].map(|at| &self.entries[at as usize]);
            prev.next ^ next.prev
        };
        let slots = neurons.filter_map(|neuron| self.slot_of(neuron));
        let entries = slots.map(|slot| &self.entries[slot as usize]);
        std::hint::black_box(entries.fold(0, |all, entry| all ^ links(entry)));
    }

    /// Gives the absent `neuron` the first free slot, which is then in no list. The slot's mark is
    /// that of the neuron's last stay, without the top bit, or 0.
    pub(super) fn settle(&mut self, neuron: usize) -> Option<u32> {
        debug_assert!(self.slot_of(neuron).is_none(), "neuron {neuron} is here");
        let slot = self.front(List::FREE)?;
        self.unlink(slot);
        let entry = &mut self.entries[slot as usize];
        entry.neuron = neuron as u32;
        entry.mark = self.places[neuron] & !ABSENT;
        self.places[neuron] = slot;
        self.residents += 1;
        Some(slot)
    }

    /// Makes the slot's neuron, if it has one, absent; the slot is then in no list.
    pub(super) fn unsettle(&mut self, slot: u32) {
        self.unlink(slot);
        let entry = &mut self.entries[slot as usize];
        if entry.neuron != NO_NEURON {
            self.places[entry.neuron as usize] = entry.mark | ABSENT;
            entry.neuron = NO_NEURON;
            self.residents -= 1;
        }
    }

    /// Makes the slot's neuron, if it has one, absent, and puts the slot first among the free ones.
    pub(super) fn vacate(&mut self, slot: u32) {
        debug_assert!(!self.is_held(slot), "slot {slot} is held");
        self.unsettle(slot);
        self.push_front(List::FREE, slot);
    }

    pub(super) fn is_settled(&self, slot: u32) -> bool {
        self.entries[slot as usize].neuron != NO_NEURON
    }

    pub(super) fn is_held(&self, slot: u32) -> bool {
        self.entries[slot as usize].holds > 0
    }

    pub(super) fn hold(&mut self, slot: u32) {
        self.entries[slot as usize].holds += 1;
    }

    /// Ends one hold; true if it was the last.
    pub(super) fn release(&mut self, slot: u32) -> bool {
        let holds = &mut self.entries[slot as usize].holds;
        debug_assert!(*holds > 0, "slot {slot} is not held");
        *holds -= 1;
        *holds == 0
    }

    pub(super) fn mark(&self, slot: u32) -> u32 {
        self.entries[slot as usize].mark
    }

    pub(super) fn set_mark(&mut self, slot: u32, mark: u32) {
        self.entries[slot as usize].mark = mark;
    }

    pub(super) fn front(&self, list: List) -> Option<u32> {
        self.forwards(list).next()
    }

    pub(super) fn back(&self, list: List) -> Option<u32> {
        self.backwards(list).next()
    }

    /// The slot nearest to the back that is not held.
    pub(super) fn last_unheld(&self, list: List) -> Option<u32> {
        self.backwards(list).find(|&slot| !self.is_held(slot))
    }

    /// Neurons of a list's slots, from the front.
    pub(super) fn neurons(&self, list: List) -> impl Iterator<Item = u32> {
        self.forwards(list)
            .map(|slot| self.entries[slot as usize].neuron)
    }

    /// Moves `slot` out of the list it is in, if any, to the front of `list`.
    pub(super) fn push_front(&mut self, list: List, slot: u32) {
        self.unlink(slot);
        let sentinel = self.sentinel(list);
        let next = self.entries[sentinel as usize].next;
        self.link(sentinel, slot);
        self.link(slot, next);
    }

    /// Moves `slot` out of the list it is in, if any, to the back of `list`.
    pub(super) fn push_back(&mut self, list: List, slot: u32) {
        self.unlink(slot);
        let sentinel = self.sentinel(list);
        let prev = self.entries[sentinel as usize].prev;
        self.link(prev, slot);
        self.link(slot, sentinel);
    }

    /// Moves all slots of `from`, in their order, before those of `list`.
    pub(super) fn prepend_all(&mut self, list: List, from: List) {
        let (Some(front), Some(back)) = (self.front(from), self.back(from)) else {
            return;
        };
        let emptied = self.sentinel(from);
        self.link(emptied, emptied);
        let sentinel = self.sentinel(list);
        let next = self.entries[sentinel as usize].next;
        self.link(sentinel, front);
        self.link(back, next);
    }

    fn sentinel(&self, list: List) -> u32 {
        self.slots as u32 + list.0
    }

    fn link(&mut self, prev: u32, next: u32) {
        self.entries[prev as usize].next = next;
        self.entries[next as usize].prev = prev;
    }

    fn unlink(&mut self, slot: u32) {
        let Entry { prev, next, .. } = self.entries[slot as usize];
        self.link(prev, next);
        self.link(slot, slot);
    }

    fn forwards(&self, list: List) -> impl Iterator<Item = u32> {
        self.walk(list, |entry| entry.next)
    }

    fn backwards(&self, list: List) -> impl Iterator<Item = u32> {
        self.walk(list, |entry| entry.prev)
    }

    fn walk(&self, list: List, step: impl Fn(&Entry) -> u32) -> impl Iterator<Item = u32> {
        let end = self.sentinel(list);
        let mut at = end;
        std::iter::from_fn(move || {
            at = step(&self.entries[at as usize]);
            (at != end).then_some(at)
        })
    }
}

#[cfg(test)]
impl Directory {
    /// Bytes on the heap.
    pub(super) fn allocated(&self) -> usize {
        self.places.capacity() * size_of::<u32>() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Panics unless every slot is exactly once in a list, or held without a neuron and in none, and
    /// neurons and slots name each other.
    pub(super) fn check(&self, lists: &[List]) {
        let mut seen = vec![false; self.slots];
        let mut residents = 0;
        for &list in lists.iter().chain([&List::FREE]) {
            let mut reverse: Vec<u32> = self.backwards(list).take(self.slots + 1).collect();
            reverse.reverse();
            let order: Vec<u32> = self.forwards(list).take(self.slots + 1).collect();
            assert_eq!(order, reverse, "links of {list:?}");
            for slot in order {
                assert!(!seen[slot as usize], "slot {slot} is in two lists");
                seen[slot as usize] = true;
                let entry = self.entries[slot as usize];
                if list == List::FREE {
                    assert_eq!((entry.neuron, entry.holds), (NO_NEURON, 0), "slot {slot}");
                } else {
                    assert_eq!(self.places[entry.neuron as usize], slot);
                    residents += 1;
                }
            }
        }
        for (slot, _) in seen.iter().enumerate().filter(|(_, seen)| !**seen) {
            let slot = slot as u32;
            assert!(
                !self.is_settled(slot) && self.is_held(slot),
                "slot {slot} is lost"
            );
        }
        let here = self.places.iter().filter(|&&p| p & ABSENT == 0).count();
        assert_eq!((residents, here), (self.residents, self.residents));
    }
}
