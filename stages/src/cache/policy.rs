//! What a cache policy decides.

use super::directory::{Directory, List};

/// Decides which neurons stay. It keeps every slot that has a neuron in one of its lists.
pub(super) trait Policy {
    /// Its lists; those whose neurons are the best to keep come first.
    fn best_first(&self) -> &'static [List];

    /// A neuron came into `slot`, is held, and the slot is in no list.
    fn entered(&mut self, directory: &mut Directory, slot: u32);

    /// A neuron came into `slot` before it was wanted, less worth keeping than those preloaded
    /// before; the slot is in no list.
    fn preloaded(&mut self, directory: &mut Directory, slot: u32);

    /// The neuron in `slot` is wanted again and about to be held.
    fn hit(&mut self, directory: &mut Directory, slot: u32);

    /// The last hold of `slot` ended.
    fn idle(&mut self, _directory: &mut Directory, _slot: u32) {}

    /// The slot to reuse next: one that is not held.
    fn victim(&self, directory: &Directory) -> Option<u32>;

    /// The neuron in `slot` is about to be dropped.
    fn leaving(&mut self, _directory: &mut Directory, _slot: u32) {}

    /// A token is done.
    fn end_token(&mut self, _directory: &mut Directory) {}
}
