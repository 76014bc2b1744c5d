//! How numbers are stored, and functions of single ones: block formats, panels, laned rows, activations; random
//! numbers. It is a separate crate because the compute kernels, which take long to compile, need only this of models.
#![forbid(unsafe_code)]

pub mod activation;
pub mod block;
pub mod kv_type;
pub mod lanes;
pub mod panel;
pub mod random;
pub mod rope_pairing;
