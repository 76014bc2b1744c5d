//! Lending a part of the cache's memory while a prompt is read, and taking neurons over from what was read.

use std::collections::VecDeque;

use forebay_models::bundle::FfnGeometry;
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
        for slot in kept..self.parts.len() {
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

    /// Takes all lent buffers back, in whatever order they come.
    ///
    /// # Panics
    /// If one is missing, or was never lent.
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
        for slot in kept..self.parts.len() {
            self.cache.release(slot);
        }
    }

    /// Whether a part of the memory is lent.
    pub fn lends(&self) -> bool {
        self.lent_from.is_some()
    }

    /// Takes a neuron over whose bundle is in memory, as if it had been wanted and read; `neuron` counts among the
    /// core's cached ones.
    pub fn adopt(&mut self, neuron: usize, g: &FfnGeometry, bundle: &[u8]) {
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
