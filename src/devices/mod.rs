//! Devices beside the CPU: which there are, whether they compute what the CPU computes, and how fast they are alone and
//! together with it.

mod known;
mod measure;
mod report;

pub use forebay_devices::DeviceFault;
pub use forebay_devices::gpu::Arithmetic;
pub use forebay_plans::placement::Together;
pub(crate) use known::{known_figures, new_figures};
pub use known::{machine_with_device, remember};
pub use measure::survey;
pub use report::{BitIdentical, DeviceReport, DeviceSpeed};
