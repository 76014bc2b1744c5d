//! Devices beside the CPU: which there are, whether they compute what the CPU computes, and how fast they are alone and
//! together with it. Nothing is computed on them yet but what is measured.

mod measure;
mod report;

pub use forebay_devices::DeviceFault;
pub use forebay_devices::gpu::Arithmetic;
pub use measure::survey;
pub use report::{BitIdentical, DeviceReport, DeviceSpeed, Together};
