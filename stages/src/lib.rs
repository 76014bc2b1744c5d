//! What happens to a neuron cluster: the stages, the neuron cache and the compute kernels.
//!
//! Stages are plain state machines without threads, clocks, files or atomics; the actors crate moves
//! clusters through them.
#![deny(unsafe_code)]

pub mod attention;
pub mod cache;
pub mod gathered;
pub mod gc;
pub mod gio;
pub mod live_mask;
pub mod neuron_rows;
pub mod neuron_store;
pub mod pred;
pub mod projection;
pub mod udc;

/// Compute kernels: a crate of their own, since they change seldom and take long to compile.
pub use forebay_kernels as kernels;
