//! Clusters of experts in memory: any free core takes the next one, from its own list first. Which experts the tokens
//! use, and with them the lists, all cores know alike.

use std::sync::Arc;

use forebay_plans::program::{Item, Phase, Program};
use forebay_queues::claims::{Claimant, Claims};

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
    item.expert.is_some() && item.source.is_in_memory()
}

/// Whether the cores compute a cluster for any token of the step.
fn is_used(item: &Item, frame: &Frame<'_>) -> bool {
    frame.tokens_of(item).n > 0 && !frame.is_on_device(item)
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
    /// Its rounds are the phases with neuron clusters since the start; the same on all cores.
    claimant: Claimant,
    /// The core whose clusters were listed last in this phase, and those of them that tokens use.
    listed: Option<usize>,
    used: Vec<Item>,
}

impl Takes {
    pub fn new(shared: Arc<SharedExperts>) -> Self {
        Self {
            claimant: Claimant::default(),
            listed: None,
            used: Vec::with_capacity(shared.longest()),
            shared,
        }
    }

    /// A phase with neuron clusters begins.
    pub fn begin(&mut self) {
        self.claimant.begin();
        self.listed = None;
    }

    /// Whether all cores' clusters of the phase have been taken.
    pub fn is_finished(&self) -> bool {
        self.claimant.is_finished(&self.shared.claims)
    }

    /// Takes the next cluster.
    pub fn next(&mut self, frame: &Frame<'_>) -> Option<Item> {
        let SharedExperts { claims, lists } = &*self.shared;
        let (used, listed) = (&mut self.used, &mut self.listed);
        let len = |rank: usize| {
            if *listed != Some(rank) {
                let all = lists[rank][frame.number].iter();
                used.clear();
                used.extend(all.filter(|&item| is_used(item, frame)));
                *listed = Some(rank);
            }
            used.len()
        };
        let (_, place) = self.claimant.next(claims, frame.rank, len)?;
        Some(self.used[place])
    }
}
