//! GIO: reading clusters whose Gate rows (or whole matrix rows) are not in memory.
//!
//! A core's streamed clusters are used in the same order for every token, so their reads are known before anything is
//! computed: GIO follows that cycle ahead of the computation, as far as its window of buffers allows, across layers and
//! tokens. Nothing is guessed, so nothing is read that is not used, except the head if a step without logits follows
//! one with them.

use std::collections::VecDeque;

use forebay_queues::slab::Slot;

#[derive(Debug)]
enum State {
    /// On flash only.
    Away,
    /// Being read.
    Coming,
    /// Being read, but not wanted any more.
    Unwanted,
    /// In a buffer, waiting for its turn.
    Here(Slot),
    /// In a buffer that a stage is using.
    InUse,
}

/// Where the buffers of a window are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowTally {
    /// Waiting for something to read.
    pub free: usize,
    /// Holding a cluster that waits for its turn.
    pub here: usize,
    /// Being filled.
    pub coming: usize,
    /// Holding a cluster that a stage uses.
    pub in_use: usize,
}

/// The stream window of one core.
#[derive(Debug)]
pub struct Window {
    /// By stream ordinal: place in the cycle of streamed clusters.
    states: Vec<State>,
    /// Next ordinal to read; at the end of a pass it stays there until the first ordinal is free.
    next: usize,
    /// Number of ordinals in the current pass.
    end: usize,
    /// The ordinal before which reads stop, if the window may not run ahead of the phase.
    horizon: Option<usize>,
    /// Whether another pass follows, into which the window may run ahead.
    wraps: bool,
    free: VecDeque<Slot>,
}

impl Window {
    /// A window over `streamed` clusters with the given buffers.
    pub fn new(streamed: usize, buffers: Vec<Slot>) -> Self {
        let states = (0..streamed).map(|_| State::Away).collect();
        Self {
            states,
            next: 0,
            end: streamed,
            horizon: None,
            wraps: true,
            free: buffers.into(),
        }
    }

    /// A pass over the first `end` ordinals begins. What was read ahead beyond them is discarded: it would keep buffers
    /// that this pass needs.
    pub fn begin_pass(&mut self, end: usize) {
        self.end = end.min(self.states.len());
        self.give_up(self.end);
        if !matches!(self.states.first(), Some(State::Here(_) | State::Coming)) {
            // Nothing of this pass has been read ahead: the last one did not reach the end.
            self.next = 0;
        }
    }

    /// Sets whether another pass follows the current one. If not, nothing of it is read ahead.
    pub fn set_wraps(&mut self, wraps: bool) {
        self.wraps = wraps;
    }

    /// The free buffers, to add some or to take all of them.
    pub fn free(&mut self) -> &mut VecDeque<Slot> {
        &mut self.free
    }

    /// From now on, reads stop before `ordinal`: the baselines do not read ahead.
    pub fn stop_before(&mut self, ordinal: usize) {
        self.horizon = Some(ordinal);
    }

    /// Discards everything that was read ahead: it may be as bad as a read that failed.
    pub fn restart(&mut self) {
        self.give_up(0);
    }

    /// Discards what was read ahead from ordinal `first` on.
    fn give_up(&mut self, first: usize) {
        for state in &mut self.states[first..] {
            *state = match std::mem::replace(state, State::Away) {
                State::Here(slot) => {
                    self.free.push_back(slot);
                    State::Away
                }
                State::Coming => State::Unwanted,
                other => other,
            };
        }
        self.next = self.next.min(first);
    }

    /// The next read to start, if a buffer is free: the cluster's ordinal and the buffer to fill.
    pub fn next_read(&mut self) -> Option<(usize, Slot)> {
        if self.horizon.is_some_and(|h| self.next >= h) {
            return None;
        }
        if self.next >= self.end && !self.wraps {
            return None;
        }
        let ordinal = if self.next < self.end { self.next } else { 0 };
        let state = self.states[..self.end].get_mut(ordinal)?;
        if !matches!(state, State::Away) {
            // The window is as long as the cycle, or a buffer has not been returned yet.
            return None;
        }
        let slot = self.free.pop_front()?;
        *state = State::Coming;
        self.next = ordinal + 1;
        Some((ordinal, slot))
    }

    /// A read is complete; false if it is not wanted any more.
    pub fn arrived(&mut self, ordinal: usize, slot: Slot) -> bool {
        let state = &mut self.states[ordinal];
        let wanted = !matches!(state, State::Unwanted);
        debug_assert!(matches!(state, State::Coming | State::Unwanted));
        *state = if wanted {
            State::Here(slot)
        } else {
            self.free.push_back(slot);
            State::Away
        };
        wanted
    }

