//! What happens to a neuron cluster: the stages, the neuron cache and the compute kernels.
#![deny(unsafe_code)]

pub mod kernels;
