//! Every policy against its naive model, with holds, failed reads, ends of tokens and preloading in
//! any order; and what the policies are known to do on planted traces.

mod models;
mod traces;

use std::collections::HashMap;

use proptest::prelude::*;

use super::policy::Policy;
use super::{NeuronCache, PolicyKind};
use models::Model;

const NEURONS: usize = 24;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Looks a neuron up, or admits it.
    Use(usize),
    /// Ends one of the holds.
    Release(usize),
    /// Ends all holds.
    ReleaseAll,
    /// The read into one of the held slots failed.
    Disown(usize),
    /// Reading a preloaded or idle neuron failed.
    DisownIdle(usize),
    Preload(usize),
    EndToken,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..NEURONS).prop_map(Step::Use),
        9 => (0usize..64).prop_map(Step::Release),
        1 => Just(Step::ReleaseAll),
        1 => (0usize..64).prop_map(Step::Disown),
        1 => (0usize..64).prop_map(Step::DisownIdle),
        // Beyond the last neuron too: a saved set may be of another model.
        2 => (0..NEURONS + 2).prop_map(Step::Preload),
        2 => Just(Step::EndToken),
    ]
}

fn kind() -> impl Strategy<Value = PolicyKind> {
    let windows = (1u32..5).prop_map(|k| format!("window:{k}").parse().expect("a window"));
    prop_oneof![2 => prop::sample::select(&PolicyKind::ALL[..]), 1 => windows]
}

/// One hold of a slot. `neuron` is absent after a failed read.
#[derive(Clone, Copy, Debug)]
struct Hold {
    slot: usize,
    neuron: Option<usize>,
}

/// A cache and its model under the same steps.
struct Harness {
    cache: NeuronCache,
    model: Box<dyn Model>,
    slots: usize,
    holds: Vec<Hold>,
    /// Slots of the neurons in the cache.
    places: HashMap<usize, usize>,
}

impl Harness {
    fn new(kind: PolicyKind, slots: usize) -> Self {
        Self {
            cache: NeuronCache::new(kind, NEURONS, slots),
            model: models::of(kind, slots),
            slots,
            holds: Vec::new(),
            places: HashMap::new(),
        }
    }

    fn held(&self) -> Vec<usize> {
        self.holds.iter().filter_map(|hold| hold.neuron).collect()
    }

    /// Slots that neither have a neuron nor are held.
    fn free(&self) -> usize {
        let mut dead: Vec<usize> = self
            .holds
            .iter()
            .filter(|h| h.neuron.is_none())
            .map(|h| h.slot)
            .collect();
        dead.sort_unstable();
        dead.dedup();
        self.slots - self.places.len() - dead.len()
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Use(neuron) => self.access(neuron),
            Step::Release(pick) if !self.holds.is_empty() => self.release(pick % self.holds.len()),
            Step::ReleaseAll => (0..self.holds.len()).for_each(|_| self.release(0)),
            Step::Disown(pick) if !self.holds.is_empty() => {
                self.disown(self.holds[pick % self.holds.len()].slot);
            }
            Step::DisownIdle(pick) => {
                let here = self.model.best_first();
                if !here.is_empty() {
                    self.disown(self.places[&here[pick % here.len()]]);
                }
            }
            Step::Preload(neuron) => self.preload(neuron),
            Step::EndToken => {
                self.cache.end_token();
                self.model.end_token(&self.held());
            }
            Step::Release(_) | Step::Disown(_) => {}
        }
        self.compare();
    }

    fn access(&mut self, neuron: usize) {
        let found = self.cache.hold(neuron);
        assert_eq!(found, self.places.get(&neuron).copied());
        let slot = match found {
            Some(slot) => {
                self.model.hit(neuron);
                Some(slot)
            }
            None => self.admit(neuron),
        };
        self.holds.extend(slot.map(|slot| Hold {
            slot,
            neuron: Some(neuron),
        }));
    }

    fn admit(&mut self, neuron: usize) -> Option<usize> {
        if self.free() == 0 {
            match self.model.victim(&self.held()) {
                Some(victim) => {
                    self.model.remove(victim);
                    self.places.remove(&victim);
                }
                None => {
                    assert_eq!(self.cache.admit(neuron), None);
                    return None;
                }
            }
        }
        self.model.enter(neuron);
        let slot = self.cache.admit(neuron).expect("a slot that is not held");
        assert!(slot < self.slots);
        assert!(
            self.holds.iter().all(|hold| hold.slot != slot),
            "reused while held"
        );
        self.places.insert(neuron, slot);
        Some(slot)
    }

    fn release(&mut self, at: usize) {
        let Hold { slot, neuron } = self.holds.remove(at);
        self.cache.release(slot);
        if let Some(neuron) = neuron
            && self.holds.iter().all(|hold| hold.slot != slot)
        {
            self.model.idle(neuron);
        }
    }

    fn disown(&mut self, slot: usize) {
        self.cache.disown(slot);
        for hold in self.holds.iter_mut().filter(|hold| hold.slot == slot) {
            hold.neuron = None;
        }
        if let Some(neuron) = self
            .places
            .iter()
            .find(|(_, s)| **s == slot)
            .map(|(n, _)| *n)
        {
            self.model.remove(neuron);
            assert_eq!(self.cache.hold(neuron), None);
        }
    }

    fn preload(&mut self, neuron: usize) {
        let slot = self.cache.preload(neuron);
        if neuron < NEURONS && !self.places.contains_key(&neuron) && self.free() > 0 {
            self.model.preload(neuron);
            assert_eq!(slot.is_some(), self.model.best_first().contains(&neuron));
            self.places.extend(slot.map(|slot| (neuron, slot)));
        } else {
            assert_eq!(slot, None);
        }
    }

    /// The same neurons in the same order, each where it was; no slot lost or doubled.
    fn compare(&mut self) {
        let expected = self.model.best_first();
        let mut contents = Vec::new();
        self.cache.contents(&mut contents);
        assert_eq!(
            contents.iter().map(|&n| n as usize).collect::<Vec<_>>(),
            expected
        );
        assert_eq!(self.cache.len(), expected.len());
        assert_eq!(self.cache.is_empty(), expected.is_empty());
        self.places.retain(|neuron, _| expected.contains(neuron));
        for neuron in 0..NEURONS {
            let slot = self
                .cache
                .directory
                .slot_of(neuron)
                .map(|slot| slot as usize);
            assert_eq!(slot, self.places.get(&neuron).copied(), "place of {neuron}");
        }
        for hold in &self.holds {
            if let Some(neuron) = hold.neuron {
                assert_eq!(
                    self.places.get(&neuron),
                    Some(&hold.slot),
                    "held, but dropped"
                );
            }
        }
        self.cache.directory.check(self.cache.policy.best_first());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn every_policy_does_what_its_model_does(
        kind in kind(),
        slots in 0usize..16,
        steps in prop::collection::vec(step(), 0..250),
    ) {
        let mut harness = Harness::new(kind, slots);
        for step in steps {
            harness.apply(step);
        }
    }

    /// Neurons used one after the other, as by one cluster at a time: evictions at every access.
    #[test]
    fn every_policy_does_what_its_model_does_without_overlap(
        kind in kind(),
        slots in 1usize..16,
        accesses in prop::collection::vec((0..NEURONS, 0..12), 0..400),
    ) {
        let mut harness = Harness::new(kind, slots);
        for (neuron, end) in accesses {
            harness.apply(Step::Use(neuron));
            harness.apply(Step::ReleaseAll);
            if end == 0 {
                harness.apply(Step::EndToken);
            }
        }
    }
}

