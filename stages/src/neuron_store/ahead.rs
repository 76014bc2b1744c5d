//! Reading ahead: neurons that the next layer will probably want, while the disk has nothing else to do.

use std::ops::Range;

use forebay_models::bundle::NeuronSums;
use forebay_plans::residency::Loading;
use forebay_queues::slab::{PAGE, Slot};

use super::parts::{CorruptNeuron, Parts, Place};
use super::{NO_SLOT, NeuronStore};
use crate::live_mask::LiveMask;

/// Reads ahead that may wait to be started.
pub(super) const MAX_AHEAD: usize = 64;

/// A read of one neuron that will probably be wanted in the next layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AheadRead {
    place: Place,
    neuron: usize,
    slot: u32,
}

impl AheadRead {
    /// The cache slot that it fills.
    pub fn slot(&self) -> usize {
        self.slot as usize
    }

    /// What to read: pages of the file.
    pub fn pages(&self) -> Range<u64> {
        let g = &self.place.geometry;
        let start = self.neuron * g.bundle_stride();
        let end = (start + g.bundle_bytes()).next_multiple_of(PAGE);
        let first = start / PAGE * PAGE;
        self.place.file_offset + first as u64..self.place.file_offset + end as u64
    }
}

impl NeuronStore {
    /// Queues reads of those of the `probable` neurons that are not in memory, for the next layer. Nothing
    /// depends on them; they wait behind all others.
    pub fn read_ahead(&mut self, place: &Place, probable: &LiveMask) {
        if self.rules.loading != Loading::Bundle || !self.rules.whole {
            return;
        }
        for neuron in probable.iter() {
            if self.ahead.len() >= MAX_AHEAD || self.cache.has(place.base + neuron) {
                continue;
            }
            let Some(slot) = self.cache.admit(place.base + neuron) else {
                return;
            };
            self.parts[slot] = Parts::COMING;
            self.waiters[slot] = NO_SLOT;
            self.ahead.push_back(AheadRead {
                place: *place,
                neuron,
                slot: slot as u32,
            });
        }
    }

    /// The layer that was read ahead for begins: what has not been started is read as it is wanted.
    pub fn stop_reading_ahead(&mut self) {
        while let Some(read) = self.ahead.pop_front() {
            self.forget(read.slot());
            self.cache.release(read.slot());
        }
    }

    /// A neuron that was read ahead. If a flight waits for it meanwhile, this is a read like others; else
    /// nobody minds if it failed.
    pub(super) fn arrived_ahead(
        &mut self,
        read: &AheadRead,
        buffer: Slot,
        read_ok: bool,
        sums_of: impl Fn(usize, usize) -> Option<NeuronSums>,
    ) -> Result<Option<usize>, CorruptNeuron> {
        let (g, slot) = (read.place.geometry, read.slot());
        let at = read.neuron * g.bundle_stride() % PAGE;
        let len = g.bundle_bytes();
        if let Some(store) = &mut self.store {
            store[slot * self.slot_bytes..][..len].copy_from_slice(&buffer[at..at + len]);
        }
        self.buffers.push(buffer);
        let sums = sums_of(read.place.cluster, read.neuron);
        let sound = read_ok && self.complete(&g, Parts::BUNDLE, slot, len, sums);
        let waiter = std::mem::replace(&mut self.waiters[slot], NO_SLOT);
        match (sound, waiter) {
            (false, _) => self.forget(slot),
            (true, NO_SLOT) => self.parts[slot] = Parts::BUNDLE.with(Parts::AHEAD),
            (true, _) => self.parts[slot] = Parts::BUNDLE,
        }
        self.cache.release(slot);
        let mut ready = None;
        if waiter != NO_SLOT {
            let flight = &mut self.flights[waiter as usize];
            flight.missing[0].clear(read.neuron);
            ready = flight.is_ready().then_some(waiter as usize);
        }
        if read_ok && !sound && waiter != NO_SLOT {
            return Err(CorruptNeuron {
                cluster: read.place.cluster,
                neuron: read.neuron,
                ready,
            });
        }
        Ok(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Wanted;
    use super::super::fixture::{geometry, store};
    use super::*;
    use crate::cache::PolicyKind;

    fn place() -> Place {
        Place {
            base: 0,
            file_offset: 0,
            geometry: geometry(),
            cluster: 0,
        }
    }

    /// A read that was made ahead, and has failed, is a fault only where a flight waits for it by then; the neuron
    /// can be read again afterwards.
    #[test]
    fn a_read_ahead_is_awaited_once_a_flight_wants_its_neuron() {
        let wanted = Wanted {
            flight: 0,
            place: place(),
            live: LiveMask::only(3),
            parts: Parts::BUNDLE,
        };
        for in_vain in [true, false] {
            let mut store = store(8, PolicyKind::Lru);
            store.read_ahead(&place(), &wanted.live);
            let read = store.next_read().expect("a neuron is not here");
            assert!(read.is_ahead && !store.is_awaited(read.id));
            if !in_vain {
                assert!(!store.want(wanted));
                assert!(store.is_awaited(read.id) && store.next_read().is_none());
            }
            let ready = store.arrived(read.id, read.slot, false, |_, _| None);
            assert_eq!(ready.expect("not corrupt"), (!in_vain).then_some(0));
            assert!(!store.is_awaited(read.id));
            if in_vain {
                assert!(!store.want(wanted));
                let again = store.next_read().expect("it has to be read");
                assert!(!again.is_ahead && store.is_awaited(again.id));
            }
        }
    }
}
