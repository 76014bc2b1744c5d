//! Every interleaving of small cases, under the C11 memory model as loom implements it:
//! `RUSTFLAGS="--cfg loom" cargo test -p forebay-queues --test loom --release`.
//!
//! loom reports a lost wake-up as a deadlock, since all its threads are then parked.
#![cfg(loom)]

use std::sync::Arc;
use std::time::Duration;

use forebay_queues::board::F32Board;
use forebay_queues::capacity::Capacity;
use forebay_queues::claims::Claims;
use forebay_queues::doorbell::{Bell, Ringer, Spin, Woke, doorbell};
use forebay_queues::exchange::{Aborted, Member, exchange};
use forebay_queues::lane::lane;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// The way an actor uses its bell: epoch, look for work, wait.
fn wait_for(bell: &Bell, spin: Spin, timeout: Option<Duration>, mut ready: impl FnMut() -> bool) {
    loop {
        let seen = bell.epoch();
        if ready() {
            return;
        }
        bell.wait(seen, spin, timeout);
    }
}

#[test]
fn a_ring_is_never_lost_and_publishes_what_was_written_before() {
    loom::model(|| {
        let (bell, ringer) = doorbell();
        let work = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&work);
        let other = thread::spawn(move || {
            for i in 1..=2 {
                // Relaxed: only the ring orders it.
                theirs.store(i, Ordering::Relaxed);
                ringer.ring();
            }
        });
        for i in 1..=2 {
            wait_for(&bell, Spin::NONE, None, || {
                work.load(Ordering::Relaxed) >= i
            });
        }
        other.join().expect("no panic");
    });
}

#[test]
fn a_changed_epoch_shows_the_work_of_that_ring() {
    loom::model(|| {
        let (bell, ringer) = doorbell();
        let work = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&work);
        let other = thread::spawn(move || {
            theirs.store(1, Ordering::Relaxed);
            ringer.ring();
        });
        let woke = bell.wait(0, Spin::NONE, None);
        assert_ne!(woke, Woke::TimedOut);
        assert_eq!(bell.epoch(), 1);
        assert_eq!(work.load(Ordering::Relaxed), 1);
        other.join().expect("no panic");
    });
}

#[test]
fn two_ringers_wake_one_bell() {
    // Every interleaving takes minutes; bugs of this kind need few preemptions (CHESS, PLDI 2007).
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (bell, ringer) = doorbell();
        let work = Arc::new(AtomicUsize::new(0));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let (ringer, work): (Ringer, _) = (ringer.clone(), Arc::clone(&work));
                thread::spawn(move || {
                    work.fetch_add(1, Ordering::Relaxed);
                    ringer.ring();
                })
            })
            .collect();
        // On a separate thread that joins no other: loom's `join` cannot stand the second ringer's unpark, should it
        // come late.
        let waiter = thread::spawn(move || {
            wait_for(&bell, Spin::NONE, None, || {
                work.load(Ordering::Relaxed) == 2
            });
        });
        for other in others.into_iter().chain([waiter]) {
            other.join().expect("no panic");
        }
    });
}

#[test]
fn a_timeout_that_races_a_ring_loses_nothing() {
    loom::model(|| {
        let (bell, ringer) = doorbell();
        let other = thread::spawn(move || ringer.ring());
        let woke = bell.wait(0, Spin::NONE, Some(Duration::from_millis(1)));
        if woke == Woke::TimedOut {
            // The ring is still there for a wait without time-out.
            bell.wait(0, Spin::looks(1), None);
        }
        assert_eq!(bell.epoch(), 1);
        other.join().expect("no panic");
    });
}

#[test]
fn a_lane_delivers_and_its_closing_wakes() {
    loom::model(|| {
        let (bell, ringer) = doorbell();
        let (tx, rx) = lane(&Capacity::of(&[("test", 2)]), ringer);
        let other = thread::spawn(move || tx.send(7).expect("room"));
        let mut got = Vec::new();
        wait_for(&bell, Spin::NONE, None, || {
            got.extend(rx.try_recv());
            rx.is_closed()
        });
        assert_eq!(got, [7]);
        other.join().expect("no panic");
    });
}

