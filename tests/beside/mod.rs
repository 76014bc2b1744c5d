//! Engines with a device beside the cores: a simulated one, with faults at will.

mod device;
mod faults;
mod giving_way;
mod hot;
mod uploads;

use forebay::{
    BlockType, DeviceChoice, DevicePlacing, Engine, EngineBuilder, KvType, PackOptions, Prompt,
    Request, Statistics,
};
use forebay_devices::simulated::Behaviour;
use forebay_plans::placement::{Device, MachineKind, PlacementMachine, Processor};
use forebay_traces::chrome::write_chrome;
use forebay_traces::record::{Kind, Reason};
use forebay_traces::report::Report;

use crate::support::{build, build_within, engine, generate, several_at_once, tiny};

const NEW_TOKENS: usize = 24;

/// A model for runs with a device, the format in which it is packed, and whether its neurons are in panels.
type OnDevice = (&'static str, Option<BlockType>, bool);

/// Sparse by neuron, K-quants, a table in powers of two, experts beside neurons that all tokens use, experts with
/// biases, latent attention, inputs of tokens, and delta nets.
const ON_DEVICE: [OnDevice; 8] = [
    ("llama_relu_f16", Some(BlockType::Q8_0), false),
    ("llama_k", None, true),
    ("qwen2_mxfp4", None, true),
    ("qwen2_moe_bf16", Some(BlockType::Q8_0), true),
    ("gpt_oss_bf16_gguf", Some(BlockType::Q4_0), true),
    ("deepseek_v2_lite_bf16", Some(BlockType::Q8_0), true),
    ("gemma4_inputs_bf16_gguf", Some(BlockType::Q8_0), false),
    ("qwen3_5_bf16", Some(BlockType::Q8_0), false),
];

fn on_threads(model: OnDevice, threads: usize) -> EngineBuilder {
    let (name, quant, _) = model;
    let builder = engine(Some(&tiny(name))).pack_options(PackOptions {
        quant,
        ..PackOptions::default()
    });
    builder.threads(threads).drafts(false)
}

fn run(engine: &Engine) -> Statistics {
    let mut request = Request::text("").max_tokens(NEW_TOKENS);
    // Enough for a prompt's graph, and for its shares.
    request.prompt = Prompt::Tokens((3..36).collect());
    request.ignore_eog = true;
    generate(engine, request)
}

/// A device computes nothing, a part or all that it can, of prompts and of generated tokens, with copies of the weights
/// or with those of the cores.
#[test]
fn with_a_device() {
    for model in ON_DEVICE {
        let alone = build(on_threads(model, 2).device(DeviceChoice::Cpu));
        let whole = alone.weight_bytes();
        let alone = run(&alone);
        assert_eq!(alone.device, None);
        let mut settings = Vec::new();
        for percent in [100, 40] {
            for threads in [1, 2] {
                for part in [0.0, 0.3, 1.0] {
                    // Of a device without a part, engines differ in nothing else.
                    if part > 0.0 || (percent, threads) == (40, 2) {
                        settings.push((percent, threads, part));
                    }
                }
            }
        }
        let runs = several_at_once(&settings, |&(percent, threads, part)| {
            let wanted = match percent {
                100 => u64::MAX,
                _ => whole * percent / 100,
            };
            let builder = |weights| on_threads(model, threads).weight_memory(weights);
            let behaviour = Behaviour {
                imports: threads == 2,
                ..Behaviour::ideal()
            };
            let on_device = |weights| {
                let limits = (usize::MAX, behaviour.clone());
                device::with_behaviour(builder(weights), part, limits).0
            };
            run(&build_within(on_device, wanted))
        });
        for (setting, run) in settings.iter().zip(&runs) {
            let &(percent, _, part) = setting;
            assert_eq!(alone.logits_hash, run.logits_hash, "{model:?}: {setting:?}");
            if part == 0.0 {
                assert_eq!(run.device, None);
                continue;
            }
            let Some(device) = &run.device else {
                // What is not pinned is not on a device, nor are parts of single clusters.
                assert_ne!((percent, part), (100, 1.0), "{model:?}: {setting:?}");
                continue;
            };
            eprintln!("{model:?}: {setting:?}: {device:?}");
            let all = part == 1.0 && percent == 100 && model.2;
            let least = if all { 0.5 } else { 0.0 };
            // What is streamed is on it in prompts only.
            let streams = percent < 100 && device.copied_bytes > 0;
            // Or it has so few clusters that it only attends.
            let attends = percent < 100 && device.attention_jobs == device.jobs;
            assert!(
                device.decode_share > least || streams || attends,
                "{device:?}"
            );
            assert!(device.prompt_share > least || attends, "{device:?}");
            assert!(device.jobs > 0 && device.faults == 0, "{device:?}");
            // But for latent attention.
            let attends = !model.0.starts_with("deepseek") && percent == 100;
            assert!(device.attention_jobs > 0 || !attends, "{device:?}");
            assert_eq!(device.problem, None);
        }
    }
}

/// A device's jobs have a lane in the trace, and the waits for them a cause: core 0's, and all cores' for attention.
#[test]
fn a_trace_shows_jobs_and_waits_for_them() {
    for kind in KvType::ALL {
        check_trace(kind);
    }
}

fn check_trace(kind: KvType) {
    let builder = on_threads(ON_DEVICE[1], 2).trace_records(1 << 14);
    let builder = builder.kv_type(kind);
    let slow = Behaviour {
        job_ns: 1_000_000,
        ..Behaviour::ideal()
    };
    let engine = build(device::with_behaviour(builder, 1.0, (usize::MAX, slow)).0);
    let statistics = run(&engine);
    let device = statistics.device.expect("a device");
    assert!(device.busy_ms >= device.jobs as f64, "{device:?}");
    assert!(device.waits > 0 && statistics.bubbles.wait_device > 0.1);
    let lanes = engine.finish();
    let lane = |name: &str| lanes.iter().find(|lane| lane.name() == name).expect(name);
    let of = |name: &str, kind| lane(name).iter().filter(|r| r.kind == kind).count() as u64;
    assert_eq!(of("device", Kind::Job), device.jobs);
    assert!(of("core 0", Kind::Stall(Reason::Device)) > 0);
    let waits = of("core 1", Kind::Stall(Reason::Device));
    assert_eq!(waits > 0, kind == KvType::F16);
    let mut file = Vec::new();
    write_chrome(&mut file, "test", &lanes).expect("a trace");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.json");
    std::fs::write(&path, file).expect("a file");
    let report = Report::read(&path).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.bubbles().wait_device > 0.0 && report.cores.len() == 2);
}

