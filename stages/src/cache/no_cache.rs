//! No caching: a neuron is forgotten when its last hold ends. The baseline of every comparison.

use super::directory::{Directory, List};
use super::policy::Policy;

const HELD: List = List::of_policy(0);

/// Only held neurons are here.
#[derive(Debug)]
pub(super) struct NoCache;

impl Policy for NoCache {
    fn best_first(&self) -> &'static [List] {
        &[HELD]
    }

    fn entered(&mut self, directory: &mut Directory, slot: u32) {
        directory.push_front(HELD, slot);
    }

    fn preloaded(&mut self, directory: &mut Directory, slot: u32) {
        directory.vacate(slot);
    }

    fn hit(&mut self, directory: &mut Directory, slot: u32) {
        directory.push_front(HELD, slot);
    }

    fn idle(&mut self, directory: &mut Directory, slot: u32) {
        directory.vacate(slot);
    }

    fn victim(&self, _directory: &Directory) -> Option<u32> {
        None
    }
}
