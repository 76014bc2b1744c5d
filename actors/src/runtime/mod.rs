//! Running the actors: what cores share, how they are connected with each other and with the I/O actor, and the threads
//! that run them.

mod assembly;
mod device_part;
mod threads;

pub use assembly::{Assembly, CoreSeed, Steps, when_io_stops};
pub use threads::{IO_LANE_SHARE, Runtime, RuntimeOptions};
