//! LLM in a Flash's sliding window (arXiv 2312.11514, section 3.1): the neurons used in the last K
//! tokens stay.
//!
//! Slots are in order of their last use and marked with its token, so those that expire with a token are a tail of the
//! list. A neuron that is held when a token ends was in use in it. If slots run out before the window does, the least
//! recently used neuron is dropped.

use std::num::NonZeroU32;

use super::directory::{Directory, List};
use super::policy::Policy;

const RECENT: List = List::of_policy(0);

/// A window over tokens.
#[derive(Debug)]
pub(super) struct Window {
    /// Length of the window.
    tokens: u32,
    /// The current token. Counts may wrap: only differences matter, and those are short.
    now: u32,
}

impl Window {
    pub(super) fn new(tokens: NonZeroU32) -> Self {
        Self {
            tokens: tokens.get(),
            now: 0,
        }
    }

    fn used(&self, directory: &mut Directory, slot: u32) {
        directory.set_mark(slot, self.now);
        directory.push_front(RECENT, slot);
    }
}

impl Policy for Window {
    fn best_first(&self) -> &'static [List] {
        &[RECENT]
    }

    fn entered(&mut self, directory: &mut Directory, slot: u32) {
        self.used(directory, slot);
    }

    /// Counts as old as the oldest neuron here, or as used in this token if there is none.
    fn preloaded(&mut self, directory: &mut Directory, slot: u32) {
        let oldest = directory.back(RECENT);
        directory.set_mark(slot, oldest.map_or(self.now, |back| directory.mark(back)));
        directory.push_back(RECENT, slot);
    }

    fn hit(&mut self, directory: &mut Directory, slot: u32) {
        self.used(directory, slot);
    }

    fn victim(&self, directory: &Directory) -> Option<u32> {
        directory.last_unheld(RECENT)
    }

    fn end_token(&mut self, directory: &mut Directory) {
        while let Some(oldest) = directory.back(RECENT)
            && self.now.wrapping_sub(directory.mark(oldest)) >= self.tokens
        {
            if directory.is_held(oldest) {
                self.used(directory, oldest);
            } else {
                directory.vacate(oldest);
            }
        }
        self.now = self.now.wrapping_add(1);
    }
}
