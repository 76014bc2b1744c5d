//! What is known about this machine's devices: measured once, and kept beside the packed models.

use std::path::Path;

use forebay_devices::gpu::{Adapter, DeviceKind, adapters, choose};
use forebay_models::files::{read_regular, write_whole};
use forebay_plans::cache_dir;
use forebay_plans::placement::{
    Device, MachineKind, Memory, PlacementMachine, Processor, Together,
};
use serde::{Deserialize, Serialize};

use super::measure::speed;
use super::report::{DeviceReport, DeviceSpeed};

/// The file in the cache folder.
const FILE: &str = "devices.json";
/// A longer file is not ours.
const MAX_BYTES: u64 = 1 << 20;
/// Beyond any device's memory: drivers do not tell how much there is, but say when there is no more.
const ANY_MEMORY_GB: f64 = 1e6;

/// A device that was measured.
#[derive(Debug, Serialize, Deserialize)]
struct Known {
    name: String,
    driver: String,
    speed: DeviceSpeed,
}

/// The machine's figures with a device, as far as they are in `folder`.
pub(crate) fn known_figures(adapter: &Adapter, folder: &Path) -> Option<PlacementMachine> {
    let (name, driver) = (adapter.name(), adapter.driver());
    let known = read(folder);
    let same = known.iter().find(|k| k.name == name && k.driver == driver);
    same.map(|device| machine(adapter, &device.speed))
}

/// The same, measured, which takes a few seconds and some hundred MiB; kept in `folder`.
///
/// # Errors
/// The device cannot be measured.
pub(crate) fn new_figures(adapter: &Adapter, folder: &Path) -> Result<PlacementMachine, String> {
    let speed = speed(adapter)?;
    keep(folder, adapter.name(), &adapter.driver(), speed);
    Ok(machine(adapter, &speed))
}

/// This machine with the device that engines use if nobody names one; `None` without such a device. If its speed is not
/// known, it is measured, which takes a few seconds and some hundred MiB.
///
/// # Errors
/// The device cannot be measured, or the cache folder cannot be used.
pub fn machine_with_device() -> Result<Option<PlacementMachine>, String> {
    let Ok(adapter) = choose(adapters(), None) else {
        return Ok(None);
    };
    let folder = cache_dir::prepare(None).map_err(|e| e.to_string())?;
    match known_figures(&adapter, &folder) {
        Some(machine) => Ok(Some(machine)),
        None => new_figures(&adapter, &folder).map(Some),
    }
}

/// Keeps the speeds of a survey in the cache folder `folder`: engines use devices whose speed is known.
pub fn remember(reports: &[DeviceReport], folder: &Path) {
    for report in reports {
        if let Some(speed) = report.speed {
            keep(folder, &report.name, &report.driver, speed);
        }
    }
}

/// What is known; a damaged file is written again.
fn read(folder: &Path) -> Vec<Known> {
    read_regular(&folder.join(FILE), MAX_BYTES)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

fn keep(folder: &Path, name: &str, driver: &str, speed: DeviceSpeed) {
    let mut known = read(folder);
    known.retain(|device| device.name != name);
    known.push(Known {
        name: name.to_owned(),
        driver: driver.to_owned(),
        speed,
    });
    // Where it cannot be written, it is measured again next time.
    if let Ok(bytes) = serde_json::to_vec_pretty(&known) {
        let _ = write_whole(&folder.join(FILE), &bytes);
    }
}

fn machine(adapter: &Adapter, speed: &DeviceSpeed) -> PlacementMachine {
    let processor = |gb_per_second, gops: f64, attention_gops: f64| Processor {
        gb_per_second,
        tops: gops * 1e-3,
        attention_tops: attention_gops * 1e-3,
    };
    let own = adapter.kind() == DeviceKind::Discrete;
    let read = speed
        .device_gb_per_second
        .min(speed.device_weights_gb_per_second);
    let Together {
        cpu_gb_per_second,
        device_gb_per_second,
    } = speed.together;
    PlacementMachine {
        name: adapter.name().to_owned(),
        kind: match own {
            true => MachineKind::Discrete,
            false => MachineKind::Unified,
        },
        cpu: processor(
            speed.cpu_gb_per_second,
            speed.cpu_products_gops,
            speed.cpu_attention_gops,
        ),
        device: Some(Device {
            processor: processor(
                read,
                speed.device_products_gops,
                speed.device_attention_gops,
            ),
            submit_us: speed.submit_and_wait_us,
            memory: own.then_some(Memory {
                gb: ANY_MEMORY_GB,
                link_gb_per_second: speed.readback_gb_per_second,
            }),
        }),
        together: Some(Together {
            cpu_gb_per_second,
            device_gb_per_second: device_gb_per_second.min(read),
        }),
        derate: 1.0,
        sources: "measured".to_owned(),
        assumed: String::new(),
    }
}
