//! The actor runtime: what runs the stages, on which cores, and how they are connected.
//!
//! An actor is not a thread: a compute core interprets its program and gives turns to the stages it owns; only misses
//! go to the single I/O actor. `decode::stations` and [`prefill::graph`] are the diagrams.
#![deny(unsafe_code)]

pub mod baselines;
pub mod commit;
pub mod core;
pub mod decode;
pub mod device;
pub mod fault;
pub mod io;
pub mod io_counters;
pub mod io_link;
pub mod io_thread;
pub mod load;
pub mod memory;
pub mod prefill;
pub mod runtime;
pub mod shared;
pub mod step;
pub mod wiring;
