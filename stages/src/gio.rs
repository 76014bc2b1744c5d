//! GIO: reading clusters whose Gate rows (or whole matrix rows) are not in memory.
//!
//! A core's streamed clusters come up in the same order for every token, so their reads are known
//! before anything is computed: GIO walks that cycle ahead of the computation, as far as its window of
//! buffers reaches, across layers and across tokens. Nothing is guessed, so nothing is read in vain.

use std::collections::VecDeque;

use forebay_queues::slab::Slot;

#[derive(Debug)]
enum State {
    /// On flash only.
    Away,
    /// A read is under way.
    Coming,
    /// In a buffer, waiting for its turn.
    Here(Slot),
    /// In a buffer that a stage is using.
    InUse,
}

/// The stream window of one core.
#[derive(Debug)]
pub struct Gio {
    /// By stream ordinal: place in the cycle of streamed clusters.
    states: Vec<State>,
    /// Next ordinal to read.
    next: usize,
    free: VecDeque<Slot>,
}

impl Gio {
    /// A window over `streamed` clusters with the given buffers.
    pub fn new(streamed: usize, buffers: Vec<Slot>) -> Self {
        let states = (0..streamed).map(|_| State::Away).collect();
        Self { states, next: 0, free: buffers.into() }
    }

    /// The next read to start, if a buffer is free: the cluster's ordinal and the buffer to fill.
    pub fn next_read(&mut self) -> Option<(usize, Slot)> {
        let state = self.states.get_mut(self.next)?;
        if !matches!(state, State::Away) {
            // The window is as long as the cycle.
            return None;
        }
        let slot = self.free.pop_front()?;
        *state = State::Coming;
        let ordinal = self.next;
        self.next = (self.next + 1) % self.states.len();
        Some((ordinal, slot))
    }

    /// A read is complete.
    pub fn arrived(&mut self, ordinal: usize, slot: Slot) {
        debug_assert!(matches!(self.states[ordinal], State::Coming));
        self.states[ordinal] = State::Here(slot);
    }

    /// Takes a cluster that has arrived.
    pub fn take(&mut self, ordinal: usize) -> Option<Slot> {
        let state = &mut self.states[ordinal];
        match std::mem::replace(state, State::InUse) {
            State::Here(slot) => Some(slot),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Gives the buffer of a used cluster back.
    pub fn release(&mut self, ordinal: usize, slot: Slot) {
        debug_assert!(matches!(self.states[ordinal], State::InUse));
        self.states[ordinal] = State::Away;
        self.free.push_back(slot);
    }

    /// Clusters read and not used yet.
    pub fn ready(&self) -> usize {
        self.states.iter().filter(|s| matches!(s, State::Here(_))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_queues::slab::{PAGE, Slab};
    use proptest::prelude::*;

    fn buffers(n: usize) -> Vec<Slot> {
        let mut slab = Slab::new(n * PAGE).expect("small");
        (0..n).map(|_| slab.carve(PAGE).expect("carved to size")).collect()
    }

    proptest! {
        /// Whatever the order of arrival, a consumer that takes the cycle in order always gets on,
        /// each cluster is read once per use, and buffers are neither lost nor doubled.
        #[test]
        fn cyclic_consumer_never_starves(
            streamed in 1usize..12, window in 1usize..6, order in prop::collection::vec(0usize..6, 1..200),
        ) {
            let window = window.min(streamed);
            let mut gio = Gio::new(streamed, buffers(window));
            let (mut flying, mut consumed) = (Vec::new(), 0);
            for pick in order {
                while let Some(read) = gio.next_read() {
                    flying.push(read);
                }
                prop_assert!(flying.len() + gio.ready() <= window);
                if !flying.is_empty() {
                    let (ordinal, slot) = flying.remove(pick % flying.len());
                    gio.arrived(ordinal, slot);
                }
                while let Some(slot) = gio.take(consumed % streamed) {
                    gio.release(consumed % streamed, slot);
                    consumed += 1;
                }
            }
            let due = consumed % streamed;
            while let Some(read) = gio.next_read() {
                flying.push(read);
            }
            prop_assert!(gio.take(due).is_some() || flying.iter().any(|f| f.0 == due));
        }
    }
}
