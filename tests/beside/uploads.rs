//! Streamed clusters that are copied to a device in prompts: no token depends on it, whatever happens on the way.

use forebay::{DeviceChoice, DevicePlacing, Engine, EngineBuilder, Prompt, Request, Statistics};
use forebay_devices::DeviceFault;
use forebay_traces::record::{Kind, Record, Stage};

use super::device::{Hold, Trouble, lost, with_device, without_window};
use super::machine;
use crate::support::{
    build, build_within, change_budget, engine, generate, plain_model, several_at_once, tiny,
};

/// Dense models, and the part of their weights that is in memory: attention and the window, but not all of the FFNs.
#[derive(Clone, Copy, Debug)]
enum Dense {
    /// Made up, in Q8_0, with several clusters in each layer.
    Several,
    /// K-quants, with one cluster in each layer.
    One,
}

impl Dense {
    const ALL: [Self; 2] = [Self::Several, Self::One];

    fn engine(self, threads: usize) -> EngineBuilder {
        let path = match self {
            Self::Several => plain_model(),
            Self::One => tiny("llama_k"),
        };
        let builder = engine(Some(&path)).threads(threads).drafts(false);
        // A batch's buffers are small beside the weights.
        builder.max_batch(32)
    }

    fn percent(self) -> u64 {
        match self {
            Self::Several => 40,
            Self::One => 60,
        }
    }
}

/// An engine that streams a part of a dense model's FFNs, with the device that `beside` adds.
fn streaming(
    model: Dense,
    threads: usize,
    beside: impl Fn(EngineBuilder) -> EngineBuilder,
) -> Engine {
    let whole = build(model.engine(threads).device(DeviceChoice::Cpu)).weight_bytes();
    let within = |weights| beside(model.engine(threads).weight_memory(weights));
    build_within(within, whole * model.percent() / 100)
}

/// The same with a simulated device that computes this part of everything.
fn beside(model: Dense, threads: usize, part: f64) -> (Engine, Hold) {
    let hold = std::cell::OnceCell::new();
    let engine = streaming(model, threads, |builder| {
        let (builder, new) = with_device(builder, part);
        let _ = hold.set(new);
        builder
    });
    (engine, hold.into_inner().expect("it was made"))
}

/// A prompt of several batches, then a few tokens. Prompts of other numbers have nothing in common with it that could
/// be kept.
fn run(engine: &Engine, number: u32) -> Statistics {
    let mut request = Request::text("").max_tokens(6);
    request.prompt = Prompt::Tokens((3..123).map(|t| (t + number) % 60 + 3).collect());
    request.ignore_eog = true;
    generate(engine, request)
}

/// The logits of prompts 0 and 1 without a device.
fn alone(model: Dense) -> [String; 2] {
    let engine = streaming(model, 2, |b| b.device(DeviceChoice::Cpu));
    [0, 1].map(|number| run(&engine, number).logits_hash)
}

#[test]
fn streamed_clusters_are_computed_on_a_device_in_prompts() {
    for model in Dense::ALL {
        let alone = alone(model);
        let mut settings = Vec::new();
        for threads in [1, 2] {
            for part in [0.3, 1.0] {
                // A part of one cluster is none, and with two windows no cluster is streamed.
                if matches!(model, Dense::Several) || (threads, part) == (1, 1.0) {
                    settings.push((threads, part));
                }
            }
        }
        let runs = several_at_once(&settings, |&(threads, part)| {
            run(&beside(model, threads, part).0, 0)
        });
        for (setting, run) in settings.iter().zip(&runs) {
            let device = run.device.as_ref().expect("a device");
            eprintln!("{model:?} {setting:?}: {device:?} {}", run.memory.items);
            assert_eq!(run.logits_hash, alone[0], "{model:?} {setting:?}");
            assert!(run.io.bytes > 0, "nothing is streamed");
            assert_eq!((device.faults, &device.problem), (0, &None));
            assert!(device.prompt_share > device.decode_share, "{device:?}");
            assert!(device.copied_bytes > 0, "{model:?} {setting:?}: {device:?}");
            for item in ["device_window", "device_staging"] {
                let claimed = run
                    .memory
                    .items
                    .items()
                    .iter()
                    .any(|i| i.name == item && i.bytes > 0);
                assert!(claimed, "{item}: {:?}", run.memory.items);
            }
        }
    }
}

