//! Moving owned work between cores: lanes on flume, doorbells, pools, exchanges and the slab;
//! sizes that are sums of named reasons.
#![deny(unsafe_code)]

pub mod slab;
