//! Computing on a second device beside the CPU: a GPU that has its own memory or shares the CPU's.
//!
//! A [`DeviceDriver`] takes jobs by value and gives them back with their results; it never waits. Its results have the
//! bits of the CPU's kernels, or it is not used: [`probe::check`] finds out before the first job. [`simulated`] is a
//! device in virtual time, with faults on demand. With the feature `gpu` there are Vulkan devices too.
//!
//! What is guaranteed and what is probed: `docs/devices.md`.
#![deny(unsafe_code)]

mod attention;
mod driver;
mod fault;
mod job;
pub mod on_cpu;
pub mod probe;
pub mod simulated;

#[cfg(feature = "gpu")]
pub mod gpu;
#[cfg(feature = "gpu")]
mod shaders;

pub use attention::{AttentionWork, KvSpace, Patch, WIDEST_HEAD};
pub use driver::DeviceDriver;
pub use fault::DeviceFault;
pub use job::{
    Activated, DeviceDone, DeviceJob, FfnCluster, Group, PanelRange, Routing, SegmentId, Work,
};

use forebay_numbers::block::BlockType;

/// Formats that devices multiply, all in panels.
pub const FORMATS: [BlockType; 6] = [
    BlockType::Q4_0,
    BlockType::Q8_0,
    BlockType::Q4_K,
    BlockType::Q5_K,
    BlockType::Q6_K,
    BlockType::MXFP4,
];
