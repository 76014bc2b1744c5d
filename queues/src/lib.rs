//! Moving owned work between cores: lanes on flume, doorbells, exchanges, boards and the slab.
//!
//! - [`doorbell`]: how a sleeping core learns that there is work.
//! - [`lane`]: bounded queue of owned values whose sends never wait.
//! - [`capacity`]: why a lane is never full; sizes are sums of named reasons.
//! - [`board`], [`exchange`]: shared activations, and the point at which all cores have written theirs.
//! - [`claims`]: work that any free core may take.
//! - [`lending`]: work that a core has ready and any other may do for it.
//! - [`slab`]: the one preallocated region of memory.
//! - [`published`]: pieces of it that one thread changes and all read in between.
//! - [`pages`]: memory of buffers that goes back to the system.
#![deny(unsafe_code)]

pub mod board;
pub mod capacity;
pub mod claims;
pub mod doorbell;
pub mod exchange;
pub mod lane;
pub mod lending;
pub mod pages;
pub mod published;
pub mod slab;

mod sync;
