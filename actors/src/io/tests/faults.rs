use std::sync::Arc;

use proptest::prelude::*;

use super::super::simulated::{Medium, SimulatedDriver, Weather};
use super::*;

const FILE_PAGES: usize = 64;

type Simulated = IoActor<SimulatedDriver, Requests, Kept>;

/// An actor on a medium that misbehaves as `weather` says.
fn simulated_actor(seed: u64, weather: Weather, limits: IoLimits) -> (Simulated, Medium) {
    let content: Vec<u8> = (0..(FILE_PAGES * PAGE) as u64).map(byte_at).collect();
    let medium = Medium::new(Arc::from(content), seed, weather);
    let driver = SimulatedDriver::new(medium.clone(), 8).expect("a file descriptor");
    let actor = IoActor::new(driver, Requests::default(), Kept::default(), limits);
    (actor, medium)
}

fn small_chunks() -> IoLimits {
    IoLimits {
        chunk_bytes: 2 * ALIGNMENT,
        ..IoLimits::new(1, 6)
    }
}

/// Drives the actor in virtual time until it has nothing more to do.
fn run(actor: &mut Simulated) -> Vec<ReadDone> {
    actor.source_mut().closed = true;
    for now_ns in (0..10_000_000).step_by(10) {
        match actor.turn(now_ns).expect("the driver works") {
            Turn::Progress => {}
            Turn::Blocked(_) => actor.wait(None).expect("the driver works"),
            Turn::Finished => return std::mem::take(&mut actor.sink_mut().0),
        }
    }
    panic!("the actor hangs");
}

/// Of a thousand reads; often of none.
fn rate() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 0u32..300]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the medium does, each request completes once, with its own slot, and a result that says
    /// whether the content is right.
    #[test]
    fn each_request_completes_once_and_no_wrong_content_passes_for_right(
        seed in any::<u64>(),
        [errors, passing, partial, interruptions] in [rate(), rate(), rate(), rate()],
        latency in 1u64..900,
        end in prop_oneof![Just(FILE_PAGES * PAGE), 0..FILE_PAGES * PAGE],
        reads in proptest::collection::vec((0usize..40, 1usize..24, any::<bool>()), 1..40),
    ) {
        let weather = Weather {
            latency_ns: 0..latency,
            errors,
            passing,
            partial,
            interruptions,
            end: Some(end as u64),
            ..Weather::calm()
        };
        let (mut actor, _) = simulated_actor(seed, weather, small_chunks());
        let mut spans = Vec::new();
        for (tag, &(offset, pages, urgent)) in reads.iter().enumerate() {
            let slot = slot(pages * PAGE);
            spans.push((slot.span().addr(), slot.len()));
            let op = read_op(tag as u64, (offset * PAGE) as u64, pages * PAGE, slot);
            let source = actor.source_mut();
            let queue = if urgent { &mut source.urgent } else { &mut source.prefetch };
            queue.push_back(op);
        }
        let done = run(&mut actor);
        let mut tags: Vec<u64> = done.iter().map(|d| d.tag).collect();
        tags.sort_unstable();
        prop_assert_eq!(tags, (0..reads.len() as u64).collect::<Vec<_>>());
        for d in &done {
            prop_assert_eq!((d.slot.span().addr(), d.slot.len()), spans[d.tag as usize]);
            // Bytes that are no longer there cannot have been read.
            let is_there = d.offset + u64::from(d.len) <= end as u64;
            match d.result {
                Ok(()) => prop_assert!(d.bytes() == expected(d.offset, d.len, u64::MAX)),
                Err(fault) if errors == 0 => {
                    prop_assert!(!is_there, "{}", fault);
                    let is_short = matches!(fault.kind, FaultKind::ShortRead { .. });
                    prop_assert!(is_short, "{}", fault);
                }
                Err(_) => {}
            }
            prop_assert!(is_there || d.result.is_err());
        }
        let statistics = actor.statistics();
        let faults = done.iter().filter(|d| d.result.is_err()).count() as u64;
        prop_assert_eq!(statistics.faults, faults);
        prop_assert_eq!(statistics.reads, reads.len() as u64 - faults);
        if errors == 0 && passing == 0 {
            prop_assert_eq!(statistics.retries, 0);
        }
    }
}

