//! What `forebay doctor` says about devices.

use forebay::devices::{BitIdentical, DeviceReport, DeviceSpeed};
use forebay_plans::doctor::Finding;
use forebay_plans::size::format_size;

/// Weights are kept in pieces; smaller ones than this are many.
const SMALL_SEGMENT: u64 = 512 << 20;
/// Results are read from memory that no cache holds if this is not reached, GB/s.
const SLOW_READBACK: f64 = 1.0;
/// Both together read at least this many times what the CPU does alone, or generation gains nothing.
const WORTHWHILE: f64 = 1.1;

/// Findings about all devices.
pub(super) fn findings(devices: &[DeviceReport]) -> Vec<Finding> {
    if devices.is_empty() {
        let none = Finding::warn(
            "devices",
            "Vulkan",
            "no device; the CPU computes everything",
        );
        return vec![none.remedy(
            "for a GPU, install its Vulkan driver (mesa-vulkan-drivers for AMD and Intel) and let your user open \
             /dev/dri (usually the group render)",
        )];
    }
    devices.iter().flat_map(of_device).collect()
}

fn of_device(device: &DeviceReport) -> Vec<Finding> {
    let area = format!("device gpu:{}", device.index);
    let mut list = vec![
        Finding::good(
            &area,
            "name",
            format!("{} ({})", device.name, device.driver),
        ),
        kind(&area, device),
        segments(&area, device),
    ];
    list.extend(weights(&area, device));
    list.extend(
        device
            .bit_identical
            .map(|bits| bit_identical(&area, bits, device)),
    );
    if let Some(speed) = &device.speed {
        list.extend(speeds(&area, speed));
    }
    if let (Some(problem), None) = (&device.problem, &device.speed) {
        list.push(Finding::warn(&area, "measured", problem.clone()));
    }
    list
}

fn kind(area: &str, device: &DeviceReport) -> Finding {
    match device.kind {
        "software" => Finding::warn(
            area,
            "kind",
            "software: a program on the CPU, for tests; never chosen unasked",
        )
        .remedy("if this machine has a GPU, install its Vulkan driver"),
        other => Finding::good(area, "kind", other),
    }
}

fn segments(area: &str, device: &DeviceReport) -> Finding {
    let value = format!("{} at most", format_size(device.segment_bytes));
    match device.segment_bytes < SMALL_SEGMENT {
        true => Finding::warn(
            area,
            "pieces of memory",
            value + ": weights are many pieces",
        )
        .remedy("a newer driver may allow larger ones"),
        false => Finding::good(area, "pieces of memory", value),
    }
}

/// Where weights are that a device without memory of its own computes with.
fn weights(area: &str, device: &DeviceReport) -> Option<Finding> {
    let what = "weights";
    match (device.kind, device.imports) {
        ("discrete", _) => None,
        (_, true) => Some(Finding::good(area, what, "used where the CPU has them")),
        (_, false) => {
            let copied = "copied: what the device computes is in memory twice";
            let remedy = "a newer driver may import memory (VK_EXT_external_memory_host)";
            Some(Finding::warn(area, what, copied).remedy(remedy))
        }
    }
}

fn bit_identical(area: &str, bits: BitIdentical, device: &DeviceReport) -> Finding {
    let what = "bit-identical";
    let opened = device
        .open_ms
        .map_or_else(String::new, |ms| format!(", opened in {ms:.0} ms"));
    match bits {
        BitIdentical::Native => Finding::good(area, what, format!("native{opened}")),
        BitIdentical::Emulated => Finding::warn(
            area,
            what,
            format!(
                "emulated: the device rounds sums twice, so they are computed in integers{opened}"
            ),
        )
        .remedy("a newer driver may have a fused multiply-add (VK_KHR_shader_fma)"),
        BitIdentical::No => {
            let why = device.problem.as_deref().unwrap_or("unknown");
            Finding::bad(area, what, format!("no: {why}"))
        }
    }
}

