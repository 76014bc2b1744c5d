//! How much of a model a device computes.

use forebay_actors::device::DeviceParts;
use forebay_models::bundle::Bundle;
use forebay_plans::on_device::{OnDevice, PhaseOnDevice, Shares};

/// The part of a model's weights that a device multiplies, with what it has of them now.
pub(in crate::engine) fn share_of(
    bundle: &Bundle,
    on_device: &OnDevice,
    parts: &DeviceParts,
) -> Shares {
    let total: u64 = bundle.weight_bytes();
    let part = |of: fn(&PhaseOnDevice) -> u32| {
        let phases = on_device.phases.iter().enumerate();
        let loaded = phases.filter(|(number, _)| parts.of(*number).is_some());
        let bytes: u64 = loaded.map(|(_, p)| p.bytes_of(bundle, of(p))).sum();
        bytes as f64 / total.max(1) as f64
    };
    let window = parts.window().filter(|window| window.segment().is_some());
    let uploads = on_device.uploads.as_ref().filter(|_| window.is_some());
    let copied = uploads.map_or(0, |uploads| uploads.bytes(bundle));
    Shares {
        decode: part(|phase| phase.decode),
        prompts: part(|phase| phase.prompts) + copied as f64 / total.max(1) as f64,
    }
}
