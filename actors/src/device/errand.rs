//! What core 0 and the device actor send each other.

use forebay_devices::{DeviceDone, DeviceFault, DeviceJob, SegmentId};

/// What core 0 asks for.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "jobs are what travels; nothing is allocated for one"
)]
pub(crate) enum Errand {
    /// The job of a phase.
    Job(DeviceJob),
    /// These weights are to be in the device's memory.
    Load(Vec<u8>),
    /// These are not any more.
    Unload(SegmentId),
}

/// What the device actor answers.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "jobs are what travels; nothing is allocated for one"
)]
pub(super) enum Answer {
    /// A job is over.
    Done(DeviceDone),
    /// Weights are in the device's memory, or why not.
    Loaded(Result<SegmentId, DeviceFault>),
    /// Their memory is free again.
    Unloaded,
}
