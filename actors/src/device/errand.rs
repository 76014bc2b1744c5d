//! What the cores and the device actor send each other: core 0 about phases and the device's memory, every core about
//! its streamed clusters.

use forebay_devices::{DeviceDone, DeviceFault, DeviceJob, SegmentId};

/// What a core asks for.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "jobs are what travels; nothing is allocated for one"
)]
pub(crate) enum Errand {
    /// The job of a phase, or of streamed clusters.
    Job(DeviceJob),
    /// A streamed cluster is to be in the window.
    Upload(Upload),
    /// These weights are to be in the device's memory.
    Load(Vec<u8>),
    /// Room for weights that come later.
    Reserve(u64),
    /// These weights are not in its memory any more.
    Unload(SegmentId),
}

/// A streamed cluster on its way to a place in the window.
#[derive(Debug)]
pub(crate) struct Upload {
    /// The core that has read it.
    pub rank: usize,
    /// Which it is, and its layer.
    pub cluster: u32,
    pub layer: u16,
    /// The window, and where in it.
    pub segment: SegmentId,
    pub at: usize,
    /// Its weights, in memory that goes back to the core.
    pub bytes: Vec<u8>,
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
    /// A streamed cluster is in its place, or the device has been given up; in any case the memory is back.
    Copied(Vec<u8>),
    /// Weights are in the device's memory, or room for some is, or why not.
    Loaded(Result<SegmentId, DeviceFault>),
    /// Their memory is free again.
    Unloaded,
    /// The device has been given up: what it has will not be answered.
    Ended,
}
