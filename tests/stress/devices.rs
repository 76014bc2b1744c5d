//! A simulated device that shares the memory: its copies of weights are part of the budget, and go back when that
//! shrinks or the device is lost.

use forebay::{Engine, EngineBuilder, Request};
use forebay_plans::process::rss_peak;
use serde::{Deserialize, Serialize};

use crate::device::{Hold, Trouble, lost, with_device};
use crate::group::Group;
use crate::measured::MIB;
use crate::resize::{
    COUNTED, ask, request as long_request, resident, rest, shrinks_and_grows, take,
};
use crate::role;
use crate::subject::quantised_expert_model;
use crate::support::{build, change_budget, engine};

const BUDGET: &str = "FOREBAY_STRESS_BUDGET";
/// Tokens of a run, where nothing has to happen meanwhile.
const TOKENS: usize = 40;
/// The simulated device takes its memory from the allocator, which then gives every segment back to the system.
const ALLOCATOR: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "65536");

fn builder() -> EngineBuilder {
    engine(Some(quantised_expert_model()))
}

fn request() -> Request {
    long_request().max_tokens(TOKENS)
}

/// An engine that has all that it can on a device.
fn beside() -> (Engine, Hold) {
    let (builder, hold) = with_device(builder(), 1.0);
    (build(builder), hold)
}

/// What a run in a process of its own says.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    claimed: u64,
    /// Bytes on the device, and jobs that it had.
    copies: u64,
    jobs: u64,
    peak: u64,
    hash: String,
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn runs_beside_a_device() {
    let builder = match std::env::var_os(BUDGET) {
        Some(_) => builder().memory(role::number(BUDGET)),
        None => builder(),
    };
    let (builder, hold) = with_device(builder, 1.0);
    let engine = build(builder);
    let done = rest(ask(&engine, request()));
    let report = Report {
        claimed: engine.budget().claimed(),
        copies: hold.memory(),
        jobs: done.device.map_or(0, |device| device.jobs),
        peak: rss_peak().expect("a size"),
        hash: done.logits_hash,
    };
    role::tell(&report);
}

/// Runs beside a device under a budget in a control group of that size, or without any.
fn run(limits: Option<(u64, &Group)>) -> Report {
    const ROLE: &str = "devices::runs_beside_a_device";
    let mut command = role::command(ROLE);
    command.env(ALLOCATOR.0, ALLOCATOR.1);
    if let Some((budget, _)) = limits {
        command.env(BUDGET, budget.to_string());
    }
    role::report(ROLE, command, limits.map(|(_, group)| group))
}

#[test]
fn a_device_that_shares_the_memory_is_part_of_the_budget() {
    let alone = rest(ask(&build(builder()), request())).logits_hash;
    let all = run(None);
    assert!(all.copies > 8 * MIB, "{all:?} shows nothing");
    let mut last = all.copies + 1;
    // All copies, a part of them, hardly any, and none of them while experts are cached.
    for quarters in [0, 2, 4, 6] {
        let budget = all.claimed + MIB - all.copies * quarters / 4;
        let Some(group) = Group::new(budget) else {
            return;
        };
        let some = run(Some((budget, &group)));
        let mib = |bytes: u64| bytes / MIB;
        eprintln!(
            "budget {} MiB: claimed {}, peak {}, group {}, {} MiB on the device, {} jobs",
            mib(budget),
            mib(some.claimed),
            mib(some.peak),
            mib(group.peak()),
            mib(some.copies),
            some.jobs
        );
        assert_eq!(some.hash, alone, "under {budget}");
        assert!(some.peak <= budget && group.peak() <= budget, "{some:?}");
        assert_eq!(group.kills(), 0, "under {budget}");
        assert!(some.copies < last, "{some:?}");
        last = some.copies.max(1);
    }
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn copies_give_way_and_come_back() {
    shrinks_and_grows(|| beside().0);
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn a_lost_device_makes_room() {
    let alone = build(builder());
    let [long, short] = [long_request(), request()].map(|r| rest(ask(&alone, r)).logits_hash);
    drop(alone);
    let (engine, hold) = beside();
    let (claimed, copies) = (engine.budget().claimed(), hold.memory());
    let total = engine.budget().total_bytes();
    rest(ask(&engine, request()));
    let full = resident();
    // More tokens than run ahead of their reader.
    let mut stream = ask(&engine, long_request());
    take(&mut stream, 5);
    change_budget(&engine, claimed - copies / 2);
    assert!(hold.memory() > 0 && resident() <= claimed - copies / 2);
    hold.fail_after(7, Trouble::Ends(lost()));
    let done = rest(stream);
    assert_eq!(done.logits_hash, long);
    assert!(engine.device_problem().is_some(), "{:?}", done.device);
    for bytes in [claimed - copies, total] {
        change_budget(&engine, bytes);
        let done = rest(ask(&engine, request()));
        assert_eq!(done.logits_hash, short);
        let small = resident();
        assert!(small + copies <= full + COUNTED, "{small} after {full}");
    }
}

#[test]
fn memory_of_a_device_is_given_back() {
    // Two processes would make it at once.
    quantised_expert_model();
    let variables = [(ALLOCATOR.0, ALLOCATOR.1.to_owned())];
    role::run("devices::copies_give_way_and_come_back", &variables);
    role::run("devices::a_lost_device_makes_room", &variables);
}
