//! A compute core: a pinned thread that gives its actor turns, sleeps when there is nothing to do, and
//! accounts for every nanosecond.

use forebay_queues::doorbell::{Bell, Spin};
use forebay_traces::clock::now_ns;
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

/// Runs a sequencer on the calling thread until it has finished, pinned to `core` where given.
pub(crate) fn run(mut sequencer: Sequencer, bell: &Bell, core: Option<usize>) -> Sequencer {
    bell.bind();
    if let Some(core) = core {
        // Best effort: a container may forbid it, and `doctor` says so.
        let _ = affinity::set_thread_affinity([core]);
    }
    let mut blocked = true;
    loop {
        let seen = bell.epoch();
        if blocked {
            sequencer.wake(now_ns());
        }
        match sequencer.turn() {
            Turn::Progress => {
                sequencer.end_stall();
                blocked = false;
            }
            Turn::Blocked(reason) => {
                sequencer.begin_stall(reason);
                blocked = true;
                bell.wait(seen, spin(reason), None);
            }
            Turn::Finished => return sequencer,
        }
    }
}
