//! A compute core: a pinned thread that gives its actors turns, sleeps when there is nothing to do, and
//! accounts for every nanosecond.

use forebay_models::bundle::HotNeuron;
use forebay_queues::doorbell::{Bell, Spin};
use forebay_traces::clock::now_ns;
use forebay_traces::lane::TraceLane;
use forebay_traces::record::Reason;

use crate::contract::{Actor, Turn};
use crate::decode::Sequencer;

/// How long a core looks at its bell before it parks. A peer at an exchange is microseconds away, and
/// parking costs it a wake-up; a read is hundreds of microseconds away, and the I/O actor may need the
/// core to issue it.
fn spin(reason: Reason) -> Spin {
    match reason {
        Reason::Barrier | Reason::Pred => Spin::looks(4000),
        Reason::IoGate | Reason::IoUpDown | Reason::Idle => Spin::looks(100),
    }
}

/// What a core does after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The next turn.
    Again,
    /// Sleep until the bell's epoch is no longer `seen`.
    Sleep {
        /// The epoch before the core looked for work.
        seen: u64,
        /// What it waits for.
        reason: Reason,
    },
    /// Nothing: it has ended.
    Finished,
}

/// A compute core without its thread: whoever drives it decides when it gets a turn, and how it sleeps.
#[derive(Debug)]
pub struct Core {
    sequencer: Sequencer,
    bell: Bell,
    blocked: bool,
}

impl Core {
    /// The core of a sequencer that is woken through `bell`.
    pub(crate) fn new(sequencer: Sequencer, bell: Bell) -> Self {
        Self {
            sequencer,
            bell,
            blocked: true,
        }
    }

    /// Gives the actors a turn.
    #[inline]
    pub fn pass(&mut self) -> Pass {
        // Before the look for work: what is rung in between ends the sleep at once.
        let seen = self.bell.epoch();
        if self.blocked {
            self.sequencer.wake(now_ns());
        }
        match self.sequencer.turn() {
            Turn::Progress => {
                self.sequencer.end_stall();
                self.blocked = false;
                Pass::Again
            }
            Turn::Blocked(reason) => {
                self.sequencer.begin_stall(reason);
                self.blocked = true;
                Pass::Sleep { seen, reason }
            }
            Turn::Finished => Pass::Finished,
        }
    }

    /// Whether a sleep that began at epoch `seen` is over.
    pub fn is_rung_since(&self, seen: u64) -> bool {
        self.bell.epoch() != seen
    }

    /// The core's actors.
    pub fn sequencer(&mut self) -> &mut Sequencer {
        &mut self.sequencer
    }

    /// Runs on the calling thread until the core has finished, pinned to `pin` where given; returns what it
    /// recorded and which neurons it has in its cache, best first.
    pub(crate) fn run(mut self, pin: Option<usize>) -> (TraceLane, Vec<HotNeuron>) {
        self.bell.bind();
        if let Some(pin) = pin {
            // Best effort: a container may forbid it, and `doctor` says so.
            let _ = affinity::set_thread_affinity([pin]);
        }
        loop {
            match self.pass() {
                Pass::Again => {}
                Pass::Sleep { seen, reason } => {
                    self.bell.wait(seen, spin(reason), None);
                }
                Pass::Finished => return self.sequencer.into_record(),
            }
        }
    }
}
