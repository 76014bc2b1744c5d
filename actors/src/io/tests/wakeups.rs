use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use super::*;

/// Longer than any scheduling delay: a wait that lasts so long was not woken.
const LOST: Duration = Duration::from_secs(20);

#[test]
fn no_wake_up_is_lost_in_ten_thousand() {
    const ROUNDS: u32 = 10_000;
    let file = test_file(PAGE as u64);
    for mut driver in every_driver(file.path(), 4) {
        let asked = Arc::new(AtomicU32::new(0));
        let answered = Arc::new(AtomicU32::new(0));
        let waker = driver.waker();
        let caller = {
            let (asked, answered) = (Arc::clone(&asked), Arc::clone(&answered));
            thread::spawn(move || {
                for round in 1..=ROUNDS {
                    asked.store(round, Ordering::Relaxed);
                    waker.wake();
                    // Every third call meets a driver that is about to sleep, not one that sleeps.
                    while answered.load(Ordering::Acquire) < round {
                        if round % 3 == 0 {
                            std::hint::spin_loop();
                        } else {
                            thread::yield_now();
                        }
                    }
                }
            })
        };
        let mut done = Vec::new();
        for round in 1..=ROUNDS {
            // Relaxed suffices: the wake-up itself publishes what was written before it.
            while asked.load(Ordering::Relaxed) < round {
                let before = Instant::now();
                driver.wait(Some(LOST)).expect("driver works");
                assert!(before.elapsed() < LOST, "{}: lost {round}", driver.name());
                driver.poll(0, &mut done);
            }
            answered.store(round, Ordering::Release);
        }
        caller.join().expect("no panic");
    }
}

#[test]
fn a_wake_up_before_the_wait_is_remembered() {
    let file = test_file(PAGE as u64);
    for mut driver in every_driver(file.path(), 1) {
        let before = Instant::now();
        driver.waker().wake();
        driver.wait(Some(LOST)).expect("driver works");
        assert!(before.elapsed() < LOST);
    }
}

#[test]
fn a_wait_ends_with_its_timeout() {
    let file = test_file(PAGE as u64);
    let timeout = Duration::from_millis(20);
    for mut driver in every_driver(file.path(), 1) {
        let before = Instant::now();
        while before.elapsed() < timeout {
            let left = timeout.saturating_sub(before.elapsed());
            driver.wait(Some(left)).expect("driver works");
        }
        assert!(before.elapsed() < LOST, "{}", driver.name());
    }
}

#[test]
fn a_completion_ends_a_wait_even_after_a_wake_up() {
    let file = test_file(PAGE as u64);
    for mut driver in every_driver(file.path(), 1) {
        let mut done = Vec::new();
        for round in 0..50 {
            driver
                .submit(read_op(round, 0, PAGE, slot(PAGE)), 0)
                .expect("room");
            driver.flush().expect("driver works");
            if round % 2 == 0 {
                driver.waker().wake();
            }
            let before = Instant::now();
            while driver.poll(0, &mut done) == 0 {
                driver.wait(None).expect("driver works");
            }
            assert!(before.elapsed() < LOST);
            assert_eq!(done.pop().map(|d| d.tag), Some(round));
        }
    }
}
