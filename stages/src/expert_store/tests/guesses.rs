//! What is read before a flight wants it: a token's guesses, and what a prompt names ahead.

use super::super::guesses::{BESIDE, MOST_GUESSES};
use super::super::{ExpertRead, ExpertStore, GuessCounts, Held};
use forebay_queues::slab::PAGE;

use super::{BYTES, fill, look, request, store, whole};
use crate::cache::PolicyKind;

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

/// A flight that would have to wait for a cell, behind others, takes over the guess that is on its way: taken without a
/// hold, it would end that of the prompt, or of whoever has the cell next.
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

/// A generated token's guess, which has a cluster's Gates only, may come when a prompt has begun. The prompt keeps it,
/// and needs all of it.
#[test]
fn a_prompt_reads_the_rest_of_a_token_s_guess_that_it_keeps() {
    for wanted_ahead in [true, false] {
        let mut store = store(4, 8, PolicyKind::Frequency, vec![]);
        store.guess([request(5, false)].into_iter());
        let mut gates = store.next_read().expect("the disk is idle");
        store.started(gates.cell, 7);
        store.end_step();
        store.preload([].into_iter());
        fill(&mut gates);
        assert_eq!(store.arrived(gates.cell, gates.slot, true), None);
        if wanted_ahead {
            store.want_ahead([(whole(5), false)].into_iter());
        }
        store.want(whole(5));
        let mut rest = store.next_read().expect("the pairs are missing");
        assert!(!rest.guessed && rest.range == (PAGE..BYTES));
        assert!(store.take(5).is_none(), "it is still to come");
        store.started(rest.cell, 8);
        fill(&mut rest);
        assert_eq!(store.arrived(rest.cell, rest.slot, true), Some(5));
        let taken = store.take(5).expect("it is here");
        assert!(matches!(look(5, &taken), Held::All));
        assert_eq!(store.guess_counts.wanted, 1, "it has come true");
    }
}

/// What a prompt has computed may be evicted before the disk is idle enough for what was named ahead.
#[test]
fn what_a_flight_has_wanted_is_not_read_ahead_any_more() {
    let mut store = store(2, 32, PolicyKind::Lru, vec![]);
    store.preload((0..4).map(whole));
    for key in 0..3 {
        store.want(whole(key));
        if let Some(mut read) = store.next_read() {
            assert_eq!(read.key, key);
            fill(&mut read);
            store.arrived(read.cell, read.slot, true);
        }
        let taken = store.take(key).expect("read at once");
        store.checked(key, look(key, &taken));
        store.give_back(key, taken.slot);
    }
    assert!(!store.has(0));
    assert!(store.guesses.iter().map(|named| named.key).eq([3]));
}

#[test]
fn what_a_prompt_has_named_is_given_up_at_its_end() {
    let mut store = store(8, 32, PolicyKind::Lru, vec![]);
    store.preload([whole(10)].into_iter());
    store.end_step();
    assert!(store.next_read().is_none(), "nobody wants it");
    assert_eq!(store.guess_counts.read, 0);
}

/// A guess that is on its way keeps only its own cell in use.
#[test]
fn a_cache_shrinks_beside_a_guess_on_its_way() {
    let (mut store, read) = guessing(5);
    let kept = read.cell + 1;
    assert!(store.resize(kept), "the guess stays");
    assert_eq!(store.cells_in_use(), kept);
    assert!(!store.resize(read.cell), "the guess would go");
    store.arrived(read.cell, read.slot, true);
    assert!(store.resize(read.cell));
    assert!(!store.has(5) && store.holds() == 0);
}
