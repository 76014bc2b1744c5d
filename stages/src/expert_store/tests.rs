//! The store against a list of what is where: every wanted cluster comes once, with its own bytes, whatever the order
//! in which reads end, and no cell is lost.

use std::collections::VecDeque;

use forebay_queues::slab::{PAGE, Slab, Slot};
use proptest::prelude::*;

use super::guesses::{BESIDE, MOST_GUESSES};
use super::{ExpertMemory, ExpertRead, ExpertStore, GuessCounts, Held, Request, Spans, Taken};
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
            let mut wanted: VecDeque<usize> = (0..clusters).filter(|_| random.below(2) == 0).collect();
            if random.below(2) == 0 {
                store.want_ahead(wanted.iter().map(|&key| (of(key), false)));
            }
            wanted.iter().for_each(|&key| store.want(of(key)));
            // Those that have been taken once, with the pairs that they wait for.
            let mut again: Vec<(usize, LiveMask)> = Vec::new();
            if random.below(2) == 0 {
                let likely: Vec<usize> = (0..clusters).filter(|_| random.below(3) == 0).collect();
                let all = random.below(2) == 0;
                let likely = likely.into_iter().map(|key| request(key, is_whole || all));
                match is_whole {
                    true => store.preload(likely),
                    false => store.guess(likely),
                }
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
                        let is_ok = random.below(8) > 0;
                        // A guess that no flight has wanted by now.
                        let is_guess = store.guessed[read.cell];
                        // One that one wants is read again if it failed.
                        let again = store.began_as_guess[read.cell] && !is_ok;
                        let key = Some(read.key).filter(|_| !is_guess && !again);
                        prop_assert_eq!(store.arrived(read.cell, read.slot, is_ok), key);
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
fn what_a_prompt_preloads_stays_until_its_layer_is_over() {
    let mut store = store(8, 40, PolicyKind::Lru, vec![]);
    let read = |store: &mut ExpertStore| {
        let mut keys = Vec::new();
        while let Some(mut read) = store.next_read() {
            store.started(read.cell, 7);
            fill(&mut read);
            keys.push(read.key);
            store.arrived(read.cell, read.slot, true);
        }
        keys
    };
    let compute = |store: &mut ExpertStore, key: usize| {
        let taken = store.take(key).expect("it is here");
        store.checked(key, look(key, &taken));
        store.give_back(key, taken.slot);
    };
    store.preload([10, 11, 12].map(whole).into_iter());
    assert_eq!(read(&mut store), [10, 11], "a fourth of the cells at most");
    // Of the next layer, 10 is used; 11 stays while its layer may use it, whatever else is read.
    store.preload([].into_iter());
    for key in 20..30 {
        store.want(whole(key));
        assert_eq!(read(&mut store), [key]);
        compute(&mut store, key);
    }
    assert_eq!(store.holds(), 2);
    store.want(whole(10));
    assert!(read(&mut store).is_empty());
    compute(&mut store, 10);
    assert_eq!(store.holds(), 1);
    store.preload([13].map(whole).into_iter());
    assert_eq!((store.holds(), read(&mut store)), (0, vec![13]));
    store.end_step();
    assert_eq!(store.holds(), 0);
    let GuessCounts { read, wanted } = store.guess_counts;
    assert_eq!((read, wanted), (0, 0));
}

/// A flight that would have to wait for a cell, behind others, takes over the guess that is on its way: taken without a hold,
/// it would end that of the prompt, or of whoever has the cell next.
#[test]
fn a_flight_takes_over_a_guess_while_others_wait_for_cells() {
    let mut store = store(4, 40, PolicyKind::Lru, vec![]);
    store.preload([whole(10)].into_iter());
    let mut read = store.next_read().expect("the disk is idle");
    store.started(read.cell, 7);
    for key in [20, 21, 22, 23, 10] {
        store.want(whole(key));
    }
    assert_eq!(store.holds(), 4);
    fill(&mut read);
    assert_eq!(store.arrived(read.cell, read.slot, true), Some(10));
    let taken = store.take(10).expect("it is here");
    store.checked(10, look(10, &taken));
    store.give_back(10, taken.slot);
    // The last one has the cell now, and nobody else ends its hold.
    store.end_step();
    assert_eq!(store.holds(), 4);
    assert!([20, 21, 22, 23].iter().all(|&key| store.has(key)));
}

/// A guess of a generated token that arrives in a prompt takes no cell that the prompt needs.
#[test]
fn a_prompt_keeps_a_token_s_guess_only_where_there_is_room() {
    for (cells, kept) in [(4, 1), (3, 0), (1, 0)] {
        let mut store = store(4, 8, PolicyKind::Frequency, vec![]);
        assert!(store.resize(cells));
        store.guess([whole(5)].into_iter());
        let read = store.next_read().expect("the disk is idle");
        store.started(read.cell, 7);
        store.preload([].into_iter());
        store.arrived(read.cell, read.slot, true);
        assert_eq!(store.holds(), kept, "{cells} cells");
    }
}

/// A store of four cells in which a guess is being read, and that read.
fn guessing(key: usize) -> (ExpertStore, ExpertRead) {
    let mut store = store(4, 8, PolicyKind::Frequency, vec![]);
    store.guess([whole(key)].into_iter());
    let read = store.next_read().expect("the disk is idle");
    assert!(read.guessed && read.key == key && !store.is_reading());
    store.started(read.cell, 7);
    (store, read)
}

#[test]
fn few_guesses_are_read_together_so_that_the_others_can_be_given_up() {
    let mut store = store(16, 32, PolicyKind::Frequency, vec![]);
    store.guess((0..8).map(whole));
    let mut reads: Vec<_> = std::iter::from_fn(|| store.next_read()).collect();
    assert_eq!(reads.len(), MOST_GUESSES);
    store.guess([20].map(whole).into_iter());
    let first = reads.swap_remove(0);
    store.arrived(first.cell, first.slot, true);
    assert_eq!(store.next_read().map(|read| read.key), Some(20));
    assert!(store.next_read().is_none());
}

/// Guesses that do not come true go less and less far, those that do further again.
#[test]
fn how_far_is_guessed_depends_on_what_came_true() {
    let mut store = store(16, 1 << 12, PolicyKind::Frequency, vec![]);
    let mut guess = |keys: std::ops::Range<usize>, come_true: bool| {
        for key in keys {
            store.guess([whole(key)].into_iter());
            let read = store.next_read().expect("the disk is idle");
            store.started(read.cell, 7);
            store.arrived(read.cell, read.slot, true);
            if come_true {
                store.want(whole(key));
                let taken = store.take(key).expect("it is here");
                store.give_back(key, taken.slot);
            }
        }
        store.reach()
    };
    assert_eq!(guess(0..63, false), 3, "too few to judge");
    assert_eq!(guess(63..64, false), 2);
    assert_eq!(guess(64..256, false), 1);
    assert_eq!(guess(256..256 + 64, true), 2);
    assert_eq!(guess(320..320 + 64, true), 3);
}

#[test]
fn a_guess_waits_until_few_certain_reads_are_left_and_is_given_up_for_the_next() {
    let mut store = store(16, 32, PolicyKind::Frequency, vec![]);
    (0..=BESIDE).for_each(|key| store.want(whole(key)));
    store.guess([20, 21].map(whole).into_iter());
    let mut certain: Vec<_> = (0..=BESIDE).filter_map(|_| store.next_read()).collect();
    assert!(certain.len() == BESIDE + 1 && certain.iter().all(|read| !read.guessed));
    assert!(store.next_read().is_none(), "too many are in flight");
    store.guess([whole(22)].into_iter());
    let first = certain.swap_remove(0);
    store.arrived(first.cell, first.slot, true);
    store.want(whole(12));
    let due = store.next_read().expect("wanted");
    assert!(!due.guessed && due.key == 12, "what is due goes first");
    let second = certain.swap_remove(0);
    store.arrived(second.cell, second.slot, true);
    let guess = store.next_read().expect("few are in flight");
    assert_eq!((guess.guessed, guess.key), (true, 22));
    assert!(store.next_read().is_none(), "20 and 21 were given up");
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
            store.want(whole(5));
            assert!(store.is_reading(), "a flight waits for it now");
            assert_eq!(arrive(&mut store), Some(Some(5)));
        } else {
            assert_eq!(arrive(&mut store), Some(None));
            store.want(whole(5));
        }
        assert!(store.next_read().is_none(), "it is not read again");
        let taken = store.take(5).expect("it is here");
        let is_new = taken.flow == 7 && taken.spans.bytes() == BYTES;
        assert!(is_new && taken.is_ok, "what was read has to be checked");
        store.checked(5, Held::All);
        store.give_back(5, taken.slot);
        store.want(whole(5));
        assert_eq!(store.take(5).map(|taken| taken.flow), Some(0));
        let GuessCounts { read, wanted } = store.guess_counts;
        assert_eq!((read, wanted), (1, 1));
    }
}

