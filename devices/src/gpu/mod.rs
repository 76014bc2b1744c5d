//! Vulkan devices, through wgpu.
//!
//! Shaders have the CPU's bits only where two things hold that no standard promises; both are probed when a device is
//! opened (`docs/devices.md`).

mod adapters;
mod arithmetic;
mod attention;
mod batches;
mod buffers;
mod context;
mod driver;
mod extras;
mod given;
mod import;
mod kept;
mod meter;
mod options;
mod passes;
mod pipelines;
mod ready;
mod slot;
mod tables;
mod tokens;

pub use crate::shaders::Arithmetic;
pub use adapters::{Adapter, DeviceKind, DeviceLimits, adapters, choose};
pub use arithmetic::{Fma, Roundings};
pub use driver::{GpuDriver, UPLOAD_BYTES};
pub use meter::{Meter, RoundTrips};
pub use options::GpuOptions;
