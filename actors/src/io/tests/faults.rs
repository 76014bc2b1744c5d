use proptest::prelude::*;

use super::super::faulty::{FaultPlan, FaultyDriver};
use super::*;

const FILE_PAGES: usize = 64;

fn faulty_actor(
    path: &Path,
    plan: FaultPlan,
    limits: IoLimits,
) -> IoActor<FaultyDriver<Box<dyn Driver>>, Requests, Kept> {
    let (driver, _) = open_driver(path, DriverChoice::Pread, 8, &[]).expect("readable");
    let driver = FaultyDriver::new(driver, plan);
    IoActor::new(driver, Requests::default(), Kept::default(), limits)
}

fn small_chunks() -> IoLimits {
    IoLimits {
        chunk_bytes: 2 * ALIGNMENT,
        ..IoLimits::new(1, 6)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever the medium does, each request completes once, with its own slot, and a result that says
    /// whether the content is right.
    #[test]
    fn each_request_completes_once_and_no_wrong_content_passes_for_right(
        seed in any::<u64>(),
        errors in 0u32..300,
        short_reads in 0u32..300,
        delays in 0u32..800,
        reads in proptest::collection::vec((0usize..40, 1usize..24, any::<bool>()), 1..40),
    ) {
        let file = test_file((FILE_PAGES * PAGE) as u64);
        let plan = FaultPlan { seed, errors, short_reads, delays, longest_delay: 9, ..FaultPlan::default() };
        let mut actor = faulty_actor(file.path(), plan, small_chunks());
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
            if d.result.is_ok() {
                prop_assert!(d.bytes() == expected(d.offset, d.len, u64::MAX));
            }
        }
        let statistics = actor.statistics();
        let faults = done.iter().filter(|d| d.result.is_err()).count() as u64;
        prop_assert_eq!(statistics.faults, faults);
        prop_assert_eq!(statistics.reads, reads.len() as u64 - faults);
        if errors == 0 && short_reads == 0 {
            prop_assert_eq!((faults, statistics.retries), (0, 0));
        }
    }
}

#[test]
fn a_broken_place_is_reported_once_and_the_rest_stays_readable() {
    let file = test_file((FILE_PAGES * PAGE) as u64);
    let broken = (10 * PAGE as u64)..(10 * PAGE as u64 + 1);
    let plan = FaultPlan {
        broken: vec![broken],
        ..FaultPlan::default()
    };
    let mut actor = faulty_actor(file.path(), plan, small_chunks());
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
    assert_eq!(actor.driver().tally().errors, 6, "each tried twice");
}

#[test]
fn a_passing_error_is_not_reported() {
    let file = test_file((FILE_PAGES * PAGE) as u64);
    let plan = FaultPlan {
        seed: 5,
        errors: 60,
        ..FaultPlan::default()
    };
    // One read at a time, so that the seed alone decides.
    let limits = IoLimits::new(1, 1);
    let mut actor = faulty_actor(file.path(), plan, limits);
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
    let tally = actor.driver().tally();
    assert!(tally.errors > 0);
    assert_eq!(tally.errors, actor.statistics().retries);
}

#[test]
fn one_seed_gives_one_run() {
    let file = test_file((FILE_PAGES * PAGE) as u64);
    let outcome = |seed| {
        let plan = FaultPlan {
            seed,
            errors: 100,
            short_reads: 100,
            bit_flips: 300,
            delays: 300,
            longest_delay: 4,
            ..FaultPlan::default()
        };
        let mut actor = faulty_actor(file.path(), plan, IoLimits::new(1, 1));
        for tag in 0..400 {
            let offset = tag % FILE_PAGES as u64 * PAGE as u64;
            let op = read_op(tag, offset, PAGE, slot(PAGE));
            actor.source_mut().urgent.push_back(op);
        }
        let done = run(&mut actor);
        let results: Vec<_> = done.iter().map(|d| (d.tag, d.result)).collect();
        let flips: u32 = done
            .iter()
            .filter(|d| d.result.is_ok())
            .flat_map(|d| {
                let right = expected(d.offset, d.len, u64::MAX);
                std::iter::zip(d.bytes().to_vec(), right)
            })
            .map(|(a, b)| (a ^ b).count_ones())
            .sum();
        let tally = actor.driver().tally();
        assert_eq!(u64::from(flips), tally.bit_flips, "one bit each");
        // 400 reads and the retries: within five standard deviations of the planned rates.
        assert!((10..90).contains(&tally.errors), "{tally:?}");
        assert!((8..75).contains(&tally.short_reads), "{tally:?}");
        assert!((50..160).contains(&tally.bit_flips), "{tally:?}");
        assert!((80..185).contains(&tally.delays), "{tally:?}");
        (results, tally)
    };
    let first = outcome(11);
    assert_eq!(first, outcome(11));
    assert_ne!(first, outcome(12));
}
