//! Lending prompts a part of the cache's memory, and taking over neurons from what they read.

use std::collections::VecDeque;

use forebay_models::bundle::{FfnGeometry, NeuronSums, checksum};
use forebay_queues::slab::{PAGE, Slot};

use super::{NeuronStore, Parts};

impl NeuronStore {
    /// Lends the end of the cache's memory as `n` buffers of at least `bytes` bytes, a multiple of the page, into
    /// `out`. The neurons there are forgotten, and none comes there until [`NeuronStore::take_back`]. Nothing is lent
    /// if the cache is too small, or lends already; no flight may hold a neuron.
    pub fn lend(&mut self, n: usize, bytes: usize, out: &mut VecDeque<Slot>) {
        debug_assert!(bytes.is_multiple_of(PAGE));
        let Some(store) = self.store.as_mut().filter(|_| self.lent_from.is_none()) else {
            return;
        };
        let Some(at) = store.len().checked_sub(n * bytes) else {
            return;
        };
        let Some(mut rest) = store.split_off(at / PAGE * PAGE) else {
            return;
        };
        let kept = store.len() / self.slot_bytes;
        for slot in kept..self.used {
            self.cache.withdraw(slot);
            self.parts[slot] = Parts::NONE;
        }
        self.lent_from = Some(kept);
        for _ in 1..n {
            let Some(next) = rest.split_off(bytes) else {
                break;
            };
            out.push_back(rest);
            rest = next;
        }
        out.push_back(rest);
    }

    /// Takes all borrowed buffers back, in any order.
    ///
    /// # Panics
    /// If one is missing, or was never borrowed.
    pub fn take_back(&mut self, buffers: &mut VecDeque<Slot>) {
        let (Some(kept), Some(store)) = (self.lent_from.take(), &mut self.store) else {
            return;
        };
        buffers
            .make_contiguous()
            .sort_unstable_by_key(|b| b.as_ptr());
        for buffer in buffers.drain(..) {
            assert!(store.join(buffer).is_ok(), "a lent buffer is missing");
        }
        for slot in kept..self.used {
            self.cache.release(slot);
        }
    }

    /// Whether `bytes` of memory can be borrowed: as much stays.
    pub fn can_lend(&self, bytes: usize) -> bool {
        self.lends() || self.store.as_ref().is_some_and(|s| bytes <= s.len() / 2)
    }

    /// Whether a part of the memory is borrowed.
    pub fn lends(&self) -> bool {
        self.lent_from.is_some()
    }

    /// The part of the neurons that may be cached for which there is room.
    pub fn share(&self) -> f64 {
        self.used as f64 / self.cache.neurons().max(1) as f64
    }

