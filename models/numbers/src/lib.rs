//! How numbers are stored, and what is done with single ones: block formats, panels, laned rows, activations. A crate of
//! its own because the compute kernels, which take minutes to compile, need this of models and nothing else.
#![forbid(unsafe_code)]

pub mod activation;
pub mod block;
pub mod kv_type;
pub mod lanes;
pub mod panel;
pub mod rope_pairing;
