//! Engines with a device beside the cores: a simulated one, with faults at will.

mod device;
mod faults;

use forebay::{
    BlockType, DeviceChoice, Engine, EngineBuilder, PackOptions, Prompt, Request, Statistics,
};

use crate::support::{build, build_within, engine, generate, several_at_once, tiny};

const NEW_TOKENS: usize = 24;

/// A model for runs with a device, the format in which it is packed, and whether its neurons are in panels.
type OnDevice = (&'static str, Option<BlockType>, bool);

/// Sparse by neuron, K-quants, a table in powers of two, experts beside neurons that all tokens use, and experts with
/// biases.
const ON_DEVICE: [OnDevice; 5] = [
    ("llama_relu_f16", Some(BlockType::Q8_0), false),
    ("llama_k", None, true),
    ("qwen2_mxfp4", None, true),
    ("qwen2_moe_bf16", Some(BlockType::Q8_0), true),
    ("gpt_oss_bf16_gguf", Some(BlockType::Q4_0), true),
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

/// A device computes nothing, a part or all that it can, of prompts and of generated tokens.
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
                    settings.push((percent, threads, part));
                }
            }
        }
        let runs = several_at_once(&settings, |&(percent, threads, part)| {
            let wanted = match percent {
                100 => u64::MAX,
                _ => whole * percent / 100,
            };
            let builder = |weights| on_threads(model, threads).weight_memory(weights);
            let on_device = |weights| device::with_device(builder(weights), part).0;
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
            assert!(device.decode_share > least && device.prompt_share > least);
            assert!(device.jobs > 0 && device.faults == 0, "{device:?}");
            assert_eq!(device.problem, None);
        }
    }
}