    /// A cluster that has been read and waits for its turn.
    pub fn here(&self, ordinal: usize) -> Option<&Slot> {
        match self.states.get(ordinal)? {
            State::Here(slot) => Some(slot),
            _ => None,
        }
    }

    /// Takes a cluster that has been read.
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

    /// Returns the buffer of a used cluster.
    pub fn release(&mut self, ordinal: usize, slot: Slot) {
        debug_assert!(matches!(self.states[ordinal], State::InUse));
        self.states[ordinal] = State::Away;
        self.free.push_back(slot);
    }

    /// Whether a read is in flight.
    pub fn is_reading(&self) -> bool {
        let under_way = |s: &State| matches!(s, State::Coming | State::Unwanted);
        self.states.iter().any(under_way)
    }

    /// Where the buffers are.
    pub fn tally(&self) -> WindowTally {
        let count = |f: fn(&State) -> bool| self.states.iter().filter(|s| f(s)).count();
        WindowTally {
            free: self.free.len(),
            here: self.ready(),
            coming: count(|s| matches!(s, State::Coming | State::Unwanted)),
            in_use: count(|s| matches!(s, State::InUse)),
        }
    }

    /// Clusters that have been read and not yet used.
    pub fn ready(&self) -> usize {
        self.states
            .iter()
            .filter(|s| matches!(s, State::Here(_)))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_queues::slab::{PAGE, Slab};
    use proptest::prelude::*;

    fn buffers(n: usize) -> Vec<Slot> {
        let mut slab = Slab::new(n * PAGE).expect("small");
        (0..n)
            .map(|_| slab.carve(PAGE).expect("cut to size"))
            .collect()
    }

    proptest! {
        /// In any order of arrival, a consumer that takes the cycle in order always makes progress,
        /// each cluster is read once per use, and buffers are neither lost nor duplicated.
        #[test]
        fn cyclic_consumer_never_starves(
            streamed in 1usize..12, window in 1usize..6, order in prop::collection::vec(0usize..6, 1..200),
        ) {
            let room = window.min(streamed);
            let mut window = Window::new(streamed, buffers(room));
            let (mut flying, mut consumed) = (Vec::new(), 0);
            for pick in order {
                while let Some(read) = window.next_read() {
                    flying.push(read);
                }
                prop_assert!(flying.len() + window.ready() <= room);
                if !flying.is_empty() {
                    let (ordinal, slot) = flying.remove(pick % flying.len());
                    window.arrived(ordinal, slot);
                }
                while let Some(slot) = window.take(consumed % streamed) {
                    window.release(consumed % streamed, slot);
                    consumed += 1;
                }
            }
            let due = consumed % streamed;
            while let Some(read) = window.next_read() {
                flying.push(read);
            }
            prop_assert!(window.take(due).is_some() || flying.iter().any(|f| f.0 == due));
        }

        /// Passes with and without the tail of the cycle, in any mixture, with restarts between them and reads that
        /// finish in any order: every pass gets all its clusters.
        #[test]
        fn passes_without_the_tail_never_starve(
            streamed in 1usize..12,
            window in 1usize..14,
            tail in 0usize..12,
            passes in prop::collection::vec((any::<bool>(), any::<bool>(), 0usize..3, 0usize..6), 1..30),
        ) {
            let (room, body) = (window.min(streamed), streamed - tail.min(streamed));
            let mut window = Window::new(streamed, buffers(room));
            let mut flying: Vec<(usize, Slot)> = Vec::new();
            for (whole, restart, idle_arrivals, pick) in passes {
                // Reads ahead, and some reads finish while nothing is computed.
                for _ in 0..idle_arrivals {
                    flying.extend(std::iter::from_fn(|| window.next_read()));
                    if !flying.is_empty() {
                        let (ordinal, slot) = flying.remove(pick % flying.len());
                        window.arrived(ordinal, slot);
                    }
                }
                if restart {
                    window.restart();
                }
                let end = if whole { streamed } else { body };
                window.begin_pass(end);
                for ordinal in 0..end {
                    let slot = loop {
                        flying.extend(std::iter::from_fn(|| window.next_read()));
                        if let Some(slot) = window.take(ordinal) {
                            break slot;
                        }
                        prop_assert!(!flying.is_empty(), "ordinal {} of {} never comes", ordinal, end);
                        let (ordinal, slot) = flying.remove(pick % flying.len());
                        window.arrived(ordinal, slot);
                    };
                    window.release(ordinal, slot);
                }
                prop_assert!(flying.len() + window.ready() <= room);
            }
        }
    }
}
