//! What an FFN has besides matrices: biases, the weights of its clusters' experts, the activation's parameters.

use forebay_numbers::activation::Activation;

use crate::fault::DeviceFault;
use crate::job::{Activated, Work};
use crate::shaders::{BIASES, WEIGHTS};

use super::tokens::is_in_range;

/// Appends the shader's `extras` of a job to `out`, and returns which there are.
///
/// # Errors
/// One of them is out of range.
pub(super) fn write(work: &Work, out: &mut Vec<u8>) -> Result<u32, DeviceFault> {
    let Work::Share {
        biases, routing, ..
    } = work
    else {
        return Ok(0);
    };
    let weights = &routing.weights;
    let mut numbers = biases.iter().flatten().chain(weights);
    if !numbers.all(|&number| is_in_range(number)) {
        return Err(DeviceFault::OutOfRange);
    }
    let mut which = 0;
    for biases in biases.iter().filter(|biases| !biases.is_empty()) {
        which |= BIASES;
        out.extend_from_slice(bytemuck::cast_slice(biases));
    }
    if !weights.is_empty() {
        which |= WEIGHTS;
        out.extend_from_slice(bytemuck::cast_slice(weights));
    }
    Ok(which)
}

/// Below all ups of a job that the device computes.
const NO_FLOOR: f32 = -((1_u64 << 40) as f32);

/// An activation's shader and its parameters.
///
/// # Errors
/// Devices do not compute it.
pub(super) fn activated(activation: Activation) -> Result<(Activated, [f32; 2]), DeviceFault> {
    let parameters = match activation {
        Activation::ClampedSwiglu { alpha, limit } => [alpha, limit],
        // The least gate, and the least up.
        Activation::Relu => [0.0, NO_FLOOR],
        Activation::FatRelu { threshold } => [threshold, NO_FLOOR],
        _ => [0.0; 2],
    };
    match Activated::of(activation) {
        Some(kind) if parameters.iter().all(|&p| is_in_range(p)) => Ok((kind, parameters)),
        _ => {
            let problem = format!("{activation:?} is not computed on devices");
            Err(DeviceFault::BadJob(problem))
        }
    }
}
