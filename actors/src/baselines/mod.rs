//! Wirings that only benchmarks choose, for comparison with the product's: the same stages, kernels and files, so that
//! differences are the method's.

mod blocking;
mod matrix;

pub use blocking::BlockingGraph;
pub use matrix::MatrixGraph;
