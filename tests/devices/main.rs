//! Devices as the program shows them. Without any the tests say so and pass, unless `FOREBAY_NEED_VULKAN` is set.
#![cfg(feature = "gpu")]

#[path = "../support/group.rs"]
mod group;
#[path = "../stress/holdings.rs"]
mod holdings;
#[path = "../program/mod.rs"]
mod program;
#[path = "../stress/role.rs"]
mod role;
mod stress;
#[path = "../stress/subject.rs"]
mod subject;
#[path = "../support/mod.rs"]
mod support;

use forebay::bench::measure_device_kernels;
use forebay::devices::{BitIdentical, DeviceFault, survey};
use forebay::{
    BlockType, DeviceChoice, DevicePlacing, Engine, EngineBuilder, PackOptions, Prompt, Request,
    Sparsity, Statistics,
};
use forebay_devices::DeviceDriver;
use forebay_devices::gpu::{GpuDriver, GpuOptions, adapters};
use forebay_stages::kernels::KernelTable;
use program::{answer, forebay};
use serde_json::Value;
use support::{build, change_budget, generate};

/// Whether there is a device.
fn there_is_one() -> bool {
    let there = !survey(false).is_empty();
    if !there {
        let why = "no Vulkan device; install mesa-vulkan-drivers for one in software";
        assert!(std::env::var_os("FOREBAY_NEED_VULKAN").is_none(), "{why}");
        eprintln!("SKIPPED: {why}");
    }
    there
}

#[test]
fn doctor_lists_devices_beside_the_rest() {
    let cache = tempfile::tempdir().unwrap();
    let answer = answer(forebay(cache.path(), ["doctor", "--quick", "--json"]));
    let report: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert!(report["findings"].is_array() && report["isa"].is_object());
    let devices = report["devices"].as_array().expect("a list of devices");
    if !there_is_one() {
        assert!(devices.is_empty());
        return;
    }
    for key in [
        "index",
        "name",
        "driver",
        "kind",
        "segment_bytes",
        "subgroup_lanes",
    ] {
        assert!(!devices[0][key].is_null(), "{key}: {report}");
    }
    // Nothing is measured in a hurry.
    assert!(devices[0]["speed"].is_null() && devices[0]["bit_identical"].is_null());
}

#[test]
fn a_device_that_is_not_there_is_refused_before_the_model_is_packed() {
    let cache = tempfile::tempdir().unwrap();
    let model = support::tiny("llama_k");
    let run = ["run", model.to_str().unwrap(), "-p", "the", "--device"];
    let refused = answer(forebay(cache.path(), run.into_iter().chain(["gpu:99"])));
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("no device gpu:99"), "{refused:?}");
    let files = std::fs::read_dir(cache.path()).unwrap();
    let packed: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
    assert!(packed.is_empty(), "{packed:?}");
}

#[test]
fn a_survey_measures_both_alone_and_together() {
    if !there_is_one() {
        return;
    }
    for device in survey(true) {
        eprintln!("{device:#?}");
        assert!(device.open_ms.is_some_and(|ms| ms > 0.0), "{device:?}");
        assert_ne!(
            device.bit_identical,
            Some(BitIdentical::No),
            "{:?}",
            device.problem
        );
        let speed = device.speed.expect("speed");
        for figure in [
            speed.cpu_gb_per_second,
            speed.device_gb_per_second,
            speed.together.cpu_gb_per_second,
            speed.together.device_gb_per_second,
            speed.cpu_int8_gops,
            speed.device_int8_gops,
            speed.cpu_products_gops,
            speed.device_products_gops,
            speed.cpu_attention_gops,
            speed.device_attention_gops,
            speed.device_weights_gb_per_second,
            speed.submit_and_wait_us,
            speed.readback_gb_per_second,
        ] {
            assert!(figure > 0.0 && figure.is_finite(), "{speed:?}");
        }
        assert!(speed.submit_and_wait_p99_us >= speed.submit_and_wait_us);
    }
}

