//! What the runtime asks of an actor.

use forebay_traces::record::Reason;

/// Result of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something was done; call again.
    Progress,
    /// Nothing can be done until a message arrives.
    Blocked(Reason),
    /// The actor has ended.
    Finished,
}

/// An actor that a core runs: it never blocks, and everything it does happens inside `turn`, so a
/// simulator can drive it as well as a thread.
pub trait Actor {
    /// Does a small piece of work.
    fn turn(&mut self) -> Turn;
}
