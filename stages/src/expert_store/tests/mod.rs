//! The store against a list of what is where: every wanted cluster comes once, with its own bytes, whatever the order
//! in which reads end, and no cell is lost.

mod guesses;

use std::collections::VecDeque;

use forebay_queues::slab::{PAGE, Slab, Slot};
use proptest::prelude::*;

use super::{ExpertMemory, ExpertRead, ExpertStore, Held, Request, Spans, Taken};
use crate::cache::PolicyKind;
use crate::live_mask::LiveMask;
use crate::random::Random;

/// Pages of a cluster: one of Gates, and those of three pairs.
const PAGES: usize = 4;
const BYTES: usize = PAGES * PAGE;

fn request(key: usize, whole: bool) -> Request {
    Request {
        key,
        gates: PAGE,
        len: BYTES,
        whole,
    }
}

fn whole(key: usize) -> Request {
    request(key, true)
}

fn store(cells: usize, clusters: usize, policy: PolicyKind, preloaded: Vec<u32>) -> ExpertStore {
    let mut slab = Slab::new(cells * BYTES).expect("small");
    let mut cells: Vec<Slot> = (0..cells)
        .map(|_| slab.carve(BYTES).expect("cut to size"))
        .collect();
    for (cell, &key) in cells.iter_mut().zip(&preloaded) {
        cell.fill(key as u8 + 1);
    }
    let memory = ExpertMemory {
        cells,
        clusters,
        preloaded,
    };
    ExpertStore::new(memory, policy, (clusters, clusters))
}

/// What the disk does.
fn fill(read: &mut ExpertRead) {
    let byte = read.key as u8 + 1;
    read.slot[read.range.clone()].fill(byte);
}

/// What a cell has once a flight has looked at it: its Gates and pairs must be those of the cluster.
fn look(key: usize, taken: &Taken) -> Held {
    let mut pairs = match taken.held {
        Held::All => LiveMask::first(PAGES - 1),
        Held::Neurons(held) => held,
        Held::Nothing => {
            assert_eq!(
                taken.spans.iter().next().map(|span| span.0),
                Some(0),
                "no Gates"
            );
            LiveMask::NONE
        }
    };
    for (start, end) in taken.spans.iter() {
        (start.max(PAGE)..end)
            .step_by(PAGE)
            .for_each(|at| pairs.set(at / PAGE - 1));
    }
    for page in [0].into_iter().chain(pairs.iter().map(|pair| pair + 1)) {
        let bytes = &taken.slot[page * PAGE..][..PAGE];
        assert!(
            bytes.iter().all(|&b| usize::from(b) == key + 1),
            "page {page} of {key}"
        );
    }
    match pairs.count() == PAGES - 1 {
        true => Held::All,
        false => Held::Neurons(pairs),
    }
}

/// The pages of these pairs, each in a read of its own unless they are neighbours.
fn spans(pairs: &LiveMask) -> Spans {
    let mut spans = Spans::default();
    for (first, n) in pairs.runs() {
        spans.push((1 + first) * PAGE, (1 + first + n) * PAGE);
    }
    spans
}

/// A prompt names what its layers probably want, or a token guesses.
fn name(store: &mut ExpertStore, random: &mut Random, (clusters, is_prompt): (usize, bool)) {
    let likely: Vec<usize> = (0..clusters).filter(|_| random.below(3) == 0).collect();
    let all = random.below(2) == 0;
    let likely = likely.into_iter().map(|key| request(key, is_prompt || all));
    match is_prompt {
        true => store.preload(likely),
        false => store.guess(likely),
    }
}

