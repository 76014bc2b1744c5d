//! The decode graph: neuron clusters flow through Pred, GIO, GC, UDIO and UDC on every compute core,
//! and only misses cross to the I/O actor. [`graph`] is the picture.

mod assembly;
mod attend;
mod boards;
mod census;
mod context;
mod core_parts;
mod early;
mod ffn;
mod gc;
mod gio;
mod giving_way;
pub mod graph;
mod neurons;
mod observer;
mod pred;
mod prefill;
mod program;
mod rows;
mod sequencer;
mod shared;
mod udc;

pub use assembly::{Assembly, CoreSeed, Steps, when_io_stops};
pub use boards::Boards;
pub use census::Census;
pub use core_parts::{most_rows, scratch_bytes};
pub use graph::{DecodeGraph, GraphOptions};
pub use observer::Observer;
pub use program::Program;
pub use sequencer::Sequencer;
pub use shared::{
    Computed, NeuronOptions, Resident, Shared, Sizes, Step, StepDone, predictor_rank,
};
