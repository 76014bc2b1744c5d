//! Clusters in memory: any free core takes the next one, from its own list first. Which experts the tokens use, and
//! what has been evicted, and with them the lists, all cores know alike.

use std::sync::Arc;

use forebay_models::bundle::Bundle;
use forebay_plans::program::{Item, Phase, Program};
use forebay_queues::claims::{Claimant, Claims};

use crate::frame::Frame;

/// Clusters in memory, of all cores.
#[derive(Debug)]
pub struct SharedClusters {
    claims: Claims,
    /// As they are at the start, `[threads][phases]`.
    lists: Vec<Vec<Vec<Item>>>,
}

/// Whether any core may compute a cluster of a phase. Clusters of single neurons stay where they are: while one is
/// computed, its core asks for the memory of the next.
pub(super) fn is_shared(bundle: &Bundle, item: &Item) -> bool {
    let content = bundle.clusters[item.cluster as usize].content;
    let geometry = bundle.meta.geometry(content);
    item.source.is_in_memory() && geometry.is_some_and(|g| !g.layout.is_by_neuron())
}

/// Whether the cores compute a cluster for any token of the step, and have it in memory.
fn is_used(item: &Item, frame: &Frame<'_>) -> bool {
    frame.tokens_of(item).n > 0 && !frame.is_on_device(item) && frame.weights.is_here(item.cluster)
}

impl SharedClusters {
    /// Those of the cores' programs; `None` if there are none.
    pub fn new(bundle: &Bundle, programs: &[Program]) -> Option<Self> {
        let shared = |phase: &Phase| {
            let items = phase.neurons().iter();
            let items = items.filter(|item| is_shared(bundle, item));
            items.copied().collect()
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
    shared: Arc<SharedClusters>,
    /// Its rounds are the phases with neuron clusters since the start; the same on all cores.
    claimant: Claimant,
    /// The core whose clusters were listed last in this phase, and those of them that tokens use.
    listed: Option<usize>,
    used: Vec<Item>,
}

impl Takes {
    pub fn new(shared: Arc<SharedClusters>) -> Self {
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
        let SharedClusters { claims, lists } = &*self.shared;
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
