use std::sync::Arc;

use forebay_queues::slab::Slab;

use super::*;
use crate::io::simulated::{Medium, SimulatedDriver, Weather};
use crate::io::{ALIGNMENT, Driver, ReadFault};

const PAGE: usize = ALIGNMENT as usize;

/// The lanes of one core with `reads` buffers and of the engine thread with `rows`, and the core's
/// bell.
fn lanes(reads: usize, rows: usize) -> (IoLink, RowLink, IoLanes, Bell) {
    let medium = Medium::new(Arc::from(vec![0; PAGE]), 0, Weather::calm());
    let driver = SimulatedDriver::new(medium, 1).expect("an eventfd");
    let (bell, ringer) = doorbell();
    let cores = vec![(Capacity::of(&[("stream windows", reads)]), ringer)];
    let rows = Capacity::of(&[("embedding rows", rows)]);
    let (mut links, rows, lanes) = io_lanes(cores, rows, &driver.waker(), Vec::new());
    (links.remove(0), rows, lanes, bell)
}

fn slot(first: u8) -> Slot {
    let mut slot = Slab::new(PAGE)
        .expect("memory")
        .carve(PAGE)
        .expect("a page");
    slot[0] = first;
    slot
}

fn done(op: ReadOp) -> ReadDone {
    ReadDone::of(op, Ok(()), (0, 0), 0)
}

#[test]
fn tags_survive_and_do_not_depend_on_the_sequence() {
    let number = NUMBER as usize;
    let tags = [
        ReadTag::Stream { ordinal: number },
        ReadTag::Preload { ordinal: 0 },
        ReadTag::Neurons { id: number },
        ReadTag::Embedding { token_index: 17 },
    ];
    for tag in tags {
        for sequence in [0, 1, u64::from(u32::MAX)] {
            assert_eq!(ReadTag::decode(tag.encode(sequence)), tag);
        }
    }
}

#[test]
fn a_read_without_a_place_comes_back_as_failed_with_its_buffer() {
    let (mut link, _rows, lanes, bell) = lanes(1, 1);
    let tag = |ordinal| ReadTag::Stream { ordinal };
    let seen = bell.epoch();
    link.prefetch(tag(0), 0, PAGE, (slot(10), 0));
    link.prefetch(tag(1), 0, PAGE, (slot(11), 0));
    assert_eq!(bell.epoch(), seen, "room for the sum of all clients");
    link.prefetch(tag(2), 4096, PAGE, (slot(12), 0));
    assert_ne!(
        bell.epoch(),
        seen,
        "a client that is about to sleep looks again"
    );
    let back = link.try_done().expect("the refused read");
    assert_eq!((ReadTag::decode(back.tag), back.slot[0]), (tag(2), 12));
    let fault = ReadFault {
        kind: FaultKind::LaneFull { places: 2 },
        offset: 4096,
        len: ALIGNMENT,
    };
    assert_eq!(back.result, Err(fault));
    assert!(link.try_done().is_none());
    let (mut requests, _) = lanes.split();
    let first = std::iter::from_fn(|| requests.next_prefetch()).map(|op| op.slot[0]);
    assert_eq!(first.collect::<Vec<_>>(), [10, 11]);
}

#[test]
fn a_completion_without_a_place_is_the_io_actors_own_fault() {
    let (mut link, _rows, lanes, _bell) = lanes(1, 1);
    let (mut requests, mut completions) = lanes.split();
    for ordinal in 0..2 {
        link.urgent(ReadTag::Stream { ordinal }, 0, PAGE, (slot(0), 0));
    }
    let mut next = || done(requests.next_urgent().expect("sent"));
    completions
        .complete(next(), &IoTally::default())
        .expect("room");
    let error = completions
        .complete(next(), &IoTally::default())
        .expect_err("full")
        .to_string();
    assert!(error.contains("1 = stream windows 1"), "{error}");
}

#[test]
fn clients_and_io_actor_may_end_in_any_order() {
    let (mut link, mut rows, lanes, _bell) = lanes(1, 1);
    let (mut requests, mut completions) = lanes.split();
    link.urgent(ReadTag::Neurons { id: 0 }, 0, PAGE, (slot(0), 0));
    drop(link);
    let read = done(requests.next_urgent().expect("sent"));
    completions
        .complete(read, &IoTally::default())
        .expect("nobody wants it");

    rows.read(3, 0, PAGE, slot(1));
    let read = requests.next_urgent().expect("sent");
    let tag = ReadTag::decode(read.tag);
    assert_eq!(tag, ReadTag::Embedding { token_index: 3 });
    completions
        .complete(done(read), &IoTally::default())
        .expect("room");
    drop((requests, completions));
    let (token_index, read) = rows.wait_done().expect("it had been completed");
    assert_eq!((token_index, read.slot[0]), (3, 1));
    // Not an answer, and not a hang.
    rows.read(0, 0, PAGE, slot(2));
    assert!(rows.wait_done().is_none());
}
