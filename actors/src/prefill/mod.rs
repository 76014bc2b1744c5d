//! The prefill graph: what prompts do instead of reading single neurons.

pub mod graph;
mod window;

pub use graph::PrefillGraph;
pub(crate) use window::Prompts;
