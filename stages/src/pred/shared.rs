//! Clusters of experts in memory: any free core takes the next one, from its own list first. Which experts the tokens
//! use, and with them the lists, all cores know alike.

use std::sync::Arc;

use forebay_plans::program::{Item, Phase, Program, Source};
use forebay_queues::claims::Claims;

use crate::frame::Frame;

/// Clusters of experts in memory, of all cores.
#[derive(Debug)]
pub struct SharedExperts {
    claims: Claims,
    /// `[threads][phases]`; empty for phases that compute no experts.
    lists: Vec<Vec<Vec<Item>>>,
}

/// Whether any core may compute a cluster of a phase.
pub(super) fn is_shared(item: &Item) -> bool {
    item.expert.is_some() && item.source == Source::Pinned
}

impl SharedExperts {
    /// Those of the cores' programs; `None` if there are none.
    pub fn new(programs: &[Program]) -> Option<Self> {
        let shared = |phase: &Phase| {
            let items = phase.neurons().iter();
            items.filter(|item| is_shared(item)).copied().collect()
        };
        let of_core = |program: &Program| program.phases.iter().map(shared).collect();
        let lists: Vec<Vec<Vec<Item>>> = programs.iter().map(of_core).collect();
        let any = lists.iter().flatten().any(|list| !list.is_empty());
        any.then(|| Self {
            claims: Claims::new(lists.len()),
            lists,
        })
    }

    fn longest(&self) -> usize {
        self.lists.iter().flatten().map(Vec::len).max().unwrap_or(0)
    }
}

/// What one core takes of them in a phase.
#[derive(Debug)]
pub(super) struct Takes {
    shared: Arc<SharedExperts>,
    /// Number of the phase with neuron clusters since the start; the same on all cores.
    round: u64,
    /// How many cores' lists were found finished in this round, starting with this core's.
    finished: usize,
    /// Clusters of the next list that tokens use, once they have been listed.
    used: Vec<Item>,
    is_listed: bool,
}

impl Takes {
    pub fn new(shared: Arc<SharedExperts>) -> Self {
        Self {
            round: 0,
            finished: 0,
            used: Vec::with_capacity(shared.longest()),
            is_listed: false,
            shared,
        }
    }

    /// A phase with neuron clusters begins.
    pub fn begin(&mut self) {
        (self.round, self.finished, self.is_listed) = (self.round + 1, 0, false);
    }

    /// Whether all cores' clusters of the phase have been taken.
    pub fn is_finished(&self) -> bool {
        self.finished == self.shared.lists.len()
    }

    /// Takes the next cluster.
    pub fn next(&mut self, frame: &Frame<'_>) -> Option<Item> {
        let threads = self.shared.lists.len();
        while self.finished < threads {
            let rank = (frame.rank + self.finished) % threads;
            if !self.is_listed {
                let all = self.shared.lists[rank][frame.number].iter();
                self.used.clear();
                self.used
                    .extend(all.filter(|item| frame.tokens_of(item).n > 0));
                self.is_listed = true;
            }
            let place = self.shared.claims.claim(rank, self.round, self.used.len());
            if let Some(place) = place {
                return Some(self.used[place]);
            }
            (self.finished, self.is_listed) = (self.finished + 1, false);
        }
        None
    }
}
