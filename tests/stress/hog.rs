//! A neighbour in the same control group that takes memory, writes to it, and takes it again.

use std::process::{Child, Stdio};
use std::time::Duration;

use crate::group::Group;
use crate::measured::{MIB, least_budget, run};
use crate::role;
use crate::subject::{Subject, length};

const BYTES: &str = "FOREBAY_STRESS_HOG_BYTES";
/// The most that the neighbour takes.
const HOG: u64 = 48 * MIB;
/// The neighbour's program.
const BESIDE: u64 = 2 * MIB;
const STEP: usize = 1 << 20;
const PAGE: usize = 4096;

/// A running neighbour, ended with its handle.
struct Hog(Child);

impl Drop for Hog {
    fn drop(&mut self) {
        // One that has ended by itself is what the test looks for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The neighbour's process: up to its limit and down again, until its standard input ends.
#[test]
#[ignore = "a process beside the engine, started by other tests"]
fn takes_memory() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let most = role::number(BYTES) as usize / STEP;
    for round in (0..=u8::MAX).cycle() {
        let mut held: Vec<Vec<u8>> = Vec::with_capacity(most);
        while held.len() < most {
            held.push(vec![round; STEP]);
            std::thread::sleep(Duration::from_micros(500));
        }
        for block in &mut held {
            block.iter_mut().step_by(PAGE).for_each(|b| *b ^= 1);
        }
        std::hint::black_box(&held);
    }
}

fn check(subject: &Subject) {
    let (model, n) = (subject.model.as_deref(), subject.tokens);
    let alone = run(model, n, None, None);
    let budget = least_budget(model, n) + 2 * MIB;
    for _ in 0..2 * length() {
        let Some(group) = Group::new(budget + HOG + BESIDE) else {
            return;
        };
        let mut command = role::command("hog::takes_memory");
        command.env(BYTES, HOG.to_string());
        let mut command = group.run(&command);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut hog = Hog(command.spawn().expect("the program starts"));
        let beside = run(model, n, Some(budget), Some(&group));
        let ended = hog.0.try_wait().expect("a child");
        eprintln!(
            "{} beside a neighbour of {} MiB: peak {} of {} MiB, the group {} MiB, at its limit {} times",
            subject.name,
            HOG / MIB,
            beside.peak() / MIB,
            budget / MIB,
            group.peak() / MIB,
            group.times_at_limit()
        );
        assert!(ended.is_none(), "the neighbour ended: {ended:?}");
        assert_eq!(group.kills(), 0);
        assert!(beside.peak() <= budget && beside.peak_seen <= budget);
        assert_eq!(beside.result(), alone.result());
        drop(hog);
    }
}

#[test]
fn a_neighbour_that_takes_memory_changes_nothing() {
    check(&Subject::demo());
    check(&Subject::sparse());
    check(&Subject::experts());
}
