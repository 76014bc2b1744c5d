use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_stages::contract::Turn;
use forebay_traces::record::Reason;

use super::super::waker::Bell;
use super::*;

/// What a steered driver has in flight: the test takes reads out and gives results.
type Inside = Arc<Mutex<(Vec<ReadOp>, Vec<(ReadOp, Result<(), FaultKind>)>)>>;

/// A driver without a disk: the test decides when a read ends and how.
struct Steered {
    inside: Inside,
    capacity: usize,
    bell: Bell,
}

impl Driver for Steered {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn submit(&mut self, op: ReadOp, _now_ns: u64) -> Result<(), ReadOp> {
        assert!(self.in_flight() < self.capacity, "more than the depth");
        self.inside.lock().unwrap().0.push(op);
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<ReadDone>) -> usize {
        let ended: Vec<_> = self.inside.lock().unwrap().1.drain(..).collect();
        let count = ended.len();
        out.extend(
            ended
                .into_iter()
                .map(|(op, result)| ReadDone::of(op, result, (0, now_ns), 3)),
        );
        count
    }

    fn wait(&mut self, _timeout: Option<Duration>) -> std::io::Result<()> {
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.bell.waker()
    }

    fn in_flight(&self) -> usize {
        let inside = self.inside.lock().unwrap();
        inside.0.len() + inside.1.len()
    }

    fn name(&self) -> &'static str {
        "steered"
    }
}

struct Bench {
    actor: IoActor<Steered, Requests, Kept>,
    inside: Inside,
    now_ns: u64,
}

impl Bench {
    fn new(capacity: usize, limits: IoLimits) -> Self {
        let inside = Inside::default();
        let driver = Steered {
            inside: Arc::clone(&inside),
            capacity,
            bell: Bell::new().expect("eventfd"),
        };
        let actor = IoActor::new(driver, Requests::default(), Kept::default(), limits);
        Self {
            actor,
            inside,
            now_ns: 0,
        }
    }

    fn urgent(&mut self, op: ReadOp) {
        self.actor.source_mut().urgent.push_back(op);
    }

    fn prefetch(&mut self, op: ReadOp) {
        self.actor.source_mut().prefetch.push_back(op);
    }

    fn turn(&mut self) -> Turn {
        self.now_ns += 10;
        self.actor.turn(self.now_ns).expect("never fails")
    }

    /// File offsets of the reads in flight, in pages, oldest first.
    fn in_flight(&self) -> Vec<u64> {
        let inside = self.inside.lock().unwrap();
        inside.0.iter().map(|op| op.offset / PAGE as u64).collect()
    }

    /// Ends the `index`-th read in flight.
    fn end(&self, index: usize, result: Result<(), FaultKind>) {
        let mut inside = self.inside.lock().unwrap();
        let op = inside.0.remove(index);
        inside.1.push((op, result));
    }

    fn done(&mut self) -> Vec<ReadDone> {
        std::mem::take(&mut self.actor.sink_mut().0)
    }
}

/// A read of `pages` pages whose tag is its first page.
fn pages(first: u64, pages: usize) -> ReadOp {
    read_op(first, first * PAGE as u64, pages * PAGE, slot(pages * PAGE))
}

#[test]
fn urgent_reads_overtake_prefetching_and_find_a_free_place() {
    let mut bench = Bench::new(8, IoLimits::new(1, 4));
    (0..6).for_each(|i| bench.prefetch(pages(i, 1)));
    bench.turn();
    assert_eq!(bench.in_flight(), [0, 1, 2], "one of four is kept free");
    (100..103).for_each(|i| bench.urgent(pages(i, 1)));
    bench.turn();
    assert_eq!(bench.in_flight(), [0, 1, 2, 100]);
    bench.end(0, Ok(()));
    bench.turn();
    bench.end(0, Ok(()));
    bench.turn();
    assert_eq!(bench.in_flight(), [2, 100, 101, 102]);
    bench.end(3, Ok(()));
    bench.end(2, Ok(()));
    bench.turn();
    assert_eq!(bench.in_flight(), [2, 100, 3, 4], "prefetching continues");
}

