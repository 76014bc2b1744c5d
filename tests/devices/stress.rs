//! A Vulkan device under memory pressure: budgets in real control groups, budgets that change while tokens are
//! generated, and engines one after the other.

use std::path::{Path, PathBuf};

use forebay::{DeviceChoice, DevicePlacing, Engine, EngineBuilder, Prompt, Request, Statistics};
use forebay_plans::process::rss_peak;
use serde::{Deserialize, Serialize};

use crate::group::Group;
use crate::holdings::Holdings;
use crate::support::{self, build, change_budget, engine};
use crate::{role, shares_memory, subject, there_is_one};

const MIB: u64 = 1 << 20;
const BUDGET: &str = "FOREBAY_STRESS_BUDGET";
const MODEL: &str = "FOREBAY_STRESS_MODEL";
/// Engines one after the other; libraries have what they keep for good after the first few.
const ENGINES: usize = 4;
const WARM_UP: usize = 2;
/// Budgets one after the other.
const ROUNDS: u32 = 4;
/// What allocator and driver may keep in another way at the end than after the warm-up. An engine's weights on the
/// device would be more.
const SPREAD: u64 = 8 * MIB;

fn on(choice: DeviceChoice, model: &Path) -> EngineBuilder {
    let builder = engine(Some(model)).context(128).max_batch(32).drafts(false);
    builder
        .device(choice)
        .device_placing(DevicePlacing::Part(1.0))
}

/// A prompt that is long enough for its graph, and a few tokens. Others begin with another token, so that nothing of it
/// is known.
fn request(number: u32) -> Request {
    let mut request = Request::text("").max_tokens(6);
    request.prompt = Prompt::Tokens((3 + number..51 + number).collect());
    request.ignore_eog = true;
    request
}

fn run(engine: &Engine) -> Statistics {
    support::generate(engine, request(0))
}

/// What a run in a process of its own says.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    claimed: u64,
    jobs: u64,
    copied: u64,
    peak: u64,
    hash: String,
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn runs_beside_a_device() {
    let model = PathBuf::from(std::env::var_os(MODEL).expect("a model"));
    let builder = on(DeviceChoice::Gpu(Some(0)), &model);
    let engine = build(match std::env::var_os(BUDGET) {
        Some(_) => builder.memory(role::number(BUDGET)),
        None => builder,
    });
    let done = run(&engine);
    let device = done.device.as_ref();
    let report = Report {
        claimed: engine.budget().claimed(),
        jobs: device.map_or(0, |device| device.jobs - device.faults),
        copied: device.map_or(0, |device| device.copied_bytes),
        peak: rss_peak().expect("a size"),
        hash: done.logits_hash,
    };
    role::tell(&report);
}

/// Runs under a budget in a control group of that size, or without any.
fn run_apart(model: &Path, limits: Option<(u64, &Group)>) -> Report {
    const ROLE: &str = "stress::runs_beside_a_device";
    let mut command = role::command(ROLE);
    command.env(MODEL, model);
    if let Some((budget, _)) = limits {
        command.env(BUDGET, budget.to_string());
    }
    role::report(ROLE, command, limits.map(|(_, group)| group))
}

#[test]
fn a_device_is_part_of_the_budget() {
    if !there_is_one() {
        return;
    }
    // Everything in memory, and half of the weights less.
    let models = [
        (subject::quantised_dense_model(), &[0, 4][..]),
        (subject::quantised_expert_model(), &[4]),
    ];
    for (model, less) in models {
        let alone = run(&build(on(DeviceChoice::Cpu, model))).logits_hash;
        let all = run_apart(model, None);
        assert_eq!(all.hash, alone);
        assert!(all.jobs > 0, "{all:?}");
        let weights = std::fs::metadata(model).expect("a file").len();
        for eighths in less {
            let budget = all.claimed + MIB - weights * eighths / 8;
            let Some(group) = Group::new(budget) else {
                return;
            };
            let some = run_apart(model, Some((budget, &group)));
            eprintln!(
                "{}: budget {budget}: {some:?}, group {}",
                model.display(),
                group.peak()
            );
            assert_eq!(some.hash, alone, "under {budget}");
            assert!(some.peak <= budget && group.peak() <= budget, "{some:?}");
            assert_eq!(group.kills(), 0, "under {budget}");
            assert!(some.jobs > 0, "{some:?}");
        }
    }
}

/// What is streamed goes through a window, which gives way and comes back.
#[test]
fn no_change_of_the_budget_changes_a_token_beside_a_device() {
    if !there_is_one() {
        return;
    }
    let model = subject::quantised_dense_model();
    let whole = build(on(DeviceChoice::Cpu, model)).weight_bytes();
    // What a device computes does not give way.
    let streaming = |choice| {
        let builder = on(choice, model).weight_memory(3 * whole / 5);
        build(builder.device_placing(DevicePlacing::Part(0.4)))
    };
    let alone = streaming(DeviceChoice::Cpu);
    let engine = streaming(DeviceChoice::Gpu(Some(0)));
    let (least, most) = (engine.least_budget(), engine.budget().claimed());
    // What is in a device's own memory is not the budget's: less can give way.
    let enough = if shares_memory() { 2 * MIB } else { MIB };
    assert!(most - least > enough, "{least} to {most} shows nothing");
    let mut copied = 0;
    for round in 0..ROUNDS {
        let tenths = (7 * u64::from(round) + 3) % 11;
        let stream = engine.session().generate(request(round));
        // The last one has all again before it begins.
        match round + 1 == ROUNDS {
            true => change_budget(&engine, most),
            false => engine
                .set_budget(least + (most - least) * tenths / 10)
                .unwrap_or_else(|e| panic!("{e}")),
        }
        let stream = stream.expect("a request").blocking();
        let (_, done) = stream.finish().unwrap_or_else(|e| panic!("{e}"));
        let expected = support::generate(&alone, request(round)).logits_hash;
        assert_eq!(done.logits_hash, expected, "round {round}");
        copied = done.device.expect("a device").copied_bytes;
    }
    assert_eq!(engine.device_problem(), None);
    assert!(copied > 0, "the window has not come back");
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn starts_and_ends_engines() {
    let model = support::plain_model();
    let mut before = None;
    for number in 0..ENGINES {
        if number == WARM_UP {
            before = Some(Holdings::now());
        }
        let engine = build(on(DeviceChoice::Gpu(Some(0)), &model));
        assert!(run(&engine).device.is_some_and(|device| device.jobs > 0));
    }
    let (before, after) = (before.expect("a few"), Holdings::now());
    eprintln!("{before:?}, then {after:?}");
    assert_eq!((after.threads, after.files), (before.threads, before.files));
    assert!(after.resident <= before.resident + SPREAD, "resident bytes");
}

#[test]
fn engines_leave_nothing_of_a_device_behind() {
    if there_is_one() {
        role::run("stress::starts_and_ends_engines", &[]);
    }
}