#[test]
fn a_broken_place_is_reported_once_and_the_rest_stays_readable() {
    let broken = (10 * PAGE as u64)..(10 * PAGE as u64 + 1);
    let weather = Weather {
        broken: vec![broken],
        ..Weather::calm()
    };
    let (mut actor, medium) = simulated_actor(0, weather, small_chunks());
    for round in 0..3 {
        for (tag, offset) in [8u64, 0, 20].into_iter().enumerate() {
            let op = read_op(tag as u64, offset * PAGE as u64, 4 * PAGE, slot(4 * PAGE));
            actor.source_mut().urgent.push_back(op);
        }
        let mut done = run(&mut actor);
        done.sort_by_key(|d| d.tag);
        assert_eq!(done.len(), 3);
        let fault = done[0].result.expect_err("broken");
        assert_eq!(fault.kind, FaultKind::Os(libc::EIO));
        assert_eq!(fault.offset, 10 * PAGE as u64, "the chunk that failed");
        for d in &done[1..] {
            assert!(d.bytes() == expected(d.offset, d.len, u64::MAX));
        }
        let statistics = actor.statistics();
        assert_eq!(
            (statistics.retries, statistics.faults),
            (round + 1, round + 1)
        );
    }
    assert_eq!(medium.reads(), 3 * (6 + 1), "only the broken chunk twice");
}

#[test]
fn a_passing_error_is_not_reported() {
    let weather = Weather {
        passing: 60,
        ..Weather::calm()
    };
    let (mut actor, medium) = simulated_actor(5, weather, IoLimits::new(1, 1));
    for tag in 0..40 {
        let op = read_op(tag, tag * PAGE as u64, PAGE, slot(PAGE));
        actor.source_mut().prefetch.push_back(op);
    }
    let done = run(&mut actor);
    assert!(
        done.iter().all(|d| d.result.is_ok()),
        "{:?}",
        actor.statistics()
    );
    let retries = actor.statistics().retries;
    assert!(retries > 0);
    assert_eq!(medium.reads(), 40 + retries);
}

#[test]
fn one_seed_gives_one_run() {
    let outcome = |seed| {
        let weather = Weather {
            latency_ns: 0..200,
            stalls: 300,
            stall_ns: 400,
            errors: 100,
            partial: 100,
            flips: 300,
            ..Weather::calm()
        };
        let (mut actor, medium) = simulated_actor(seed, weather, IoLimits::new(1, 6));
        for tag in 0..400 {
            let offset = tag % FILE_PAGES as u64 * PAGE as u64;
            let op = read_op(tag, offset, PAGE, slot(PAGE));
            actor.source_mut().urgent.push_back(op);
        }
        let done = run(&mut actor);
        let results: Vec<_> = done.iter().map(|d| (d.tag, d.done_ns, d.result)).collect();
        let flips = |d: &ReadDone| -> u32 {
            let right = expected(d.offset, d.len, u64::MAX);
            let pairs = std::iter::zip(d.bytes().to_vec(), right);
            pairs.map(|(a, b)| (a ^ b).count_ones()).sum()
        };
        let read = done.iter().filter(|d| d.result.is_ok());
        let flips: Vec<u32> = read.map(flips).collect();
        assert!(flips.iter().all(|&n| n <= 1), "one bit each");
        // 400 reads and the retries: within five standard deviations of the planned rates.
        let (flipped, retries) = (flips.iter().sum::<u32>(), actor.statistics().retries);
        assert!((72..166).contains(&flipped), "{flipped}");
        assert!((10..90).contains(&retries), "{retries}");
        assert_eq!(medium.reads(), 400 + retries);
        let overtaken = done.windows(2).any(|pair| pair[0].tag > pair[1].tag);
        assert!(overtaken, "reads finish in any order");
        (results, flips)
    };
    let first = outcome(11);
    assert_eq!(first, outcome(11));
    assert_ne!(first, outcome(12));
}