/// A copy or a job in the middle of a prompt fails, or never ends: the same step makes it good, and so do later
/// prompts.
#[test]
fn a_failed_copy_or_job_is_computed_by_its_core_within_its_step() {
    let expected = alone(Dense::Several);
    let full = DeviceFault::OutOfMemory {
        bytes: 1,
        left: Some(0),
    };
    let troubles = [
        (Trouble::Ends(lost()), true, false),
        (Trouble::Ends(full.clone()), true, false),
        (Trouble::NeverEnds, true, false),
        (Trouble::Panics, true, false),
        (Trouble::Ends(DeviceFault::OutOfRange), true, true),
        (Trouble::Ends(lost()), false, false),
        (Trouble::Ends(full), false, false),
        (Trouble::NeverEnds, false, false),
        (Trouble::Panics, false, false),
    ];
    // Early and late by turns, so that what is early in jobs is late in copies.
    for ((trouble, in_jobs, stays), more) in troubles.into_iter().zip([0, 5].into_iter().cycle()) {
        let what = format!("{trouble:?} after {more}, in jobs: {in_jobs}");
        let (engine, hold) = beside(Dense::Several, 1 + more % 2, 1.0);
        match in_jobs {
            true => hold.fail_after(more as u64 + 3, trouble),
            false => hold.fail_write_after(more as u64, trouble),
        }
        let first = run(&engine, 0);
        let device = first.device.expect("a device");
        assert_eq!(first.logits_hash, expected[0], "{what}");
        assert_eq!(device.problem.is_none(), stays, "{what}: {device:?}");
        let (jobs, writes) = (hold.jobs(), hold.writes());
        let second = run(&engine, 1);
        assert_eq!(second.logits_hash, expected[1], "{what}, again");
        let device = second.device.expect("a device");
        assert_eq!(device.copied_bytes > 0, stays, "{what}: {device:?}");
        assert_eq!(hold.jobs() > jobs, stays, "{what}");
        assert_eq!(hold.writes() > writes, stays, "{what}");
    }
}

/// The cores compute what is streamed.
#[test]
fn a_device_without_room_for_the_window_computes_what_is_pinned() {
    let engine = streaming(Dense::Several, 2, |builder| without_window(builder, 1.0));
    let run = run(&engine, 0);
    let device = run.device.expect("a device");
    assert_eq!(run.logits_hash, alone(Dense::Several)[0]);
    assert!(device.jobs > 0 && device.copied_bytes == 0, "{device:?}");
    assert_eq!(device.problem, None);
    let says = |note: &String| note.contains("no memory for");
    assert!(run.plan.notes.iter().any(says), "{:?}", run.plan.notes);
}

/// A smaller budget takes the window before pinned clusters, a larger one brings it back. Keys and values go with it.
#[test]
fn the_window_gives_way_and_comes_back() {
    let expected = alone(Dense::Several);
    let (engine, hold) = beside(Dense::Several, 2, 1.0);
    let budget = engine.budget();
    let (claimed, total) = (budget.claimed(), budget.total_bytes());
    let of_item = |name: &str| {
        let item = budget.items().iter().find(|i| i.name == name);
        item.unwrap_or_else(|| panic!("no {name}")).bytes
    };
    let window = of_item("device_window") + of_item("device_kv");
    let mut number = 0;
    let mut copied = |engine: &Engine| {
        number = 1 - number;
        let done = run(engine, number);
        assert_eq!(done.logits_hash, expected[number as usize]);
        done.device.expect("a device").copied_bytes
    };
    assert!(copied(&engine) > 0);
    let all = hold.memory();
    for _ in 0..2 {
        change_budget(&engine, claimed - window);
        assert_eq!(hold.memory(), all - window);
        assert_eq!(copied(&engine), 0);
        change_budget(&engine, total);
        assert_eq!(hold.memory(), all);
        assert!(copied(&engine) > 0);
    }
    change_budget(&engine, claimed - window - 1);
    assert!(hold.memory() < all - window, "then pinned clusters go");
    assert_eq!(copied(&engine), 0);
}