#[test]
fn held_neurons_are_never_dropped() {
    for kind in PolicyKind::ALL {
        let mut cache = NeuronCache::new(kind, 10, 3);
        let held: Vec<usize> = (0..3).map(|n| cache.admit(n).expect("room")).collect();
        for _ in 0..10 {
            cache.end_token();
        }
        assert_eq!(cache.admit(3), None, "{kind}");
        cache.release(held[1]);
        assert_eq!(cache.admit(3), Some(held[1]), "{kind}");
        assert_eq!(cache.hold(1), None, "{kind}");
        assert_eq!(cache.hold(0), Some(held[0]), "{kind}");
        assert_eq!(cache.hold(2), Some(held[2]), "{kind}");
    }
}

#[test]
fn disowned_neurons_are_absent_and_their_slots_come_back() {
    for kind in PolicyKind::ALL {
        let mut cache = NeuronCache::new(kind, 4, 2);
        let slot = cache.admit(2).expect("room");
        let other = cache.admit(3).expect("room");
        cache.disown(slot);
        assert_eq!(cache.hold(2), None, "{kind}");
        assert_eq!(cache.len(), 1, "{kind}");
        assert_eq!(cache.admit(2), None, "its slot is held under {kind}");
        cache.release(slot);
        assert_eq!(cache.admit(0), Some(slot), "{kind}");
        assert_eq!(cache.hold(3), Some(other), "{kind}");
    }
}

/// Popular neurons are told apart up to 63 accesses; beyond that the last one used comes first.
#[test]
fn counts_saturate() {
    let mut harness = Harness::new(PolicyKind::Frequency, 20);
    for (neuron, accesses) in [(0, 70), (1, 62), (2, 63)] {
        for _ in 0..accesses {
            harness.apply(Step::Use(neuron));
            harness.apply(Step::ReleaseAll);
        }
    }
    assert_eq!(harness.model.best_first(), [2, 0, 1]);
}

/// What a run leaves, another one starts with, in the same order; a smaller cache with the best.
#[test]
fn contents_can_be_brought_back() {
    for kind in PolicyKind::ALL {
        let mut cache = NeuronCache::new(kind, 100, 20);
        for access in 0..400usize {
            // Neurons 0..10 every round, others now and then.
            let round = access / 13;
            let neuron = if access % 13 < 10 {
                access % 13
            } else {
                10 + (7 * round + access) % 90
            };
            let slot = cache.hold(neuron).or_else(|| cache.admit(neuron));
            cache.release(slot.expect("nothing is held"));
            if access % 13 == 12 {
                cache.end_token();
            }
        }
        let mut hot = Vec::new();
        cache.contents(&mut hot);
        assert_eq!(hot.is_empty(), kind == PolicyKind::NoCache);
        for slots in [hot.len(), hot.len() / 2] {
            let mut restored = NeuronCache::new(kind, 100, slots);
            for &neuron in &hot {
                restored.preload(neuron as usize);
            }
            let mut contents = Vec::new();
            restored.contents(&mut contents);
            assert_eq!(contents, hot[..slots], "{kind}");
        }
    }
}

#[test]
fn the_directory_is_as_small_as_promised() {
    let (neurons, slots) = (1000, 300);
    assert_eq!(
        NeuronCache::bytes(neurons, slots),
        4 * neurons + 20 * slots + 3860
    );
    // What plans set aside, from 322 slots on.
    assert!(NeuronCache::bytes(neurons, 322) <= 4 * neurons + 32 * 322);
    assert_eq!(NeuronCache::bytes(usize::MAX, slots), usize::MAX);
    for kind in PolicyKind::ALL {
        let cache = NeuronCache::new(kind, neurons, slots);
        assert!(
            cache.directory.allocated() <= NeuronCache::bytes(neurons, slots),
            "{kind}"
        );
    }
}
