//! Counting slots, holds and buffers, for checks that none is lost.

use super::NeuronStore;

/// Where a neuron cache's slots and buffers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreTally {
    /// Number of slots.
    pub slots: usize,
    /// Slots with a neuron that may be found.
    pub cached: usize,
    /// Slots that the next neurons get.
    pub vacant: usize,
    /// Holds on slots, all flights' together.
    pub holds: usize,
    /// Bytes of the store that are here and not borrowed.
    pub bytes: usize,
    /// Free read buffers.
    pub buffers: usize,
    /// Reads in flight.
    pub reads: usize,
    /// Reads due.
    pub due: usize,
    /// Flights that wait for slots.
    pub blocked: usize,
    /// Whether a part of the store is borrowed.
    pub lends: bool,
}

impl NeuronStore {
    /// Neurons in the cache.
    pub fn cached(&self) -> usize {
        self.cache.len()
    }

    /// Where slots and buffers are.
    pub fn tally(&self) -> StoreTally {
        StoreTally {
            slots: self.parts.len(),
            cached: self.cache.len(),
            vacant: self.cache.vacant(),
            holds: self.cache.holds(),
            bytes: self.store.as_ref().map_or(0, |store| store.len()),
            buffers: self.buffers.len(),
            reads: self.reads.len() - self.free_reads.len(),
            due: self.spans.len(),
            blocked: self.blocked.len(),
            lends: self.lends(),
        }
    }
}
