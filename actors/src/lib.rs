//! The actor runtime, the single I/O actor and the decode graph.
//!
//! An actor is not a thread: a compute core runs its sequencer, which gives turns to the stage actors it
//! owns; only misses cross to the I/O actor. [`decode::graph`] is the picture.
#![deny(unsafe_code)]

pub mod contract;
pub mod core_thread;
pub mod decode;
pub mod fault;
pub mod io;
pub mod io_link;
pub mod io_thread;
pub mod load;
pub mod memory;
