//! What happens to a neuron cluster: the stages, the neuron cache and the compute kernels.
//!
//! Stages are plain state machines without threads, clocks, files or atomics; the actors crate moves
//! clusters through them.
#![deny(unsafe_code)]

pub mod attention;
pub mod boards;
pub mod cache;
pub mod computed;
pub mod contract;
pub mod early;
pub mod expert_flights;
pub mod expert_input;
pub mod expert_store;
pub mod flight;
pub mod frame;
pub mod gathered;
pub mod gc;
pub mod gio;
mod head_input;
pub mod live_mask;
pub mod neuron_rows;
pub mod neuron_store;
pub mod pred;
pub mod preload;
#[cfg(test)]
mod random;
pub mod recurrent;
pub mod router;
pub mod rows;
pub mod rule;
pub mod sequences;
pub mod udc;
pub mod udio;
mod waiting;
pub mod weights;

/// Compute kernels: a separate crate, since they change rarely and take long to compile.
pub use forebay_kernels as kernels;
