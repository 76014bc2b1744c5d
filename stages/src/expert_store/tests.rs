//! The store against a list of what is where: every wanted cluster comes once, with its own bytes, whatever the order
//! in which reads end, and no cell is lost.

use std::collections::VecDeque;

use forebay_queues::slab::{PAGE, Slab, Slot};
use proptest::prelude::*;

use super::{ExpertMemory, ExpertRead, ExpertStore, GuessCounts};
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
            if random.below(2) == 0 {
                let likely: Vec<usize> = (0..clusters).filter(|_| random.below(3) == 0).collect();
                store.guess(likely.into_iter());
            }
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
                        // A guess that no flight has wanted by now.
                        let is_guess = store.guessed[read.cell];
                        let key = Some(read.key).filter(|_| !is_guess);
                        prop_assert_eq!(store.arrived(read.cell, read.slot, is_ok), key);
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
            prop_assert!(!store.is_reading(), "what is still read was only guessed");
            store.end_step();
            if random.below(2) == 0 {
                for read in reading.drain(..) {
                    let wanted = store.arrived(read.cell, read.slot, random.below(8) > 0);
                    prop_assert_eq!(wanted, None);
                }
            }
            if reading.is_empty() {
                prop_assert_eq!(store.holds(), 0);
            }
            if reading.is_empty() && random.below(3) == 0 {
                let wanted = 1 + random.below(cells);
                prop_assert!(store.resize(wanted));
                prop_assert_eq!(store.cells_in_use(), wanted);
            }
        }
        for read in reading {
            prop_assert_eq!(store.arrived(read.cell, read.slot, true), None);
        }
        prop_assert!(store.resize(cells));
        prop_assert!(store.guess_counts.wanted <= store.guess_counts.read);
        let mut contents = Vec::new();
        store.contents(&mut contents);
        prop_assert!(contents.len() <= cells);
        // All cells are there again.
        let here = store.cells.iter().filter(|cell| matches!(cell, super::Cell::Here(_)));
        prop_assert_eq!(here.count(), cells);
    }
}

/// A store of four cells in which a guess is being read, and that read.
fn guessing(key: usize) -> (ExpertStore, ExpertRead) {
    let mut store = store(4, 8, PolicyKind::Frequency, vec![]);
    store.guess([key].into_iter());
    let read = store.next_read().expect("the disk is idle");
    assert!(read.guessed && read.key == key && !store.is_reading());
    store.started(read.cell, 7);
    (store, read)
}

#[test]
fn a_guess_waits_for_all_that_is_certain_and_is_given_up_for_the_next() {
    let mut store = store(4, 8, PolicyKind::Frequency, vec![]);
    store.want(1);
    store.guess([2, 3].into_iter());
    let certain = store.next_read().expect("wanted");
    assert!(!certain.guessed && certain.key == 1);
    assert!(store.next_read().is_none(), "a certain read is in flight");
    store.guess([4].into_iter());
    store.arrived(certain.cell, certain.slot, true);
    let guess = store.next_read().expect("nothing else is read");
    assert_eq!((guess.guessed, guess.key), (true, 4));
    assert!(store.next_read().is_none(), "2 and 3 were given up");
}

#[test]
fn a_guess_that_comes_true_is_the_flights_read_and_is_checked_once() {
    // Wanted while it is read, and after it has come.
    for early in [true, false] {
        let (mut store, read) = guessing(5);
        let mut slot = Some(read.slot);
        let mut arrive =
            |store: &mut ExpertStore| slot.take().map(|slot| store.arrived(read.cell, slot, true));
        if early {
            store.want(5);
            assert!(store.is_reading(), "a flight waits for it now");
            assert_eq!(arrive(&mut store), Some(Some(5)));
        } else {
            assert_eq!(arrive(&mut store), Some(None));
            store.want(5);
        }
        assert!(store.next_read().is_none(), "it is not read again");
        let (slot, flow, is_ok) = store.take(5).expect("it is here");
        assert!(flow == 7 && is_ok, "what was read has to be checked");
        store.give_back(5, slot);
        store.want(5);
        assert_eq!(store.take(5).map(|taken| taken.1), Some(0));
        let GuessCounts { read, wanted } = store.guess_counts;
        assert_eq!((read, wanted), (1, 1));
    }
}

#[test]
fn a_guess_that_fails_is_no_fault_unless_it_is_wanted() {
    let (mut store, read) = guessing(5);
    assert_eq!(store.arrived(read.cell, read.slot, false), None);
    assert!(!store.has(5) && store.holds() == 0);
    let (mut store, read) = guessing(5);
    store.want(5);
    assert_eq!(store.arrived(read.cell, read.slot, false), Some(5));
    assert!(store.take(5).is_some_and(|(_, _, is_ok)| !is_ok));
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
