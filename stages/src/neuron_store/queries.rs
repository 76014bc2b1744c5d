//! Queries about flights and the cache, which change neither.

use super::parts::Parts;
use super::{NO_SLOT, NeuronStore};
use crate::live_mask::LiveMask;

impl NeuronStore {
    /// The parts that a waiting flight wants of its neurons, and the neurons that have them.
    pub fn here(&self, flight: usize) -> (Parts, LiveMask) {
        let (entry, mut here) = (&self.flights[flight], LiveMask::NONE);
        let Some(wanted) = entry.wanted else {
            return (Parts::NONE, here);
        };
        for neuron in wanted.live.iter() {
            let slot = entry.slots[neuron];
            if slot != NO_SLOT && self.parts[slot as usize].has(wanted.parts) {
                here.set(neuron);
            }
        }
        (wanted.parts, here)
    }

    /// Reads that wait for a buffer.
    pub fn queued(&self) -> usize {
        self.spans.len()
    }

    /// Neurons in the cache that are there as a whole, best to keep first.
    pub fn contents(&self, out: &mut Vec<u32>) {
        self.cache.contents(out);
    }
}
