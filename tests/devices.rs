//! Devices as the program shows them. Without any the tests say so and pass, unless `FOREBAY_NEED_VULKAN` is set.
#![cfg(feature = "gpu")]

mod program;

use forebay::bench::measure_device_kernels;
use forebay::devices::{BitIdentical, DeviceFault, survey};
use program::{answer, forebay};
use serde_json::Value;

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
    for (kernel, bound) in [
        ("device gemv", "device read"),
        ("device gemm", "device int8"),
        ("device ffn", "device read"),
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
            forebay_plans::placement::multiplies(format),
            FORMATS.contains(&format),
            "{format}"
        );
    }
}

/// The engine's logits with all that a device can compute on the first one, and without.
#[test]
fn an_engine_on_a_device_has_the_logits_of_one_without() {
    use forebay::{DeviceChoice, DevicePlacing, Engine, PackOptions, Prompt, Request, StreamItem};

    if !there_is_one() {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let tiny = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny");
    let run = |name: &str, quant, choice| {
        let builder = Engine::builder()
            .model(tiny.join(name))
            .pack_options(PackOptions {
                quant,
                ..PackOptions::default()
            })
            .cache_folder(cache.path())
            .context(64)
            .threads(2)
            .drafts(false)
            .device(choice)
            .device_placing(DevicePlacing::Part(1.0));
        let engine = builder.build().unwrap_or_else(|e| panic!("{e}"));
        let mut request = Request::text("").max_tokens(6);
        request.prompt = Prompt::Tokens((3..23).collect());
        request.ignore_eog = true;
        let mut stream = engine.session().generate(request).unwrap().blocking();
        let done = stream.find_map(|item| match item.unwrap() {
            StreamItem::Done(statistics) => Some(*statistics),
            _ => None,
        });
        done.expect("statistics")
    };
    for (name, quant) in [
        ("llama_k/model.gguf", None),
        ("qwen2_moe_bf16", Some(forebay::BlockType::Q8_0)),
    ] {
        let alone = run(name, quant, DeviceChoice::Cpu);
        let beside = run(name, quant, DeviceChoice::Gpu(Some(0)));
        let device = beside.device.expect("a device");
        eprintln!("{name}: {device:?}");
        assert!(device.decode_share > 0.5 && device.jobs > 0 && device.faults == 0);
        assert_eq!(alone.logits_hash, beside.logits_hash, "{name}");
        for item in [
            "device_runtime",
            "device_boards",
            "device_staging",
            "device_weights",
        ] {
            let claimed = beside.memory.items.items().iter().any(|i| i.name == item);
            assert!(claimed, "{item}: {:?}", beside.memory.items);
        }
    }
}
