//! Running the actors: what cores share, how they are connected with each other and with the I/O actor, and the threads
//! that run them.

mod assembly;
mod device_part;
mod shared;
mod step;
mod threads;

pub use assembly::{Assembly, CoreSeed, Steps, when_io_stops};
pub use shared::{NeuronOptions, Shared, predictor_rank};
pub use step::{Sizes, Step, StepDone, StepTokens};
pub use threads::{IO_LANE_SHARE, Runtime, RuntimeOptions};