/// Few tokens take the decode graph, in which nothing is copied.
#[test]
fn nothing_is_copied_for_a_few_tokens() {
    let (engine, hold) = beside(Dense::Several, 2, 1.0);
    let mut request = Request::text("").max_tokens(12);
    request.prompt = Prompt::Tokens((3..9).collect());
    request.ignore_eog = true;
    let done = generate(&engine, request);
    let writes = hold.writes();
    assert!(done.io.bytes > 0 && writes == 0, "{writes} {:?}", done.io);
}

/// A fast device gets streamed clusters in batches that pay, which the plan explains; a slow one gets nothing.
#[test]
fn the_plan_copies_where_that_is_faster() {
    let with = |times, batch| {
        let placing = DevicePlacing::Fastest(Box::new(machine(times)));
        let engine = streaming(Dense::Several, 2, |builder| {
            let builder = builder.max_batch(batch);
            with_device(builder, 1.0).0.device_placing(placing.clone())
        });
        let run = run(&engine, 0);
        let copied = run.device.as_ref().map(|device| device.copied_bytes);
        (copied, run.logits_hash, run.plan.notes.join("; "))
    };
    let (fast, small, slow) = (with(50.0, 128), with(50.0, 32), with(0.01, 128));
    assert!(fast.0.is_some_and(|bytes| bytes > 0), "{fast:?}");
    for part in [
        "streamed ffn: ",
        "/16 copied to the device",
        "the CPU alone",
        "it pays from",
    ] {
        assert!(fast.2.contains(part), "{fast:?}");
    }
    assert!(small.0.is_none_or(|bytes| bytes == 0), "{small:?}");
    assert!(slow.0.is_none_or(|bytes| bytes == 0), "{slow:?}");
    assert!(!slow.2.contains("streamed ffn"), "{slow:?}");
    let expected = alone(Dense::Several);
    for (_, hash, _) in [&fast, &small, &slow] {
        assert_eq!(*hash, expected[0]);
    }
}

/// While a layer's attention runs, clusters of its FFN that have been read are copied: the trace has when.
#[test]
fn clusters_are_copied_before_their_ffn_begins() {
    let engine = streaming(Dense::Several, 1, |builder| {
        with_device(builder.trace_records(1 << 14), 1.0).0
    });
    let done = run(&engine, 0);
    assert_eq!(done.logits_hash, alone(Dense::Several)[0]);
    let lanes = engine.finish();
    let lane = |name: &str| lanes.iter().find(|lane| lane.name() == name).expect(name);
    let of = |name: &str, kind| {
        let records = lane(name).iter().filter(move |r| r.kind == kind);
        records.copied().collect::<Vec<Record>>()
    };
    let copies = of("device", Kind::Copy);
    let bytes: u64 = copies.iter().map(|copy| copy.bytes).sum();
    assert_eq!(Some(bytes), done.device.map(|device| device.copied_bytes));
    // A layer's attention comes before its FFN.
    let ends = of("core 0", Kind::Stage(Stage::Attention));
    let is_before = |copy: &&Record| {
        let next = ends.iter().find(|end| end.end_ns > copy.start_ns);
        next.is_some_and(|end| end.layer == copy.layer)
    };
    let ahead = copies.iter().filter(is_before).count();
    eprintln!("{ahead} of {} were copied ahead", copies.len());
    assert!(ahead > 0 && ahead < copies.len());
}