/// Two meetings of one core: publishes `10 * epoch + rank`, then checks what all others published.
fn meet(member: &mut Member, bell: &Bell, board: &F32Board, meetings: u64) {
    for _ in 0..meetings {
        let rank = member.rank();
        let half = (member.epoch() % 2) as usize * member.members();
        let value = |epoch: u64, rank: usize| (10 * epoch + rank as u64) as f32;
        board.write(half + rank, &[value(member.epoch() + 1, rank)]);
        let epoch = member.arrive();
        wait_for(bell, Spin::NONE, None, || {
            member
                .complete(epoch)
                .expect("no abort before the last exchange is complete")
        });
        for other in 0..member.members() {
            let mut cell = [0.0];
            board.read(half + other, &mut cell);
            assert_eq!(cell[0], value(epoch, other));
        }
    }
}

fn all_meet(n: usize, meetings: u64, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let (bells, ringers): (Vec<_>, Vec<_>) = (0..n).map(|_| doorbell()).unzip();
        // Two halves used in turn: a core may write its next part while a slower one still reads.
        let board = Arc::new(F32Board::new(2 * n));
        let mut cores: Vec<_> = exchange(ringers).0.into_iter().zip(bells).collect();
        let (mut member, bell) = cores.remove(0);
        let others: Vec<_> = cores
            .into_iter()
            .map(|(mut member, bell)| {
                let board = Arc::clone(&board);
                thread::spawn(move || meet(&mut member, &bell, &board, meetings))
            })
            .collect();
        meet(&mut member, &bell, &board, meetings);
        for other in others {
            other.join().expect("no panic");
        }
    });
}

#[test]
fn two_cores_meet_twice_and_see_each_others_parts() {
    all_meet(2, 2, Some(3));
}

#[test]
fn two_cores_meet_once_in_every_interleaving() {
    all_meet(2, 1, None);
}

#[test]
fn three_cores_meet_and_see_each_others_parts() {
    all_meet(3, 1, Some(2));
}

#[test]
fn an_abort_is_seen_instead_of_a_wait_for_ever() {
    loom::model(|| {
        let (bells, ringers): (Vec<_>, Vec<_>) = (0..2).map(|_| doorbell()).unzip();
        let (mut members, aborter) = exchange(ringers);
        let _absent = members.pop();
        let mut member = members.remove(0);
        let supervisor = thread::spawn(move || aborter.abort());
        let epoch = member.arrive();
        let mut seen = Ok(false);
        wait_for(&bells[0], Spin::NONE, None, || {
            seen = member.complete(epoch);
            seen != Ok(false)
        });
        assert_eq!(seen, Err(Aborted));
        supervisor.join().expect("no panic");
    });
}

#[test]
fn a_core_that_arrives_and_leaves_does_not_abort_that_meeting() {
    loom::model(|| {
        let (bells, ringers): (Vec<_>, Vec<_>) = (0..2).map(|_| doorbell()).unzip();
        let (mut members, _) = exchange(ringers);
        let mut leaving = members.remove(1);
        let mut member = members.remove(0);
        let other = thread::spawn(move || {
            leaving.arrive();
        });
        let epoch = member.arrive();
        wait_for(&bells[0], Spin::NONE, None, || {
            member.complete(epoch).expect("the other core did arrive")
        });
        other.join().expect("no panic");
    });
}

/// Takes all that is left, of its own list first.
fn take_all(claims: &Claims, rank: usize, round: u64, len: usize) -> Vec<(usize, usize)> {
    let mut taken = Vec::new();
    for list in [rank, 1 - rank] {
        while let Some(place) = claims.claim(list, round, len) {
            taken.push((list, place));
        }
    }
    taken
}

#[test]
fn every_entry_of_every_list_is_claimed_by_one_core() {
    loom::model(|| {
        let claims = Arc::new(Claims::new(2));
        // The cursors stand somewhere in an earlier round.
        claims.claim(0, 1, 2);
        let theirs = Arc::clone(&claims);
        let other = thread::spawn(move || take_all(&theirs, 1, 2, 2));
        let mut taken = take_all(&claims, 0, 2, 2);
        taken.extend(other.join().expect("no panic"));
        taken.sort_unstable();
        assert_eq!(taken, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    });
}
