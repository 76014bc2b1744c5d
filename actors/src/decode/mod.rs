//! The decode graph: neuron clusters flow through Pred, GIO, GC, UDIO and UDC on every compute core,
//! and only misses cross to the I/O actor. [`graph`] is the picture.

mod attend;
mod boards;
mod context;
mod core_parts;
mod gc;
mod gio;
pub mod graph;
mod pred;
mod program;
mod rows;
mod sequencer;
mod shared;
mod udc;
mod udio;

pub use boards::Boards;
pub use core_parts::scratch_bytes;
pub use graph::{DecodeGraph, GraphOptions};
pub use program::Program;
pub use sequencer::Sequencer;
pub use shared::{Resident, Shared, Step, StepDone};
