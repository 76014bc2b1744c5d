//! Moving owned work between cores: lanes on flume, doorbells, pools, exchanges and the slab;
//! sizes that are sums of named reasons.
//!
//! - [`doorbell`]: how a sleeping core learns that there is work.
//! - [`lane`]: bounded queue of owned values whose sends never wait.
//! - [`capacity`], [`pool`], [`batch`]: why a lane is never full, and where back-pressure lives.
//! - [`board`], [`exchange`]: shared activations, and the point at which all cores have written theirs.
//! - [`claims`]: work that whichever core is free takes.
//! - [`slab`]: the one preallocated region of memory.
#![deny(unsafe_code)]

pub mod batch;
pub mod board;
pub mod capacity;
pub mod claims;
pub mod doorbell;
pub mod exchange;
pub mod lane;
pub mod pool;
pub mod slab;

mod padded;
mod sync;
