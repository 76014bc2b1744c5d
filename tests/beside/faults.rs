//! Whatever a device does, no token changes, and the cores go on without it.

use forebay::{DeviceChoice, Engine, EngineBuilder, Error, KvType, Prompt, Request, Statistics};
use forebay_devices::DeviceFault;
use forebay_devices::simulated::Behaviour;

use super::device::{Hold, Trouble, lost, with_behaviour, with_device};
use crate::support::{build, engine, generate, tiny};

/// A model in K-quants, all of which a device can compute.
pub fn dense(threads: usize) -> EngineBuilder {
    let model = tiny("llama_k");
    engine(Some(&model)).threads(threads).drafts(false)
}

/// A prompt, then a few tokens.
pub fn run(engine: &Engine) -> Statistics {
    run_from(engine, 3)
}

/// The same with a prompt that begins with this token: what the last one had in common with it is not computed again.
pub fn run_from(engine: &Engine, first: u32) -> Statistics {
    let mut request = Request::text("").max_tokens(8);
    request.prompt = Prompt::Tokens((first..first + 20).collect());
    request.ignore_eog = true;
    generate(engine, request)
}

/// What comes of that without a device.
pub fn alone() -> String {
    run(&build(dense(2).device(DeviceChoice::Cpu))).logits_hash
}

/// A job in the middle of a prompt's step, or of a later token's, fails: the same step makes it good.
#[test]
fn a_failed_job_is_computed_by_the_cores_within_its_step() {
    let expected = alone();
    let full = DeviceFault::OutOfMemory {
        bytes: 1,
        left: Some(0),
    };
    for (trouble, stays) in [
        (Trouble::Ends(lost()), false),
        (Trouble::Ends(full), false),
        (Trouble::Ends(DeviceFault::OutOfRange), true),
        (Trouble::NeverEnds, false),
        (Trouble::Panics, false),
    ] {
        // In a prompt's products and in its attention, and in a later token.
        for more in [1, 2, 31] {
            let (builder, hold): (_, Hold) = with_device(dense(1 + more as usize % 2), 0.6);
            let engine = build(builder);
            hold.fail_after(more, trouble.clone());
            let first = run(&engine);
            let device = first.device.expect("a device");
            assert_eq!(first.logits_hash, expected, "{trouble:?} after {more}");
            assert!(device.faults >= 1, "{trouble:?}: {device:?}");
            assert_eq!(device.loss().is_none(), stays, "{trouble:?}: {device:?}");
            let jobs = hold.jobs();
            let second = run(&engine);
            assert_eq!(
                second.logits_hash, expected,
                "{trouble:?} after {more}, again"
            );
            // Said once, and from then on nothing is asked of it.
            let device = second.device.expect("a device");
            assert_eq!(device.loss(), None, "{device:?}");
            assert_eq!(hold.jobs() > jobs, stays, "{trouble:?}");
            assert_eq!(device.problem.is_none(), stays, "{device:?}");
        }
    }
}

/// Who measures or scores has no statistics of a generation that would say so.
#[test]
fn a_loss_is_told_whatever_the_engine_does() {
    let works: [fn(&Engine); 2] = [
        |engine| {
            let test = "tg4".parse().expect("a test");
            let reports = engine.bench(&[test], 1, |_, _, _| {});
            assert_eq!(reports.expect("no fault").len(), 1);
        },
        |engine| {
            let tokens: Vec<u32> = (3..40).collect();
            let scored = engine.perplexity(&tokens, 16, None, |_, _, _| {});
            assert!(scored.expect("no fault").perplexity > 1.0);
        },
    ];
    for work in works {
        let (builder, hold) = with_device(dense(2), 0.6);
        let engine = build(builder);
        assert_eq!(engine.device_problem(), None);
        hold.fail_after(3, Trouble::Ends(lost()));
        work(&engine);
        let problem = engine.device_problem();
        assert!(problem.is_some_and(|text| text.contains("the device was lost")));
    }
    assert_eq!(build(dense(2)).device_problem(), None);
}

/// What a device has no memory for stays with the cores.
#[test]
fn a_device_without_memory_for_all_weights_computes_the_rest() {
    // The check takes one for each format.
    let builder = dense(2).kv_type(KvType::Q8);
    let engine = build(with_behaviour(builder, 1.0, (6, Behaviour::ideal())).0);
    let some = run(&engine);
    let alone = dense(2).kv_type(KvType::Q8).device(DeviceChoice::Cpu);
    assert_eq!(some.logits_hash, run(&build(alone)).logits_hash);
    let (device, notes) = (some.device.expect("a device"), some.plan.notes);
    assert!(device.jobs > 0 && device.decode_share < 0.6, "{device:?}");
    let says = |note: &String| note.contains("no memory for");
    assert!(notes.iter().any(says), "{notes:?}");
}

/// Weights may fill a device's own memory, so that of jobs is held until they have been loaded.
#[test]
fn weights_leave_memory_for_jobs() {
    const JOBS: u64 = 16 << 20;
    let behaviour = |shares_memory| Behaviour {
        shares_memory,
        ..Behaviour::ideal()
    };
    for shares_memory in [true, false] {
        let limits = (usize::MAX, behaviour(shares_memory));
        let (builder, hold) = with_behaviour(dense(2), 1.0, limits);
        let done = run(&build(builder));
        assert_eq!(done.logits_hash, alone());
        let (weights, most) = (hold.memory(), hold.most());
        assert!(weights > 0 && weights < JOBS, "{weights}");
        assert_eq!(most > weights + JOBS, !shares_memory, "{most}, {weights}");
    }
}

/// Found by the check before the first job.
#[test]
fn a_device_with_other_bits_is_refused() {
    let (builder, _) = with_behaviour(dense(2), 1.0, wrong());
    let asked = builder.device(DeviceChoice::Gpu(None)).build();
    let refusal = asked.expect_err("wrong results");
    assert!(matches!(refusal, Error::Device { .. }), "{refusal}");
    assert!(refusal.to_string().contains("other results than the CPU"));
    // Nobody asked for it in particular.
    let engine = build(with_behaviour(dense(2), 1.0, wrong()).0);
    let without = run(&engine);
    assert_eq!((without.device, without.logits_hash), (None, alone()));
    assert!(
        without
            .plan
            .notes
            .iter()
            .any(|note| note.starts_with("no device: "))
    );
}

fn wrong() -> (usize, Behaviour) {
    let behaviour = Behaviour {
        wrong_result: Some(0),
        ..Behaviour::ideal()
    };
    (usize::MAX, behaviour)
}

/// A number that no device has, or a build without GPU support.
#[test]
fn a_device_that_is_not_there_is_named() {
    let refusal = dense(2).device(DeviceChoice::Gpu(Some(99))).build();
    let refusal = refusal.expect_err("no such device").to_string();
    assert!(refusal.contains("no device gpu"), "{refusal}");
    if !cfg!(feature = "gpu") {
        assert!(refusal.contains("without GPU support"), "{refusal}");
    }
}
