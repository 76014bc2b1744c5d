//! The decode graph: neuron clusters flow through Pred, GIO, GC, UDIO and UDC on every compute core, and only misses go
//! to the I/O actor.

pub mod graph;
mod lend;
pub(crate) mod stations;

pub use graph::DecodeGraph;