fn speeds(area: &str, speed: &DeviceSpeed) -> Vec<Finding> {
    let (cpu, device) = (speed.cpu_gb_per_second, speed.device_gb_per_second);
    let (beside, with) = (
        speed.together.cpu_gb_per_second,
        speed.together.device_gb_per_second,
    );
    let together = format!(
        "{:.1} GB/s: CPU {beside:.1} and device {with:.1}",
        beside + with
    );
    let together = match beside + with < WORTHWHILE * cpu {
        true => Finding::warn(
            area,
            "both together",
            together + ", little more than the CPU alone",
        )
        .remedy("generating text gains nothing from this device; prompts may"),
        false => Finding::good(area, "both together", together),
    };
    let readback = format!("{:.1} GB/s", speed.readback_gb_per_second);
    let readback = match speed.readback_gb_per_second < SLOW_READBACK {
        true => Finding::warn(
            area,
            "read results",
            readback + ": memory that no cache holds",
        )
        .remedy("a newer driver may offer cached memory"),
        false => Finding::good(area, "read results", readback),
    };
    let beside = |what, [device, cpu]: [f64; 2]| {
        let figures = format!("{device:.0} GOPS; all compute threads {cpu:.0}");
        Finding::good(area, what, figures)
    };
    vec![
        Finding::good(area, "CPU alone", format!("{cpu:.1} GB/s")),
        Finding::good(area, "device alone", format!("{device:.1} GB/s")),
        together,
        beside(
            "8-bit operations",
            [speed.device_int8_gops, speed.cpu_int8_gops],
        ),
        beside(
            "products of a prompt",
            [speed.device_products_gops, speed.cpu_products_gops],
        ),
        beside(
            "attention of a prompt",
            [speed.device_attention_gops, speed.cpu_attention_gops],
        ),
        Finding::good(
            area,
            "products of a token",
            format!("{:.1} GB/s of weights", speed.device_weights_gb_per_second),
        ),
        Finding::good(
            area,
            "submit and wait",
            format!(
                "{:.0} us, at most {:.0} in 99 of 100",
                speed.submit_and_wait_us, speed.submit_and_wait_p99_us
            ),
        ),
        readback,
    ]
}

#[cfg(test)]
mod tests {
    use forebay::devices::Together;
    use forebay_plans::doctor::Status;

    use super::*;

    fn device() -> DeviceReport {
        DeviceReport {
            index: 0,
            name: "Radeon".into(),
            driver: "RADV".into(),
            kind: "unified memory",
            segment_bytes: 2 << 30,
            workgroup_bytes: 64 << 10,
            workgroup_lanes: 1024,
            subgroup_lanes: [32, 64],
            imports: true,
            bit_identical: Some(BitIdentical::Native),
            open_ms: Some(120.0),
            speed: Some(DeviceSpeed {
                cpu_gb_per_second: 40.0,
                device_gb_per_second: 70.0,
                together: Together {
                    cpu_gb_per_second: 25.0,
                    device_gb_per_second: 45.0,
                },
                cpu_int8_gops: 900.0,
                device_int8_gops: 8000.0,
                cpu_products_gops: 400.0,
                device_products_gops: 3000.0,
                cpu_attention_gops: 100.0,
                device_attention_gops: 500.0,
                device_weights_gb_per_second: 50.0,
                submit_and_wait_us: 80.0,
                submit_and_wait_p99_us: 150.0,
                readback_gb_per_second: 10.0,
            }),
            problem: None,
        }
    }

    fn status_of(change: fn(&mut DeviceReport), what: &str) -> (Status, bool) {
        let mut device = device();
        change(&mut device);
        let list = findings(&[device]);
        let finding = list.iter().find(|f| f.what == what);
        let finding = finding.unwrap_or_else(|| panic!("nothing about {what}: {list:?}"));
        (finding.status, finding.remedy.is_some())
    }

    #[test]
    fn a_fast_exact_device_is_good_in_every_respect() {
        let list = findings(&[device()]);
        assert_eq!(list.len(), 14);
        assert!(list.iter().all(|f| f.status == Status::Good), "{list:?}");
        let together = list.iter().find(|f| f.what == "both together").unwrap();
        assert!(together.value.starts_with("70.0 GB/s"), "{together:?}");
    }

    #[test]
    fn what_is_wrong_comes_with_a_remedy() {
        let software = status_of(|d| d.kind = "software", "kind");
        let small = status_of(|d| d.segment_bytes = 128 << 20, "pieces of memory");
        let emulated = status_of(
            |d| d.bit_identical = Some(BitIdentical::Emulated),
            "bit-identical",
        );
        let copied = status_of(|d| d.imports = false, "weights");
        for found in [software, small, emulated, copied] {
            assert_eq!(found, (Status::Warn, true));
        }
        let slower = |d: &mut DeviceReport| {
            if let Some(speed) = &mut d.speed {
                speed.together.device_gb_per_second = 15.0;
                speed.readback_gb_per_second = 0.3;
            }
        };
        for what in ["both together", "read results"] {
            assert_eq!(status_of(slower, what), (Status::Warn, true));
        }
        let wrong = |d: &mut DeviceReport| {
            d.bit_identical = Some(BitIdentical::No);
            d.problem = Some("other results".into());
        };
        assert_eq!(status_of(wrong, "bit-identical").0, Status::Bad);
        let none = findings(&[]);
        assert!(
            none[0]
                .remedy
                .as_deref()
                .is_some_and(|r| r.contains("/dev/dri"))
        );
    }

    #[test]
    fn a_device_that_was_not_measured_is_only_described() {
        let mut device = device();
        (device.bit_identical, device.speed, device.open_ms) = (None, None, None);
        assert_eq!(findings(&[device]).len(), 4);
    }
}
