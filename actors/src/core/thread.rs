//! A compute core on its thread: pinned, and asleep when there is nothing to do.

use forebay_models::bundle::HotNeuron;
use forebay_plans::pinning::pin;
use forebay_queues::doorbell::Spin;
use forebay_stages::contract::Turn;
use forebay_traces::lane::TraceLane;
use forebay_traces::record::Reason;

use super::Core;

/// How long a core watches its bell before it parks. Another core at an exchange needs only microseconds more, and
/// parking costs it a wake-up; a read takes hundreds of microseconds, and the I/O actor may need the CPU to issue it.
fn spin(reason: Reason) -> Spin {
    match reason {
        Reason::Barrier | Reason::Pred => Spin::looks(4000),
        Reason::IoGate | Reason::IoUpDown | Reason::Idle => Spin::looks(100),
    }
}

impl Core {
    /// Runs on the calling thread until the core has finished, pinned to `core` if given; returns its trace and the
    /// neurons in its cache, best first.
    pub(crate) fn run(mut self, core: Option<usize>) -> (TraceLane, Vec<HotNeuron>) {
        self.bell.bind();
        pin(core);
        loop {
            match self.turn() {
                Turn::Progress => {}
                Turn::Blocked(reason) => {
                    self.bell.wait(self.seen, spin(reason), None);
                }
                Turn::Finished => return self.into_record(),
            }
        }
    }
}