#[test]
fn kernels_of_a_named_device_are_measured_beside_its_bounds() {
    let none = measure_device_kernels(Some(99), 1).unwrap_err();
    assert!(matches!(none, DeviceFault::NoAdapter { .. }), "{none}");
    if !there_is_one() {
        return;
    }
    let measured = measure_device_kernels(Some(0), 1).unwrap();
    let of = |kernel| measured.kernels.iter().filter(move |k| k.kernel == kernel);
    let attends: Vec<_> = of("device attend prefill").collect();
    let bounds = attends.iter().map(|k| k.bound.map(|b| b.what));
    assert_eq!(bounds.collect::<Vec<_>>(), [Some("device f32")]);
    for (kernel, bound) in [
        ("device gemv", "device read"),
        ("device gemm", "device int8"),
        ("device ffn", "device read"),
        ("device ffn of prompt", "device int8"),
    ] {
        let formats: Vec<_> = of(kernel).filter_map(|k| k.format).collect();
        assert_eq!(formats, ["Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"]);
        for row in of(kernel) {
            assert_eq!(row.bound.map(|b| b.what), Some(bound));
            assert!(row.fraction_of_bound.is_some_and(|f| f > 0.0), "{row:?}");
        }
    }
}

#[test]
fn the_placement_gives_devices_the_formats_that_they_multiply() {
    use forebay_devices::FORMATS;
    for format in forebay::BlockType::ALL {
        assert_eq!(
            forebay_plans::device_formats::multiplies(format),
            FORMATS.contains(&format),
            "{format}"
        );
    }
}

/// Whether the first device has the CPU's memory: then its copies of weights take the budget.
fn shares_memory() -> bool {
    survey(false)[0].kind != "discrete"
}

/// Whether the first device computes with weights where the CPU has them.
fn imports() -> bool {
    survey(false)[0].imports
}

/// Models and the formats in which they are packed: dense, with sparse neurons, with experts.
const MODELS: [(&str, Option<BlockType>); 3] = [
    ("llama_k", None),
    ("llama_relu_f16", Some(BlockType::Q8_0)),
    ("qwen2_moe_bf16", Some(BlockType::Q8_0)),
];

fn builder((name, quant): (&str, Option<BlockType>), part: f64) -> EngineBuilder {
    let options = PackOptions {
        quant,
        ..PackOptions::default()
    };
    let builder = support::engine(Some(&support::tiny(name))).pack_options(options);
    let builder = builder.context(64).drafts(false);
    builder.device_placing(DevicePlacing::Part(part))
}

fn on(choice: DeviceChoice, model: (&str, Option<BlockType>), part: f64) -> Engine {
    build(builder(model, part).device(choice))
}

/// The first device, which has copies of its weights.
fn copying_device() -> Box<dyn DeviceDriver> {
    let options = GpuOptions {
        imports: false,
        ..GpuOptions::default()
    };
    let driver = GpuDriver::open(&adapters()[0], &options, &KernelTable::best());
    Box::new(driver.expect("it opens"))
}

/// A prompt, then a few tokens.
fn run(engine: &Engine) -> Statistics {
    let mut request = Request::text("").max_tokens(6);
    request.prompt = Prompt::Tokens((3..23).collect());
    request.ignore_eog = true;
    generate(engine, request)
}

/// Hot neurons on the first device beside cold ones, with ReLU of gate and up, in both modes.
#[test]
fn hot_neurons_on_a_device_have_the_logits_of_those_on_the_cores() {
    if !there_is_one() {
        return;
    }
    let model = support::hot_model("hot-vulkan.fbay", false, 320);
    for sparsity in [Sparsity::Predicted, Sparsity::Exact] {
        let on = |choice| {
            let builder = support::engine(Some(&model.0)).sparsity(sparsity);
            let builder = builder.context(64).drafts(false).device(choice);
            run(&build(builder.device_placing(DevicePlacing::Part(1.0))))
        };
        let (alone, beside) = (on(DeviceChoice::Cpu), on(DeviceChoice::Gpu(Some(0))));
        let device = beside.device.expect("a device");
        eprintln!("{sparsity:?}: {device:?}");
        assert_eq!(beside.logits_hash, alone.logits_hash, "{sparsity:?}");
        assert!(device.jobs > 0 && device.faults == 0, "{device:?}");
        // Rows are less.
        assert!(device.decode_share > 0.3, "{device:?}");
    }
}

