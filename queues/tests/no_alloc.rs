//! After start-up nothing here touches the allocator.
#![cfg(not(loom))]

use allocation_counter::measure;
use forebay_queues::board::F32Board;
use forebay_queues::capacity::Capacity;
use forebay_queues::doorbell::{Spin, doorbell};
use forebay_queues::exchange::exchange;
use forebay_queues::lane::lane;

#[test]
fn a_lane_is_allocated_once() {
    let (bell, ringer) = doorbell();
    bell.bind();
    let capacity = Capacity::of(&[("there", 48), ("back", 52)]);
    let built = measure(|| drop(lane::<[u64; 8], _>(&capacity, ringer.clone())));
    assert!(built.count_total > 0, "the counter counts");

    let (tx, rx) = lane(&capacity, ringer);
    let used = measure(|| {
        for round in 0..5 {
            let seen = bell.epoch();
            for i in 0..100 {
                tx.send([round + i; 8]).expect("room for 100");
            }
            assert!(tx.send([0; 8]).is_err(), "and for no more");
            bell.wait(seen, Spin::NONE, None);
            assert_eq!(rx.len(), 100);
            for i in 0..100 {
                assert_eq!(rx.try_recv(), Some([round + i; 8]));
            }
        }
    });
    assert_eq!(used.count_total, 0, "{used:?}");
}

#[test]
fn an_exchange_is_allocated_once() {
    let (bell, ringer) = doorbell();
    bell.bind();
    let (mut members, _aborter) = exchange(vec![ringer.clone(), ringer]);
    let board = F32Board::new(64);
    let mut part = [1.0; 64];
    let used = measure(|| {
        for _ in 0..10 {
            let seen = bell.epoch();
            board.write(0, &part);
            let epoch = members[0].arrive();
            members[1].arrive();
            bell.wait(seen, Spin::NONE, None);
            assert_eq!(members[0].complete(epoch), Ok(true));
            board.read(0, &mut part);
        }
    });
    assert_eq!(used.count_total, 0, "{used:?}");
}