#[test]
fn few_bytes_are_in_flight_and_some_are_kept_free_of_prefetching() {
    let limits = IoLimits {
        chunk_bytes: 2 * ALIGNMENT,
        bytes: 8 * u64::from(ALIGNMENT),
        ..IoLimits::new(1, 16)
    };
    let mut bench = Bench::new(16, limits);
    bench.prefetch(pages(0, 9));
    bench.turn();
    assert_eq!(bench.in_flight(), [0, 2, 4], "a quarter is kept free");
    bench.urgent(pages(50, 3));
    bench.turn();
    assert_eq!(bench.in_flight(), [0, 2, 4, 50]);
    // One that is tried again counts once.
    bench.end(3, Err(FaultKind::Os(libc::EIO)));
    bench.turn();
    assert_eq!(bench.in_flight(), [0, 2, 4, 50]);
    for (ended, then) in [
        (3, vec![0, 2, 4, 52]),
        (0, vec![2, 4, 52, 6]),
        (2, vec![2, 4, 6]),
        (0, vec![4, 6, 8]),
    ] {
        bench.end(ended, Ok(()));
        bench.turn();
        assert_eq!(bench.in_flight(), then);
    }
    for _ in 0..3 {
        bench.end(0, Ok(()));
    }
    bench.turn();
    assert_eq!(bench.done().len(), 2);
    // Nothing is in flight: a read that is longer than all of it is started, too.
    bench.urgent(pages(70, 2));
    bench.turn();
    assert_eq!(bench.in_flight(), [70]);
}

#[test]
fn an_urgent_read_comes_between_the_chunks_of_a_long_one() {
    let limits = IoLimits {
        chunk_bytes: 2 * ALIGNMENT,
        ..IoLimits::new(1, 2)
    };
    let mut bench = Bench::new(2, limits);
    bench.prefetch(pages(0, 7));
    bench.turn();
    assert_eq!(bench.in_flight(), [0]);
    bench.urgent(pages(50, 1));
    bench.turn();
    assert_eq!(bench.in_flight(), [0, 50]);
    bench.end(1, Ok(()));
    for first in [2, 4, 6] {
        bench.end(0, Ok(()));
        bench.turn();
        assert_eq!(bench.in_flight(), [first]);
    }
    assert_eq!(bench.done().len(), 1, "the long read is not over");
    bench.end(0, Ok(()));
    bench.turn();
    let done = bench.done().remove(0);
    assert_eq!(
        (done.tag, done.len, done.slot.len()),
        (0, 7 * ALIGNMENT, 7 * PAGE)
    );
    assert_eq!(done.io_slot, 3);
    assert_eq!((done.started_ns, done.done_ns), (10, bench.now_ns));
}

#[test]
fn chunks_fill_the_right_bytes_whatever_their_order() {
    let file = test_file(300 * PAGE as u64);
    let limits = IoLimits {
        chunk_bytes: 3 * ALIGNMENT,
        ..IoLimits::new(2, 16)
    };
    for driver in every_driver(file.path(), 16) {
        let mut actor = IoActor::new(driver, Requests::default(), Kept::default(), limits);
        for tag in 0..60u64 {
            let count = 1 + tag as usize % 17;
            let op = ReadOp {
                client: (tag % 2) as u16,
                tag,
                offset: tag * 4 * PAGE as u64,
                len: (count * PAGE) as u32,
                slot: slot((count + 3) * PAGE),
                slot_offset: 2 * ALIGNMENT,
            };
            actor.source_mut().prefetch.push_back(op);
        }
        let done = run(&mut actor);
        assert_eq!(done.len(), 60);
        for d in &done {
            assert_eq!(d.result, Ok(()));
            assert_eq!(
                (d.client, d.slot_offset),
                ((d.tag % 2) as u16, 2 * ALIGNMENT)
            );
            assert_eq!(d.slot.len(), d.len as usize + 3 * PAGE);
            assert!(d.bytes() == expected(d.offset, d.len, u64::MAX));
            assert!(d.slot[..2 * PAGE].iter().all(|&b| b == 0));
            assert!(d.slot[2 * PAGE + d.len as usize..].iter().all(|&b| b == 0));
        }
        let statistics = *actor.statistics();
        let bytes: u64 = done.iter().map(|d| u64::from(d.len)).sum();
        assert_eq!((statistics.reads, statistics.bytes), (60, bytes));
        assert_eq!((statistics.urgent_reads, statistics.max_depth), (0, 12));
        assert!(statistics.busy_ns > 0);
    }
}

#[test]
fn never_more_than_the_depth_is_in_flight_or_the_limit_pending() {
    let limits = IoLimits {
        pending: 5,
        chunk_bytes: ALIGNMENT,
        ..IoLimits::new(1, 3)
    };
    let mut bench = Bench::new(8, limits);
    (0..40).for_each(|i| bench.urgent(pages(3 * i, 3)));
    let mut completed = 0;
    for turn in 0..400usize {
        bench.turn();
        let in_flight = bench.in_flight().len();
        assert!(in_flight <= 3);
        // Requests that are neither done nor started nor among five pending ones stay outside.
        let outside = bench.actor.source_mut().urgent.len();
        assert!(outside + 5 + 3 + completed >= 40);
        if in_flight > 0 {
            bench.end(turn * 7 % in_flight, Ok(()));
        }
        completed += bench.done().len();
    }
    assert_eq!(completed, 40);
    assert_eq!(bench.actor.statistics().max_depth, 3);
}