/// The engine's logits with a part or all of what a device can compute on the first one, and without.
#[test]
fn an_engine_on_a_device_has_the_logits_of_one_without() {
    if !there_is_one() {
        return;
    }
    for model in MODELS {
        let alone = run(&on(DeviceChoice::Cpu, model, 1.0)).logits_hash;
        let mut last = 0.0;
        for part in [0.3, 1.0] {
            let beside = run(&on(DeviceChoice::Gpu(Some(0)), model, part));
            let device = beside.device.expect("a device");
            eprintln!("{model:?}, part {part}: {device:?}");
            assert_eq!(beside.logits_hash, alone, "{model:?}, part {part}");
            assert!(device.decode_share > last && device.prompt_share > last);
            assert!(device.jobs > 0 && device.faults == 0, "{device:?}");
            assert!(device.attention_jobs > 0, "{device:?}");
            last = device.decode_share;
            for (item, expected) in [
                ("device_runtime", true),
                ("device_boards", true),
                ("device_staging", !imports()),
                ("device_weights", shares_memory() && !imports()),
            ] {
                let mut items = beside.memory.items.items().iter();
                let claimed = items.any(|i| i.name == item && (i.bytes > 0 || expected));
                assert_eq!(claimed, expected, "{item}: {:?}", beside.memory.items);
            }
        }
    }
}

/// Most of the FFNs are streamed: what a prompt needs of them is copied to the device, or computed by the cores.
#[test]
fn streamed_clusters_have_the_same_bits_on_a_device() {
    if !there_is_one() {
        return;
    }
    let model = support::plain_model();
    let builder = || {
        let builder = support::engine(Some(&model)).context(128).drafts(false);
        builder.max_batch(32)
    };
    let whole = build(builder().device(DeviceChoice::Cpu)).weight_bytes();
    let streaming = |choice, part| {
        let builder = builder().weight_memory(2 * whole / 5).device(choice);
        let mut request = Request::text("").max_tokens(4);
        request.prompt = Prompt::Tokens((3..51).collect());
        request.ignore_eog = true;
        generate(
            &build(builder.device_placing(DevicePlacing::Part(part))),
            request,
        )
    };
    let alone = streaming(DeviceChoice::Cpu, 1.0).logits_hash;
    for part in [0.3, 1.0] {
        let beside = streaming(DeviceChoice::Gpu(Some(0)), part);
        let device = beside.device.expect("a device");
        eprintln!("part {part}: {device:?}");
        assert_eq!(beside.logits_hash, alone, "part {part}");
        assert!(device.copied_bytes > 0 && device.faults == 0, "{device:?}");
        assert!(device.prompt_share > device.decode_share, "{device:?}");
    }
}

#[test]
fn a_device_gives_its_copies_back_and_takes_them_again() {
    if !there_is_one() {
        return;
    }
    if !shares_memory() {
        return eprintln!("SKIPPED: the device has memory of its own, which no budget takes");
    }
    let alone = run(&on(DeviceChoice::Cpu, MODELS[1], 1.0)).logits_hash;
    let engine = build(builder(MODELS[1], 1.0).own_device(copying_device()));
    let jobs = |engine: &Engine| {
        let done = run(engine);
        assert_eq!(done.logits_hash, alone);
        done.device.expect("a device").jobs
    };
    let (all, total) = (jobs(&engine), engine.budget().total_bytes());
    let budget = engine.budget();
    let item = budget.items().iter().find(|i| i.name == "device_weights");
    let copies = item.expect("copies in the CPU's memory").bytes;
    change_budget(&engine, budget.claimed() - copies / 2);
    let some = jobs(&engine);
    assert!(some > 0 && some < all, "{some} of {all}");
    change_budget(&engine, budget.claimed() - copies);
    assert_eq!(jobs(&engine), 0);
    change_budget(&engine, total);
    assert_eq!(jobs(&engine), all);
    assert_eq!(engine.device_problem(), None);
}
