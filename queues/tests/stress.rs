//! The concurrent parts on real threads, where the hardware chooses the interleavings.
#![cfg(not(loom))]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_queues::board::{F32Board, I64Board};
use forebay_queues::capacity::Capacity;
use forebay_queues::doorbell::{Bell, Spin, Woke, doorbell};
use forebay_queues::exchange::{Aborted, Member, exchange};
use forebay_queues::lane::{LaneRx, LaneTx, SendError, lane};

/// A lost wake-up ends the test instead of hanging it.
const LOST: Option<Duration> = Some(Duration::from_secs(30));

fn wait_for(bell: &Bell, spin: Spin, mut ready: impl FnMut() -> bool) {
    loop {
        let seen = bell.epoch();
        if ready() {
            return;
        }
        assert_ne!(bell.wait(seen, spin, LOST), Woke::TimedOut, "lost wake-up");
    }
}

fn echo(bell: &Bell, from: &LaneRx<u64>, to: &LaneTx<u64>, spin: Spin) {
    loop {
        let mut next = None;
        wait_for(bell, spin, || {
            next = from.try_recv();
            next.is_some() || from.is_closed()
        });
        match next {
            Some(v) => to.send(v + 1).expect("one value is in flight"),
            None => return,
        }
    }
}

#[test]
fn ping_pong_parked_and_spinning() {
    for (spin, rounds) in [(Spin::NONE, 3_000), (Spin::looks(200), 10_000)] {
        let one = Capacity::of(&[("the ball", 1)]);
        let (here, ring_here) = doorbell();
        let (there, ring_there) = doorbell();
        let (to, from_here) = lane(&one, ring_there);
        let (back, from_there) = lane(&one, ring_here);
        let other = thread::spawn(move || echo(&there, &from_here, &back, spin));
        let mut ball = 0;
        for _ in 0..rounds {
            to.send(ball).expect("one value is in flight");
            wait_for(&here, spin, || match from_there.try_recv() {
                Some(v) => {
                    ball = v;
                    true
                }
                None => false,
            });
        }
        assert_eq!(ball, rounds);
        drop(to);
        other.join().expect("no panic");
    }
}

#[test]
fn buffers_of_three_cores_arrive_once_and_come_back() {
    const CORES: u64 = 3;
    const ITEMS: u64 = 20_000;
    const BUFFERS: usize = 2;
    let own = Capacity::of(&[("buffers of a core", BUFFERS)]);
    let all: Capacity = [&own; CORES as usize].into_iter().sum();
    let (bell, ringer) = doorbell();
    let (tx, rx) = lane::<(u64, Vec<u64>), _>(&all, ringer);
    let mut back = Vec::new();
    let mut cores = Vec::new();
    for core in 0..CORES {
        let (bell, ringer) = doorbell();
        let (give, returned) = lane(&own, ringer);
        back.push(give);
        let tx = tx.clone();
        cores.push(thread::spawn(move || {
            let mut free: Vec<Vec<_>> = (0..BUFFERS).map(|_| Vec::with_capacity(7)).collect();
            let mut items = core * ITEMS..(core + 1) * ITEMS;
            while !items.is_empty() {
                wait_for(&bell, Spin::looks(50), || {
                    free.extend(std::iter::from_fn(|| returned.try_recv()));
                    !free.is_empty()
                });
                let mut buffer: Vec<u64> = free.pop().expect("waited for");
                assert!(buffer.is_empty());
                buffer.extend(items.by_ref().take(7));
                tx.send((core, buffer)).expect("room for every buffer");
            }
        }));
    }
    drop(tx);
    let mut next = [0, ITEMS, 2 * ITEMS];
    wait_for(&bell, Spin::looks(50), || {
        while let Some((core, mut buffer)) = rx.try_recv() {
            for item in buffer.drain(..) {
                assert_eq!(item, next[core as usize], "order within a core");
                next[core as usize] += 1;
            }
            // A core that has sent everything no longer takes its buffers back.
            let sent = back[core as usize].send(buffer);
            assert!(!matches!(sent, Err(SendError::Full { .. })));
        }
        rx.is_closed()
    });
    assert_eq!(next, [ITEMS, 2 * ITEMS, 3 * ITEMS]);
    for core in cores {
        core.join().expect("no panic");
    }
}

/// Meets `meetings` times; each core's part depends on all parts of the meeting before.
fn meet(member: &mut Member, bell: &Bell, board: &F32Board, sums: &I64Board, meetings: u64) -> i64 {
    const PART: usize = 33; // odd, so that parts share cache lines
    let n = member.members();
    let mut all = vec![0.0; n * PART];
    let mut total = vec![0; n];
    let mut seed = 1;
    for _ in 0..meetings {
        let half = (member.epoch() % 2) as usize;
        let part: Vec<f32> = (0..PART).map(|i| (seed + i as i64) as f32).collect();
        board.write(half * n * PART + member.rank() * PART, &part);
        sums.write(
            half * n + member.rank(),
            &[seed * (member.rank() as i64 + 1)],
        );
        let epoch = member.arrive();
        wait_for(bell, Spin::looks(20), || {
            member.complete(epoch).expect("no member left")
        });
        board.read(half * n * PART, &mut all);
        sums.read(half * n, &mut total);
        for (i, &v) in all.iter().enumerate() {
            assert_eq!(v, (seed + (i % PART) as i64) as f32, "stale part");
        }
        // The same on every core, if every core saw every part.
        seed = total.iter().sum::<i64>() % 1_000_003;
    }
    seed
}

#[test]
fn four_cores_meet_and_nobody_sees_a_stale_part() {
    const CORES: usize = 4;
    let (bells, ringers): (Vec<_>, Vec<_>) = (0..CORES).map(|_| doorbell()).unzip();
    let board = Arc::new(F32Board::new(2 * CORES * 33));
    let sums = Arc::new(I64Board::new(2 * CORES));
    let (members, _) = exchange(ringers);
    let cores: Vec<_> = members
        .into_iter()
        .zip(bells)
        .map(|(mut member, bell)| {
            let (board, sums) = (Arc::clone(&board), Arc::clone(&sums));
            thread::spawn(move || meet(&mut member, &bell, &board, &sums, 3_000))
        })
        .collect();
    let ends: Vec<i64> = cores
        .into_iter()
        .map(|c| c.join().expect("no panic"))
        .collect();
    let expected = (0..3_000).fold(1, |seed, _| seed * 10 % 1_000_003);
    assert_eq!(ends, [expected; CORES]);
}

#[test]
fn a_panic_on_one_core_frees_the_others() {
    let (bells, ringers): (Vec<_>, Vec<_>) = (0..3).map(|_| doorbell()).unzip();
    let (members, _) = exchange(ringers);
    let cores: Vec<_> = members
        .into_iter()
        .zip(bells)
        .map(|(mut member, bell)| {
            thread::spawn(move || {
                loop {
                    if member.rank() == 1 && member.epoch() == 100 {
                        // Quietly: a panic without its message.
                        std::panic::resume_unwind(Box::new("planted"));
                    }
                    let epoch = member.arrive();
                    let mut state = Ok(false);
                    wait_for(&bell, Spin::NONE, || {
                        state = member.complete(epoch);
                        state != Ok(false)
                    });
                    if state == Err(Aborted) {
                        return member.epoch();
                    }
                }
            })
        })
        .collect();
    let ends: Vec<_> = cores.into_iter().map(|c| c.join().ok()).collect();
    assert_eq!(ends, [Some(101), None, Some(101)]);
}
