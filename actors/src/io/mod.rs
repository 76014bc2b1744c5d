//! The I/O actor and its drivers: reading weight clusters from the packed file into owned slots.
//!
//! ```text
//! RequestSource ──▶ IoActor ──▶ Driver (io_uring | pread threads) ──▶ kernel
//! CompletionSink ◀──┘   ▲ Waker: a client that put a request into the source calls it
//! ```
//!
//! An operation owns the [`Slot`](forebay_queues::slab::Slot) that it fills, from request to
//! completion; buffers are moved, nothing is shared, and a fault is a value in the completion.

mod actor;
mod assembly;
mod driver;
mod file;
mod op;
mod open;
mod pread;
pub mod probe;
mod progress;
mod queue;
pub mod random;
mod refusal;
mod registration;
pub mod simulated;
mod table;
mod tally;
mod uring;
mod waker;

#[cfg(test)]
mod tests;

pub use actor::{CHUNK_BYTES, CompletionSink, IoActor, IoLimits, RequestSource};
pub use driver::{Driver, DriverChoice, DriverInfo};
pub use op::{ALIGNMENT, FaultKind, ReadDone, ReadFault, ReadOp};
pub use open::open_driver;
pub use pread::MAX_READERS;
pub use refusal::{MAX_DEPTH, OpenError, UringRefusal};
pub use tally::IoTally;
pub use waker::Waker;
