//! Which device computes beside the cores, and what is known of it.

use std::time::Duration;

use forebay_actors::device::DeviceParts;
use forebay_devices::{DeviceDriver, DeviceFault};
use forebay_plans::placement::PlacementMachine;

use crate::engine::facts::DeviceFacts;
use crate::memory::DeviceRequest;

/// How long core 0 waits for a job before the device counts as stuck. Drivers reset a device that hangs sooner.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Batches for which shares are planned: a token that is generated, and a prompt's batch.
pub(super) const DECODED: usize = 1;
pub(super) const PROMPT: usize = 128;
/// Attention, and the largest phase's weights on their way to memory that a device shares, each take at most this part
/// of what the budget leaves.
pub(super) const PIECE_SHARE: u64 = 4;

/// What computes beside the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU that is not software, as far as the plan finds it faster; nothing without one.
    #[default]
    Auto,
    /// Nothing.
    Cpu,
    /// The first GPU that is not software, or the one of this number; an error if it cannot be used.
    Gpu(Option<usize>),
}

/// How much a device gets.
#[derive(Clone, Debug)]
pub enum DevicePlacing {
    /// This part of every phase, 0 to 1: for comparisons and tests.
    Part(f64),
    /// What the plan finds fastest, from these figures of the machine with the device.
    Fastest(Box<PlacementMachine>),
}

/// A device that can be used.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub driver: Box<dyn DeviceDriver>,
    pub placing: DevicePlacing,
    pub request: DeviceRequest,
    /// Why streamed clusters are copied to it.
    pub why_uploads: Option<String>,
    /// Whether it has the CPU's bits in attention, or why not.
    pub attends: Result<(), DeviceFault>,
}

/// Whether a device gets something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Placed<T> {
    There(T),
    /// It would not be faster, or cannot do it.
    NotFaster,
    /// The budget has no room for it.
    NoRoom,
}

/// A device with its weights.
#[derive(Debug)]
pub(super) struct LoadedDevice {
    pub driver: Box<dyn DeviceDriver>,
    pub parts: DeviceParts,
    pub facts: DeviceFacts,
}
