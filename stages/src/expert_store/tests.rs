//! The store against a list of what is where: every wanted cluster comes once, with its own bytes, whatever the order
//! in which reads end, and no cell is lost.

use std::collections::VecDeque;

use forebay_queues::slab::{PAGE, Slab, Slot};
use proptest::prelude::*;

use super::{ExpertMemory, ExpertRead, ExpertStore};
use crate::cache::PolicyKind;
use crate::random::Random;

fn store(cells: usize, clusters: usize, policy: PolicyKind, preloaded: Vec<u32>) -> ExpertStore {
    let mut slab = Slab::new(cells * PAGE).expect("small");
    let mut cells: Vec<Slot> = (0..cells)
        .map(|_| slab.carve(PAGE).expect("cut to size"))
        .collect();
    for (cell, &key) in cells.iter_mut().zip(&preloaded) {
        cell[0] = key as u8 + 1;
    }
    let memory = ExpertMemory {
        cells,
        clusters,
        preloaded,
    };
    ExpertStore::new(memory, policy, clusters)
}

/// What the disk does.
fn fill(read: &mut ExpertRead) {
    read.slot[0] = read.key as u8 + 1;
}

proptest! {
    #[test]
    fn every_wanted_cluster_comes_with_its_bytes(
        seed: u64,
        cells in 1_usize..9,
        clusters in 1_usize..20,
        policy in prop::sample::select(vec![
            PolicyKind::Frequency, PolicyKind::Lru, PolicyKind::TwoQueue, PolicyKind::NoCache,
        ]),
        steps in 1_usize..20,
    ) {
        let mut random = Random(seed);
        let preloaded: Vec<u32> = (0..clusters.min(cells) as u32 / 2).collect();
        let mut store = store(cells, clusters, policy, preloaded);
        let (mut reading, mut lent): (Vec<ExpertRead>, Vec<(usize, Slot)>) = Default::default();
        for _ in 0..steps {
            let mut wanted: VecDeque<usize> = (0..clusters).filter(|_| random.below(2) == 0).collect();
            if random.below(2) == 0 {
                store.want_ahead(wanted.iter().map(|&key| (key, false)));
            }
            wanted.iter().for_each(|&key| store.want(key));
            let mut idle = 0;
            while !wanted.is_empty() || !lent.is_empty() {
                idle += 1;
                prop_assert!(idle < 10_000, "{} clusters never come", wanted.len());
                while let Some(mut read) = store.next_read() {
                    store.started(read.cell, 1 + read.key as u64);
                    fill(&mut read);
                    reading.push(read);
                }
                match random.below(3) {
                    0 if !reading.is_empty() => {
                        let read = reading.swap_remove(random.below(reading.len()));
                        let is_ok = random.below(8) > 0;
                        prop_assert_eq!(store.arrived(read.cell, read.slot, is_ok), read.key);
                    }
                    1 => {
                        let found = wanted.iter().enumerate();
                        let taken = found.filter_map(|(i, &key)| Some((i, key, store.take(key)?))).next();
                        if let Some((i, key, (slot, flow, is_ok))) = taken {
                            wanted.remove(i);
                            prop_assert_eq!(usize::from(slot[0]), key + 1);
                            prop_assert!(flow == 0 || flow == 1 + key as u64);
                            if !is_ok {
                                prop_assert!(flow != 0, "only a read fails");
                                store.forget(key);
                            }
                            lent.push((key, slot));
                        }
                    }
                    _ if !lent.is_empty() => {
                        let (key, slot) = lent.swap_remove(random.below(lent.len()));
                        store.give_back(key, slot);
                    }
                    _ => {}
                }
            }
            prop_assert!(!store.is_reading() && reading.is_empty());
            store.end_step();
            if random.below(3) == 0 {
                let wanted = 1 + random.below(cells);
                prop_assert!(store.resize(wanted));
                prop_assert_eq!(store.cells_in_use(), wanted);
            }
        }
        prop_assert!(store.resize(cells));
        let mut contents = Vec::new();
        store.contents(&mut contents);
        prop_assert!(contents.len() <= cells);
        // All cells are there again.
        let here = store.cells.iter().filter(|cell| matches!(cell, super::Cell::Here(_)));
        prop_assert_eq!(here.count(), cells);
    }
}

#[test]
fn what_was_wanted_again_and_again_stays() {
    let mut store = store(2, 4, PolicyKind::Frequency, vec![3]);
    let mut reads = 0;
    let mut visit = |store: &mut ExpertStore, key: usize| {
        store.want(key);
        while let Some(mut read) = store.next_read() {
            reads += 1;
            fill(&mut read);
            store.arrived(read.cell, read.slot, true);
        }
        let (slot, _, _) = store.take(key).expect("read at once");
        store.give_back(key, slot);
        store.end_step();
        reads
    };
    assert_eq!(visit(&mut store, 3), 0, "it was preloaded");
    for key in [3, 3, 3, 0, 1, 2] {
        visit(&mut store, key);
    }
    let before = visit(&mut store, 2);
    assert_eq!(visit(&mut store, 3), before, "the favourite is still here");
}
