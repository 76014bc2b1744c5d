use std::os::unix::fs::FileExt;
use std::time::Duration;

use forebay_queues::slab::Span;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A read in pages: offset, length, offset in the slot, slot pages behind the read.
type PageRead = (u64, usize, usize, usize);

fn request(tag: usize, (offset, pages, lead, rest): PageRead) -> ReadOp {
    ReadOp {
        client: 0,
        tag: tag as u64,
        offset: offset * PAGE as u64,
        len: (pages * PAGE) as u32,
        slot: slot((lead + pages + rest) * PAGE),
        slot_offset: (lead * PAGE) as u32,
    }
}

/// Compares a completion with the file's content, computed without the driver.
fn check(done: &ReadDone, file_bytes: u64) -> Result<(), TestCaseError> {
    let held = file_bytes
        .saturating_sub(done.offset)
        .min(u64::from(done.len));
    if done.offset + u64::from(done.len) <= file_bytes.next_multiple_of(PAGE as u64) {
        prop_assert_eq!(done.result, Ok(()));
        let content = expected(done.offset, done.len, file_bytes);
        prop_assert!(done.bytes() == content, "content at {}", done.offset);
    } else {
        let got = held as u32;
        let kind = done.result.map_err(|fault| fault.kind);
        prop_assert_eq!(kind, Err(FaultKind::ShortRead { got }));
    }
    let outside = done.slot[..done.slot_offset as usize]
        .iter()
        .chain(&done.slot[done.slot_offset as usize + done.len as usize..]);
    prop_assert!(outside.into_iter().all(|&b| b == 0), "wrote past the range");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_driver_reads_what_the_file_holds(
        file_bytes in 1u64..600_000,
        reads in vec((0u64..160, 1usize..20, 0usize..3, 0usize..3), 1..40),
        depth in 1u16..=64,
    ) {
        let file = test_file(file_bytes);
        for mut driver in every_driver(file.path(), depth) {
            let mut waiting: Vec<ReadOp> =
                reads.iter().enumerate().map(|(tag, r)| request(tag, *r)).collect();
            let mut seen = vec![false; reads.len()];
            while seen.contains(&false) {
                while let Some(op) = waiting.pop() {
                    if let Err(op) = driver.submit(op, 0) {
                        prop_assert_eq!(driver.in_flight(), driver.capacity());
                        waiting.push(op);
                        break;
                    }
                }
                for done in collect(driver.as_mut(), 1) {
                    check(&done, file_bytes)?;
                    let seen = &mut seen[done.tag as usize];
                    prop_assert!(!*seen, "completed twice");
                    *seen = true;
                }
            }
            prop_assert_eq!(driver.in_flight(), 0);
        }
    }
}

#[test]
fn every_depth_is_filled_and_never_exceeded() {
    let file = test_file(64 * PAGE as u64);
    for depth in [1u16, 2, 3, 7, 8, 15, 16, 31, 63, 64] {
        for mut driver in every_driver(file.path(), depth) {
            let depth = driver.capacity();
            for round in 0..3 {
                for (i, slot) in slots(depth, PAGE).into_iter().enumerate() {
                    let op = read_op(i as u64, (i * PAGE) as u64, PAGE, slot);
                    assert!(driver.submit(op, round).is_ok());
                }
                assert!(
                    driver
                        .submit(read_op(0, 0, PAGE, slot(PAGE)), round)
                        .is_err()
                );
                let done = collect(driver.as_mut(), depth);
                assert_eq!((done.len(), driver.in_flight()), (depth, 0));
                for d in done {
                    assert!(d.bytes() == expected(d.offset, d.len, u64::MAX));
                    assert_eq!(d.started_ns, round);
                }
            }
        }
    }
}

#[test]
fn an_impossible_read_is_a_fault_and_the_driver_stays_usable() {
    let file = test_file(4 * PAGE as u64);
    let faulty = |tag: u64, offset: u64, len: u32, slot_offset: u32| ReadOp {
        client: 0,
        tag,
        offset,
        len,
        slot: slot(2 * PAGE),
        slot_offset,
    };
    for mut driver in every_driver(file.path(), 8) {
        let page = ALIGNMENT;
        for (op, kind) in [
            (faulty(0, 1, page, 0), FaultKind::Misaligned),
            (faulty(0, 0, page - 1, 0), FaultKind::Misaligned),
            (faulty(0, 0, page, 512), FaultKind::Misaligned),
            (faulty(0, 0, 0, 0), FaultKind::Misaligned),
            (
                faulty(0, 0, 3 * page, 0),
                FaultKind::OutsideSlot { slot: 8192 },
            ),
            (
                faulty(0, 0, page, 2 * page),
                FaultKind::OutsideSlot { slot: 8192 },
            ),
            (
                faulty(0, u64::MAX - 4095, page, 0),
                FaultKind::ShortRead { got: 0 },
            ),
        ] {
            driver.submit(op, 0).expect("room");
            let done = collect(driver.as_mut(), 1).remove(0);
            assert_eq!(done.result.map_err(|f| f.kind), Err(kind));
        }
        driver.submit(faulty(9, 0, page, page), 0).expect("room");
        let done = collect(driver.as_mut(), 1).remove(0);
        assert_eq!((done.result, done.tag), (Ok(()), 9));
        assert!(done.bytes() == expected(0, page, u64::MAX));
    }
}