    /// Takes a neuron over whose bundle is in memory, as if it had been wanted and read, unless it does not match
    /// its checksums; `neuron` counts among the core's cached ones.
    pub fn adopt(&mut self, neuron: usize, g: &FfnGeometry, bundle: &[u8], sums: NeuronSums) {
        let sum = |range: std::ops::Range<usize>| checksum(&bundle[range]) as u32;
        let sound = sum(g.up_offset()..g.bundle_bytes()) == sums.up_down
            && (!self.rules.whole || sum(0..g.gate_row()) == sums.gate);
        if !sound {
            return;
        }
        let slot = match self.cache.hold(neuron) {
            Some(slot) => slot,
            None => {
                let Some(slot) = self.cache.admit(neuron) else {
                    return;
                };
                let from = &bundle[self.origin(g)..g.bundle_bytes()];
                if let Some(store) = &mut self.store {
                    store[slot * self.slot_bytes..][..from.len()].copy_from_slice(from);
                }
                self.parts[slot] = Parts::BUNDLE;
                slot
            }
        };
        self.cache.release(slot);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture::{NEURONS, geometry, store};
    use super::*;
    use crate::cache::PolicyKind;

    fn bundle(neuron: usize) -> Vec<u8> {
        vec![neuron as u8 + 1; geometry().bundle_bytes()]
    }

    fn adopt(store: &mut NeuronStore, neuron: usize) {
        let (g, bytes) = (geometry(), bundle(neuron));
        let sums = NeuronSums {
            gate: checksum(&bytes[..g.gate_row()]) as u32,
            up_down: checksum(&bytes[g.up_offset()..]) as u32,
        };
        store.adopt(neuron, &g, &bytes, sums);
    }

    /// Checks that every cached neuron's bytes are its own.
    fn check(store: &mut NeuronStore) {
        for neuron in 0..NEURONS {
            if let Some(slot) = store.cache.hold(neuron) {
                let memory = store.store.as_ref().expect("a store");
                let bytes = &memory[slot * store.slot_bytes..][..store.slot_bytes];
                assert!(
                    bytes.iter().all(|&b| b == neuron as u8 + 1),
                    "neuron {neuron}"
                );
                assert!(store.parts[slot].has(Parts::BUNDLE));
                store.cache.release(slot);
            }
        }
    }

    proptest! {
        /// Lending forgets what lies in the lent part and nothing else, adopted neurons never lie there, and the
        /// whole memory is in use again afterwards, whatever the policy.
        #[test]
        fn lent_memory_comes_back(
            slots in 24usize..48, buffers in 2usize..5, pages in 1usize..3,
            before in prop::collection::vec(0..NEURONS, 0..120),
            during in prop::collection::vec(0..NEURONS, 0..120),
            policy in prop::sample::select(&[PolicyKind::TwoQueue, PolicyKind::Lru, PolicyKind::Frequency][..]),
        ) {
            let mut store = store(slots, policy);
            for neuron in before {
                adopt(&mut store, neuron);
            }
            check(&mut store);
            let (whole, cached) = (store.store.as_ref().map(|s| s.len()), store.cached());
            let mut lent = VecDeque::new();
            store.lend(buffers, pages * PAGE, &mut lent);
            prop_assert!(store.lends() && lent.len() == buffers && store.cached() <= cached);
            for buffer in &mut lent {
                prop_assert!(buffer.len() >= pages * PAGE);
                buffer.fill(0xff);
            }
            check(&mut store);
            for neuron in during {
                adopt(&mut store, neuron);
            }
            check(&mut store);
            lent.rotate_left(1);
            store.take_back(&mut lent);
            prop_assert!(!store.lends() && lent.is_empty());
            prop_assert_eq!(store.store.as_ref().map(|s| s.len()), whole);
            for neuron in 0..NEURONS {
                adopt(&mut store, neuron);
            }
            check(&mut store);
            prop_assert_eq!(store.cached(), slots.min(NEURONS));
        }
    }

    proptest! {
        /// A cache that shrinks and grows again forgets what it has no slots for and nothing else, lends and takes
        /// back what it has, and ends with all of its slots.
        #[test]
        fn a_cache_shrinks_and_grows(
            sizes in prop::collection::vec(1usize..48, 1..8), lends in any::<bool>(),
            wanted in prop::collection::vec(0..NEURONS, 0..120),
            policy in prop::sample::select(&[PolicyKind::TwoQueue, PolicyKind::Lru, PolicyKind::Frequency][..]),
        ) {
            let mut store = store(40, policy);
            for slots in sizes {
                for &neuron in &wanted {
                    adopt(&mut store, neuron);
                }
                prop_assert!(store.resize(slots));
                let used = store.slots_in_use();
                prop_assert_eq!(used, slots.min(40));
                prop_assert!(store.cached() <= used);
                check(&mut store);
                let mut lent = VecDeque::new();
                if lends && store.can_lend(2 * PAGE) {
                    store.lend(2, PAGE, &mut lent);
                    prop_assert!(!store.resize(40) || used == 40);
                    lent.iter_mut().for_each(|buffer| buffer.fill(0xff));
                    check(&mut store);
                }
                for neuron in 0..NEURONS {
                    adopt(&mut store, neuron);
                }
                check(&mut store);
                store.take_back(&mut lent);
                prop_assert!(store.cached() <= used);
            }
            prop_assert!(store.resize(40));
            for neuron in 0..NEURONS {
                adopt(&mut store, neuron);
            }
            check(&mut store);
            prop_assert_eq!(store.cached(), 40);
        }
    }

    #[test]
    fn a_damaged_neuron_is_not_taken_over() {
        let mut store = store(24, PolicyKind::Lru);
        let sums = NeuronSums {
            gate: 1,
            up_down: 2,
        };
        store.adopt(3, &geometry(), &bundle(3), sums);
        assert_eq!(store.cached(), 0);
        adopt(&mut store, 3);
        assert_eq!(store.cached(), 1);
    }

    #[test]
    fn a_cache_that_is_too_small_lends_nothing() {
        let mut store = store(4, PolicyKind::Lru);
        let mut lent = VecDeque::new();
        store.lend(8, PAGE, &mut lent);
        assert!(lent.is_empty() && !store.lends());
    }
}
