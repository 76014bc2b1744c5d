//! Least recently used.

use super::directory::{Directory, List};
use super::policy::Policy;

const RECENT: List = List::of_policy(0);

/// One list, the last access first.
#[derive(Debug)]
pub(super) struct Lru;

impl Policy for Lru {
    fn best_first(&self) -> &'static [List] {
        &[RECENT]
    }

    fn entered(&mut self, directory: &mut Directory, slot: u32) {
        directory.push_front(RECENT, slot);
    }

    fn preloaded(&mut self, directory: &mut Directory, slot: u32) {
        directory.push_back(RECENT, slot);
    }

    fn hit(&mut self, directory: &mut Directory, slot: u32) {
        directory.push_front(RECENT, slot);
    }

    fn victim(&self, directory: &Directory) -> Option<u32> {
        directory.last_unheld(RECENT)
    }
}