#[test]
fn a_file_truncated_while_open_is_a_short_read() {
    for cut in [0u64, 100, 5000, 8192] {
        let count = every_driver(test_file(1).path(), 1).len();
        for which in 0..count {
            let file = test_file(64 * PAGE as u64);
            let mut driver = every_driver(file.path(), 4).remove(which);
            file.as_file().set_len(cut).expect("truncated");
            let op = read_op(0, 0, 16 * PAGE, slot(16 * PAGE));
            driver.submit(op, 0).expect("room");
            let done = collect(driver.as_mut(), 1).remove(0);
            let fault = done.result.expect_err("the bytes are gone");
            let got = cut as u32;
            assert_eq!(
                fault.kind,
                FaultKind::ShortRead { got },
                "{}",
                driver.name()
            );
        }
    }
}

#[test]
fn a_deleted_file_stays_readable() {
    let file = test_file(PAGE as u64);
    let drivers = every_driver(file.path(), 1);
    file.close().expect("deleted");
    for mut driver in drivers {
        driver
            .submit(read_op(0, 0, PAGE, slot(PAGE)), 0)
            .expect("room");
        let done = collect(driver.as_mut(), 1).remove(0);
        assert!(done.bytes() == expected(0, ALIGNMENT, u64::MAX));
    }
}

/// Starts many long reads; returns the driver with most of them still in flight, and where they go.
fn busy_driver(path: &Path, which: usize) -> (Box<dyn Driver>, Vec<Span>) {
    let mut driver = every_driver(path, 32).remove(which);
    let mut spans = Vec::new();
    for (i, slot) in slots(32, 64 * PAGE).into_iter().enumerate() {
        spans.push(slot.span());
        let op = read_op(i as u64, (i % 4 * 64 * PAGE) as u64, 64 * PAGE, slot);
        driver.submit(op, 0).expect("room");
    }
    driver.flush().expect("driver works");
    (driver, spans)
}

/// The last page of each span, read behind the compiler's back: these bytes have no owner any more. The last read to be
/// started, and so the likeliest to be unfinished, comes first.
fn last_pages(spans: &[Span]) -> Vec<[u8; PAGE]> {
    let memory = File::open("/proc/self/mem").expect("own memory");
    let page = |span: &Span| {
        let mut page = [0u8; PAGE];
        let place = (span.addr() + span.len() - PAGE) as u64;
        memory.read_exact_at(&mut page, place).expect("mapped");
        page
    };
    spans.iter().rev().map(page).collect()
}

#[test]
fn nothing_is_written_after_a_busy_driver_was_dropped() {
    let file = test_file(256 * PAGE as u64);
    let count = every_driver(file.path(), 1).len();
    for which in 0..count {
        for _ in 0..4 {
            let (driver, spans) = busy_driver(file.path(), which);
            drop(driver);
            let then = last_pages(&spans);
            std::thread::sleep(Duration::from_millis(15));
            assert!(last_pages(&spans) == then, "driver {which}");
            // Not flushed, so never seen by the kernel.
            let mut driver = every_driver(file.path(), 2).remove(which);
            driver
                .submit(read_op(0, 0, PAGE, slot(PAGE)), 0)
                .expect("room");
        }
    }
}

/// Maps memory where freed slots would have been, and checks that nothing writes to it.
fn assert_nobody_writes() {
    let mut fresh = slots(32, 64 * PAGE);
    fresh.iter_mut().for_each(|s| s.fill(0xa5));
    std::thread::sleep(Duration::from_millis(3));
    assert!(fresh.iter().all(|s| s.iter().all(|&b| b == 0xa5)));
}

#[test]
fn dropping_a_busy_driver_on_another_thread_is_sound() {
    let file = test_file(256 * PAGE as u64);
    let count = every_driver(file.path(), 1).len();
    for which in 0..count {
        let (mut driver, _) = busy_driver(file.path(), which);
        std::thread::spawn(move || {
            if let Err(e) = driver.wait(Some(Duration::ZERO)) {
                assert!(e.to_string().contains("second thread"), "{e}");
            }
        })
        .join()
        .expect("no panic");
        assert_nobody_writes();
    }
}

#[test]
fn a_driver_may_move_before_its_first_use() {
    let file = test_file(PAGE as u64);
    for mut driver in every_driver(file.path(), 1) {
        driver
            .submit(read_op(0, 0, PAGE, slot(PAGE)), 0)
            .expect("room");
        let done = std::thread::spawn(move || collect(driver.as_mut(), 1).remove(0))
            .join()
            .expect("no panic");
        assert!(done.bytes() == expected(0, ALIGNMENT, u64::MAX));
    }
}

#[test]
fn registered_memory_is_read_like_any_other() {
    let file = test_file(64 * PAGE as u64);
    // The first fits into the usual limit of locked memory, the second often does not.
    for slab_bytes in [32 * PAGE, 64 << 20] {
        let mut slab = Slab::new(slab_bytes).expect("memory");
        let (mut driver, info) =
            open_driver(file.path(), DriverChoice::Auto, 8, &[slab.span()]).expect("readable");
        let refused = info.notes.iter().any(|n| n.contains("ulimit -l"));
        let registered = info.registered_bytes == slab_bytes;
        assert!(info.driver != "io_uring" || registered != refused, "{info}");
        for i in 0..8usize {
            let slot = slab.carve(4 * PAGE).expect("room");
            let op = read_op(i as u64, (i * 4 * PAGE) as u64, 4 * PAGE, slot);
            driver.submit(op, 0).expect("room");
        }
        for done in collect(driver.as_mut(), 8) {
            assert!(done.bytes() == expected(done.offset, done.len, u64::MAX));
        }
        // Memory outside the registered slab is read without registration.
        driver
            .submit(read_op(0, 0, PAGE, slot(PAGE)), 0)
            .expect("room");
        let done = collect(driver.as_mut(), 1).remove(0);
        assert!(done.bytes() == expected(0, ALIGNMENT, u64::MAX));
    }
}