#[test]
fn a_fault_ends_a_long_read_early_but_not_before_its_chunks_are_back() {
    let limits = IoLimits {
        chunk_bytes: ALIGNMENT,
        ..IoLimits::new(1, 2)
    };
    let mut bench = Bench::new(2, limits);
    bench.urgent(pages(0, 9));
    bench.urgent(pages(20, 1));
    bench.turn();
    let short = FaultKind::ShortRead { got: 7 };
    bench.end(1, Err(short));
    bench.turn();
    assert_eq!(bench.in_flight(), [0, 20], "the rest is not read");
    assert!(bench.done().is_empty(), "the kernel still has a chunk");
    bench.end(0, Err(FaultKind::Os(libc::EINVAL)));
    bench.turn();
    let done = bench.done().remove(0);
    let fault = done.result.expect_err("a chunk failed");
    assert_eq!(
        (fault.kind, fault.offset),
        (short, PAGE as u64),
        "the first cause"
    );
    assert_eq!(done.slot.len(), 9 * PAGE, "all parts are back");
    bench.end(0, Ok(()));
    bench.turn();
    assert_eq!(bench.done().remove(0).result, Ok(()));
}

#[test]
fn a_passing_fault_is_tried_again_once() {
    let mut bench = Bench::new(4, IoLimits::new(1, 4));
    let eio = FaultKind::Os(libc::EIO);
    bench.urgent(pages(0, 1));
    bench.turn();
    bench.end(0, Err(eio));
    bench.turn();
    assert_eq!(bench.in_flight(), [0]);
    assert!(bench.done().is_empty());
    bench.end(0, Ok(()));
    bench.turn();
    assert_eq!(bench.done().remove(0).result, Ok(()));

    bench.prefetch(pages(1, 1));
    bench.turn();
    for _ in 0..2 {
        bench.end(0, Err(eio));
        bench.turn();
    }
    let done = bench.done();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].result.map_err(|f| f.kind), Err(eio));
    assert_eq!(bench.actor.statistics().retries, 2);
    bench.prefetch(pages(2, 1));
    bench.turn();
    assert_eq!(bench.in_flight(), [2], "usable afterwards");
}

#[test]
fn wrong_requests_are_answered_and_the_end_is_announced() {
    let mut bench = Bench::new(2, IoLimits::new(2, 2));
    assert_eq!(bench.turn(), Turn::Blocked(Reason::Idle));
    let mut stranger = pages(0, 1);
    stranger.client = 2;
    bench.urgent(stranger);
    bench.prefetch(read_op(1, 100, PAGE, slot(PAGE)));
    assert_eq!(bench.turn(), Turn::Progress);
    let kinds: Vec<_> = bench
        .done()
        .into_iter()
        .map(|d| d.result.map_err(|f| f.kind))
        .collect();
    let unknown = FaultKind::UnknownClient(2);
    assert_eq!(kinds, [Err(unknown), Err(FaultKind::Misaligned)]);

    bench.urgent(pages(5, 1));
    bench.actor.source_mut().closed = true;
    assert_eq!(bench.turn(), Turn::Progress);
    assert_eq!(
        bench.turn(),
        Turn::Blocked(Reason::Idle),
        "a read is still in flight"
    );
    bench.end(0, Ok(()));
    assert_eq!(bench.turn(), Turn::Progress);
    assert_eq!(bench.turn(), Turn::Finished);
    assert_eq!(bench.done().len(), 1);
}

#[test]
fn silly_limits_are_made_usable() {
    let limits = IoLimits {
        depth: 0,
        prefetch_depth: 99,
        bytes: 0,
        chunk_bytes: 5,
        clients: 1,
        pending: 0,
        longest_request: 0,
    };
    let mut bench = Bench::new(4, limits);
    bench.prefetch(pages(0, 2));
    bench.turn();
    assert_eq!(bench.in_flight(), [0]);
    bench.end(0, Ok(()));
    bench.turn();
    assert_eq!(bench.in_flight(), [1]);
    bench.end(0, Ok(()));
    bench.turn();
    assert_eq!(bench.done().len(), 1);
}
