//! The neuron cache: which neurons' Up and Down rows are in memory, and in which slot.

mod two_queue;

pub use two_queue::TwoQueue;
