//! Measuring speed: llama-bench's tests beside measured bounds, single kernels, and ways of running sparse models
//! compared.

mod ladder;

pub use crate::speed::{
    BenchTest, Bound, KernelBound, KernelReport, Kernels, Phase, Spread, TestReport, UnknownTest,
    measure_kernels, random_tokens,
};
#[cfg(feature = "gpu")]
pub use crate::speed::{DeviceKernels, measure_device_kernels};
pub use ladder::{LADDER, Point, Rung, Workload, measure_point};