/// A machine whose device is so many times as fast as its CPU.
fn machine(times: f64) -> PlacementMachine {
    let processor = |gb_per_second, tops| Processor {
        gb_per_second,
        tops,
        attention_tops: tops,
    };
    PlacementMachine {
        name: "test".into(),
        kind: MachineKind::Unified,
        cpu: processor(0.01, 0.001),
        device: Some(Device {
            processor: processor(0.01 * times, 0.001 * times),
            submit_us: 10.0,
            memory: None,
        }),
        together: None,
        derate: 1.0,
        sources: String::new(),
        assumed: String::new(),
    }
}

/// The plan gives a fast device the weights, and a slow one nothing.
#[test]
fn the_plan_uses_what_is_faster() {
    let shares = |times| {
        let placing = DevicePlacing::Fastest(Box::new(machine(times)));
        let (builder, _) = device::with_device(on_threads(ON_DEVICE[1], 2), 1.0);
        let run = run(&build(builder.device_placing(placing)));
        let notes = run.plan.notes.join("; ");
        (run.device.map(|d| d.decode_share), notes)
    };
    let (fast, slow) = (shares(50.0), shares(0.01));
    assert!(fast.0.is_some_and(|share| share > 0.3), "{fast:?}");
    assert_eq!(slow.0, None);
    assert!(
        slow.1.contains("nothing is faster on simulated"),
        "{slow:?}"
    );
}
