//! The actor runtime, the I/O actor and the decode graph.
#![deny(unsafe_code)]

pub mod io;
