//! Which recurrent state belongs to which sequence.
//!
//! A state stands for all tokens of its sequence so far, and cannot be taken back. So a sequence keeps a second one, a
//! snapshot of an earlier position, to which it can be cut. Sequences share states after a fork, until one of them
//! grows.

use super::pool::{Pool, PoolShape};
use super::{Copies, Snapshot, StateCopy, TokenPlace};

/// States that a sequence may need: its own, and a snapshot.
pub const STATES_OF_SEQUENCE: usize = 2;

/// One sequence's states.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The state after all its tokens; `None` if it has none, so that the state is zero.
    live: Option<u32>,
    /// The state of an earlier position.
    snapshot: Option<(usize, u32)>,
    /// Where a snapshot is to be taken once the sequence gets there.
    wanted: Option<usize>,
}

/// The states of all sequences.
pub(super) fn pool(states: usize) -> Pool {
    Pool::new(PoolShape {
        blocks: states,
        window: None,
    })
}

impl State {
    /// The state that its tokens change.
    pub fn live(&self) -> Option<u32> {
        self.live
    }

    /// The same states for another sequence.
    pub fn fork(&self, pool: &mut Pool) -> Self {
        let snapshot = self.snapshot.map(|(_, state)| state);
        for state in self.live.into_iter().chain(snapshot) {
            pool.share(state);
        }
        Self {
            wanted: None,
            ..*self
        }
    }

    /// A snapshot is taken at `position` in place of the present one as soon as the sequence gets there.
    pub fn want(&mut self, position: usize) {
        self.wanted = Some(position);
    }

    /// The last position up to `position` to which the sequence can be cut, for which `reaches` is true.
    pub fn last(&self, position: usize, reaches: impl Fn(usize) -> bool) -> usize {
        let snapshot = self.snapshot.map(|(position, _)| position);
        snapshot
            .filter(|&at| at <= position && reaches(at))
            .unwrap_or(0)
    }

    /// How many states must be free so that tokens can be added.
    pub fn needed(&self, pool: &Pool) -> usize {
        match self.live {
            Some(live) => usize::from(pool.is_shared(live)),
            None => 1,
        }
    }

    /// Takes the states that tokens from `place` up to position `end` need. The snapshot is optional: nothing fails
    /// without.
    pub fn extend(&mut self, pool: &mut Pool, place: TokenPlace, end: usize, copies: &mut Copies) {
        let len = place.position as usize;
        let wanted = self.wanted.filter(|&at| (len..end).contains(&at) && at > 0);
        if wanted.is_some() {
            self.wanted = None;
            self.drop_snapshot(pool);
        }
        if wanted == Some(len)
            && let Some(live) = self.live
            && pool.free() > 0
        {
            pool.share(live);
            self.snapshot = Some((len, live));
        }
        let from = self.live.filter(|&live| pool.is_shared(live));
        if self.live.is_none() || from.is_some() {
            let to = pool.take();
            from.into_iter().for_each(|live| pool.release(live));
            copies.states.push(StateCopy { from, to });
            self.live = Some(to);
        }
        if let Some(at) = wanted.filter(|&at| at > len)
            && pool.free() > 0
        {
            let state = pool.take();
            self.snapshot = Some((at, state));
            let position = at as u32;
            copies.snapshots.push(Snapshot {
                before: TokenPlace { position, ..place },
                state,
            });
        }
    }

    /// Goes back to position `len`, which [`Self::last`] has named.
    pub fn cut(&mut self, pool: &mut Pool, len: usize) {
        self.live
            .take()
            .into_iter()
            .for_each(|live| pool.release(live));
        self.wanted = None;
        match self.snapshot {
            Some((at, state)) if at == len => {
                pool.share(state);
                self.live = Some(state);
            }
            _ => self.drop_snapshot(pool),
        }
    }

    fn drop_snapshot(&mut self, pool: &mut Pool) {
        if let Some((_, state)) = self.snapshot.take() {
            pool.release(state);
        }
    }
}
