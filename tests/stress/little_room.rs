//! Simulated devices beside models that do not fit the budget: what is in memory, and attention, are still theirs.

use std::path::Path;

use forebay::{DeviceChoice, EngineBuilder, KvType, Prompt, Request};
use forebay_devices::simulated::Behaviour;
use serde::{Deserialize, Serialize};

use crate::device::with_behaviour;
use crate::measured::MIB;
use crate::role;
use crate::subject::{quantised_dense_model, quantised_expert_model};
use crate::support::{build, engine, generate};

const BUDGET: &str = "FOREBAY_STRESS_BUDGET";
const MODEL: &str = "FOREBAY_STRESS_MODEL";
/// Which of the [`Memory`] a device has; none is without one.
const DEVICE: &str = "FOREBAY_STRESS_DEVICE";
/// Whether keys and values have formats in which devices attend.
const ATTENDS: &str = "FOREBAY_STRESS_ATTENDS";

/// Where a device has its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    /// In memory of its own.
    Own,
    /// Where the CPU has them.
    Imported,
    /// In the CPU's memory once more.
    Copied,
}

impl Memory {
    const ALL: [Self; 3] = [Self::Own, Self::Imported, Self::Copied];

    fn behaviour(self) -> Behaviour {
        Behaviour {
            shares_memory: self != Self::Own,
            imports: self == Self::Imported,
            ..Behaviour::ideal()
        }
    }
}

/// What a run in a process of its own says.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    claimed: u64,
    weights: u64,
    read: u64,
    jobs: u64,
    attention_jobs: u64,
    decode_share: f64,
    notes: String,
    hash: String,
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn runs_beside_a_device() {
    let model = std::env::var_os(MODEL).expect("a model");
    let builder = engine(Some(Path::new(&model))).drafts(false);
    let builder = builder.context(128).max_batch(32);
    let builder = match std::env::var_os(BUDGET) {
        Some(_) => builder.memory(role::number(BUDGET)),
        None => builder,
    };
    let builder = builder.kv_type(match role::number(ATTENDS) {
        0 => KvType::Q8,
        _ => KvType::F16,
    });
    let which = std::env::var_os(DEVICE).map(|_| Memory::ALL[role::number(DEVICE) as usize]);
    let beside = |memory: Memory, builder: EngineBuilder| {
        with_behaviour(builder, 1.0, (usize::MAX, memory.behaviour())).0
    };
    let engine = build(match which {
        Some(memory) => beside(memory, builder),
        None => builder.device(DeviceChoice::Cpu),
    });
    let mut request = Request::text("").max_tokens(6);
    // Enough for a prompt's graph.
    request.prompt = Prompt::Tokens((3..83).collect());
    request.ignore_eog = true;
    let done = generate(&engine, request);
    let device = done.device.as_ref();
    role::tell(&Report {
        claimed: engine.budget().claimed(),
        weights: engine.weight_bytes(),
        read: done.io.bytes,
        jobs: device.map_or(0, |device| device.jobs - device.faults),
        attention_jobs: device.map_or(0, |device| device.attention_jobs),
        decode_share: device.map_or(0.0, |device| device.decode_share),
        notes: done.plan.notes.join("; "),
        hash: done.logits_hash,
    });
}

fn run(model: &Path, (memory, attends): (Option<Memory>, bool), budget: Option<u64>) -> Report {
    const ROLE: &str = "little_room::runs_beside_a_device";
    let mut command = role::command(ROLE);
    command.env(MODEL, model);
    command.env(ATTENDS, u8::from(attends).to_string());
    if let Some(memory) = memory {
        command.env(DEVICE, (memory as usize).to_string());
    }
    if let Some(budget) = budget {
        command.env(BUDGET, budget.to_string());
    }
    role::report(ROLE, command, None)
}

/// A run beside a device under a budget in which so many quarters of the weights have no room, which changes no token.
fn without(quarters: u64, model: &Path, (memory, attends): (Memory, bool)) -> Report {
    let alone = run(model, (None, attends), None).hash;
    let all = run(model, (Some(memory), attends), None);
    assert!(all.jobs > all.attention_jobs, "{all:?}");
    assert_eq!(all.attention_jobs > 0, attends, "{all:?}");
    let copies = if memory == Memory::Copied { 4 } else { 0 };
    let less = all.weights * (quarters + copies) / 4;
    let some = run(
        model,
        (Some(memory), attends),
        Some(all.claimed + MIB - less),
    );
    eprintln!("{memory:?}: {some:?}");
    assert_eq!((&all.hash, &some.hash), (&alone, &alone), "{memory:?}");
    assert!(some.read > MIB, "all is in memory: {some:?}");
    some
}

#[test]
fn a_device_with_memory_of_its_own_has_what_is_pinned_beside_experts_that_come_and_go() {
    let half = without(2, quantised_expert_model(), (Memory::Own, false));
    // All that is pinned, not only what is small.
    assert!(half.jobs > 0 && half.decode_share > 0.12, "{half:?}");
}

#[test]
fn devices_attend_beside_models_that_do_not_fit() {
    for memory in [Memory::Own, Memory::Imported] {
        for model in [quantised_dense_model(), quantised_expert_model()] {
            let most = without(1, model, (memory, true));
            assert!(most.attention_jobs > 0, "{memory:?}: {most:?}");
        }
    }
}

/// What is in memory twice is not read less: pinned weights come first.
#[test]
fn a_device_for_which_there_is_no_room_is_not_called_slow() {
    let half = without(2, quantised_expert_model(), (Memory::Copied, false));
    assert_eq!(half.jobs, 0, "{half:?}");
    let says = |what: &str| half.notes.contains(what);
    assert!(!says("nothing is faster"), "{half:?}");
    assert!(says("has no room for work on simulated"), "{half:?}");
}
