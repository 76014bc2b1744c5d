//! Measuring speed: llama-bench's tests beside measured bounds, kernels by themselves, and ways of running sparse
//! models beside each other.

mod ladder;

pub use crate::speed::{
    BenchTest, Bound, KernelBound, KernelReport, Kernels, Phase, Spread, TestReport, UnknownTest,
    measure_kernels, random_tokens,
};
pub use ladder::{LADDER, Point, Rung, Workload, measure_point};