/// A read comes back.
fn arrive(store: &mut ExpertStore, read: ExpertRead, is_ok: bool) {
    // A guess that no flight has wanted by now.
    let is_guess = store.guessed[read.cell];
    // One that one wants is read again if it failed.
    let again = store.began_as_guess[read.cell] && !is_ok;
    let key = Some(read.key).filter(|_| !is_guess && !again);
    assert_eq!(store.arrived(read.cell, read.slot, is_ok), key);
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
            // As prompts do, or as tokens that are generated.
            let is_whole = random.below(3) == 0;
            let of = |key| request(key, is_whole);
            if random.below(2) == 0 {
                // Earlier guesses may come before anything is wanted.
                name(&mut store, &mut random, (clusters, is_whole));
                while !reading.is_empty() && random.below(3) > 0 {
                    let read = reading.swap_remove(random.below(reading.len()));
                    arrive(&mut store, read, random.below(8) > 0);
                }
            }
            let mut wanted: VecDeque<usize> = (0..clusters).filter(|_| random.below(2) == 0).collect();
            if random.below(2) == 0 {
                store.want_ahead(wanted.iter().map(|&key| (of(key), false)));
            }
            wanted.iter().for_each(|&key| store.want(of(key)));
            // Those that have been taken once, with the pairs that they wait for.
            let mut again: Vec<(usize, LiveMask)> = Vec::new();
            if random.below(4) == 0 {
                name(&mut store, &mut random, (clusters, is_whole));
            }
            let mut idle = 0;
            while !wanted.is_empty() || !lent.is_empty() || !again.is_empty() {
                idle += 1;
                prop_assert!(idle < 10_000, "{} clusters never come", wanted.len());
                while let Some(mut read) = store.next_read() {
                    store.started(read.cell, 1 + read.key as u64);
                    fill(&mut read);
                    reading.push(read);
                }
                match random.below(4) {
                    0 if !reading.is_empty() => {
                        let read = reading.swap_remove(random.below(reading.len()));
                        arrive(&mut store, read, random.below(8) > 0);
                    }
                    1 => {
                        let found = wanted.iter().enumerate();
                        let taken = found.filter_map(|(i, &key)| Some((i, key, store.take(key)?))).next();
                        if let Some((i, key, taken)) = taken {
                            wanted.remove(i);
                            prop_assert!(taken.flow == 0 || taken.flow == 1 + key as u64);
                            prop_assert_eq!(taken.flow == 0, taken.spans.bytes() == 0);
                            if !taken.is_ok {
                                prop_assert!(taken.flow != 0, "only a read fails");
                                store.forget(key);
                                lent.push((key, taken.slot));
                                continue;
                            }
                            let held = look(key, &taken);
                            prop_assert!(!is_whole || matches!(held, Held::All));
                            store.checked(key, held);
                            let mut live = LiveMask::NONE;
                            (0..PAGES - 1).filter(|_| random.below(3) == 0).for_each(|i| live.set(i));
                            let missing = store.lacks(key, &live);
                            match missing.is_empty() {
                                true => lent.push((key, taken.slot)),
                                false => {
                                    store.read_more(key, taken.slot, spans(&missing));
                                    again.push((key, live));
                                }
                            }
                        }
                    }
                    2 => {
                        let found = again.iter().enumerate();
                        let taken = found.filter_map(|(i, &(key, live))| Some((i, key, live, store.take(key)?))).next();
                        if let Some((i, key, live, taken)) = taken {
                            again.swap_remove(i);
                            prop_assert!(taken.flow != 0);
                            match taken.is_ok {
                                true => {
                                    store.checked(key, look(key, &taken));
                                    prop_assert!(store.lacks(key, &live).is_empty());
                                }
                                false => store.forget(key),
                            }
                            lent.push((key, taken.slot));
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

#[test]
fn a_prompt_reads_the_rest_of_what_is_here_in_part() {
    let mut store = store(2, 4, PolicyKind::Frequency, vec![]);
    let mut visit = |request: Request, pairs: &[usize]| {
        let mut ranges = Vec::new();
        store.want(request);
        let mut live = LiveMask::NONE;
        pairs.iter().for_each(|&i| live.set(i));
        loop {
            while let Some(mut read) = store.next_read() {
                store.started(read.cell, 9);
                fill(&mut read);
                ranges.push((read.range.start / PAGE, read.range.end / PAGE));
                store.arrived(read.cell, read.slot, true);
            }
            let taken = store.take(request.key).expect("read at once");
            store.checked(request.key, look(request.key, &taken));
            let missing = store.lacks(request.key, &live);
            if missing.is_empty() {
                store.give_back(request.key, taken.slot);
                return ranges;
            }
            store.read_more(request.key, taken.slot, spans(&missing));
        }
    };
    let part = request(1, false);
    assert_eq!(visit(part, &[]), [(0, 1)], "only its Gates");
    assert_eq!(visit(part, &[0, 2]), [(1, 2), (3, 4)]);
    assert_eq!(visit(part, &[0]), [], "it is here");
    assert_eq!(visit(whole(1), &[]), [(1, 4)], "the rest");
    assert_eq!(visit(part, &[0, 1, 2]), []);
    assert_eq!(visit(whole(2), &[]), [(0, 4)]);
}

#[test]
fn what_was_wanted_again_and_again_stays() {
    let mut store = store(2, 4, PolicyKind::Frequency, vec![3]);
    let mut reads = 0;
    let mut visit = |store: &mut ExpertStore, key: usize| {
        store.want(whole(key));
        while let Some(mut read) = store.next_read() {
            reads += 1;
            fill(&mut read);
            store.arrived(read.cell, read.slot, true);
        }
        let taken = store.take(key).expect("read at once");
        store.checked(key, Held::All);
        store.give_back(key, taken.slot);
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
