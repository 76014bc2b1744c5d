//! The neuron cache: which neurons' rows are in memory, and in which slot.
//!
//! [`NeuronCache`] is what UDIO uses. The directory (neurons, slots, holds, lists) is the same for
//! all policies; a policy decides which neuron is dropped when a slot is needed.

mod any_policy;
mod directory;
mod frequency;
mod kind;
mod lru;
mod no_cache;
mod policy;
#[cfg(test)]
mod tests;
mod two_queue;
mod window;

pub use kind::{PolicyKind, UnknownPolicy};

use any_policy::AnyPolicy;
use directory::Directory;
use policy::Policy;

/// Directory of a neuron cache with a fixed number of slots: it tells where neurons are, and the
/// caller keeps their bytes.
///
/// Neurons that a cluster is about to use are *held*; no policy ever drops them. Nothing is
/// allocated after [`Self::new`], except by [`Self::contents`] for its result.
#[derive(Debug)]
pub struct NeuronCache {
    directory: Directory,
    policy: AnyPolicy,
}

impl NeuronCache {
    /// An empty cache of `slots` slots for neurons `0..neurons`.
    ///
    /// # Panics
    /// If `neurons` or `slots` does not fit 31 bits.
    pub fn new(kind: PolicyKind, neurons: usize, slots: usize) -> Self {
        let policy = AnyPolicy::new(kind, slots);
        Self {
            directory: Directory::new(neurons, slots, policy.best_first().len()),
            policy,
        }
    }

    /// Maximum bytes of the directory under any policy: 4 per neuron, 20 per slot and 3860 in addition. Saturates.
    pub fn bytes(neurons: usize, slots: usize) -> usize {
        Directory::bytes(neurons, slots, frequency::LISTS)
    }

    /// Lookups of `neurons` follow: what they need is fetched from memory all at once.
    pub fn warm(&self, neurons: impl Iterator<Item = usize>) {
        self.directory.warm(neurons);
    }

    /// The slot of `neuron`, which is not held by this.
    pub fn slot_of(&self, neuron: usize) -> Option<usize> {
        self.directory.slot_of(neuron).map(|slot| slot as usize)
    }

    /// Looks `neuron` up; a hit counts as an access and holds the slot.
    pub fn hold(&mut self, neuron: usize) -> Option<usize> {
        let slot = self.directory.slot_of(neuron)?;
        self.policy.hit(&mut self.directory, slot);
        self.directory.hold(slot);
        Some(slot as usize)
    }

    /// Gives `neuron`, which must be absent, a held slot: a free one, or that of the neuron the
    /// policy drops. Counts as an access. `None` when all slots are held.
    pub fn admit(&mut self, neuron: usize) -> Option<usize> {
        if self.directory.is_full() {
            let victim = self.policy.victim(&self.directory)?;
            self.policy.leaving(&mut self.directory, victim);
            self.directory.vacate(victim);
        }
        let slot = self.directory.settle(neuron)?;
        self.directory.hold(slot);
        self.policy.entered(&mut self.directory, slot);
        Some(slot as usize)
    }

    /// Gives `neuron` a free slot before it is wanted, for instance when the neurons of an earlier run are loaded in
    /// the order of [`Self::contents`]. The caller fills the slot before the next [`Self::hold`], or disowns it. `None`
    /// if there is nothing to fill: the neuron is already here, is not one of the cache's, no slot is free, or the
    /// policy keeps nothing.
    pub fn preload(&mut self, neuron: usize) -> Option<usize> {
        if !self.directory.has_neuron(neuron) || self.directory.slot_of(neuron).is_some() {
            return None;
        }
        let slot = self.directory.settle(neuron)?;
        self.policy.preloaded(&mut self.directory, slot);
        self.directory.slot_of(neuron).map(|slot| slot as usize)
    }

    /// Ends one hold of `slot`.
    pub fn release(&mut self, slot: usize) {
        let slot = slot as u32;
        if !self.directory.release(slot) {
            return;
        }
        if self.directory.is_settled(slot) {
            self.policy.idle(&mut self.directory, slot);
        } else {
            self.directory.vacate(slot);
        }
    }

    /// Makes the neuron in `slot` absent: its bytes could not be read. The slot is the first to be
    /// reused once it is not held.
    pub fn disown(&mut self, slot: usize) {
        let slot = slot as u32;
        if !self.directory.is_settled(slot) {
            return;
        }
        self.policy.leaving(&mut self.directory, slot);
        if self.directory.is_held(slot) {
            self.directory.unsettle(slot);
        } else {
            self.directory.vacate(slot);
        }
    }

    /// Takes `slot`, which is not held, out of use: its neuron becomes absent, and no other gets the slot before it is
    /// [released](Self::release).
    pub fn withdraw(&mut self, slot: usize) {
        let slot = slot as u32;
        debug_assert!(!self.directory.is_held(slot), "slot {slot} is held");
        if self.directory.is_settled(slot) {
            self.policy.leaving(&mut self.directory, slot);
        }
        self.directory.unsettle(slot);
        self.directory.hold(slot);
    }

    /// Tells the policy that a token is done.
    pub fn end_token(&mut self) {
        self.policy.end_token(&mut self.directory);
    }

    /// Number of neurons, cached or not.
    pub fn neurons(&self) -> usize {
        self.directory.neurons_in_all()
    }

    /// Number of neurons in the cache.
    pub fn len(&self) -> usize {
        self.directory.residents()
    }

    /// Slots that have no neuron and may get one.
    pub fn vacant(&self) -> usize {
        self.directory.vacant()
    }

    /// Holds on slots that have not been released.
    pub fn holds(&self) -> usize {
        self.directory.holds()
    }

    /// Whether no neuron is in the cache.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the neurons in the cache to `out`, those that are best to keep first.
    pub fn contents(&self, out: &mut Vec<u32>) {
        for &list in self.policy.best_first() {
            out.extend(self.directory.neurons(list));
        }
    }
}