#[test]
fn a_guess_that_fails_is_no_fault_and_read_again_if_it_is_wanted() {
    let (mut store, read) = guessing(5);
    assert_eq!(store.arrived(read.cell, read.slot, false), None);
    assert!(!store.has(5) && store.holds() == 0);
    let (mut store, read) = guessing(5);
    store.want(whole(5));
    assert_eq!(store.arrived(read.cell, read.slot, false), None);
    assert!(store.take(5).is_none(), "it is still to come");
    let read = store.next_read().expect("it is certain now");
    assert!(!read.guessed && read.range == (0..BYTES));
    assert_eq!(store.arrived(read.cell, read.slot, false), Some(5));
    assert!(store.take(5).is_some_and(|taken| !taken.is_ok));
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

/// What a guess brought may have been read long before it is checked: that is known until it is taken.
#[test]
fn what_a_guess_brought_is_known_until_it_is_taken() {
    for wanted_early in [true, false] {
        let (mut store, read) = guessing(5);
        if wanted_early {
            store.want(whole(5));
        }
        store.arrived(read.cell, read.slot, true);
        if !wanted_early {
            store.want(whole(5));
        }
        let taken = store.take(5).expect("it is here");
        assert!(taken.guessed);
        // It was wrong.
        store.read_more(5, taken.slot, taken.spans.again());
        let again = store.next_read().expect("it is read once more");
        assert!(!again.guessed && again.range == (0..BYTES));
        store.arrived(again.cell, again.slot, true);
        let taken = store.take(5).expect("it is here");
        assert!(!taken.guessed && taken.spans.bytes() == BYTES);
    }
}
