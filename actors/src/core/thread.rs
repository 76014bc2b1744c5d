//! A compute core on its thread: pinned, and asleep when there is nothing to do.

use forebay_plans::pinning::pin;
use forebay_queues::doorbell::{Spin, Woke};
use forebay_stages::contract::Turn;
use forebay_traces::clock::now_ns;
use forebay_traces::record::Reason;

use super::Core;

/// After so many waits in a row at which watching was in vain, a core no longer watches for long. In prompts, some
/// waits are longer than a long watch although the other core runs: with 2 in a row, two cores read those of SmolLM2 at
/// 0.79 of the speed.
const VAIN: u32 = 32;
/// Then it does so once in so many waits, to notice that the machine is less busy.
const TRIAL: u32 = 16;

/// How long a core watches its bell before it parks. Another core at an exchange needs only microseconds more, and
/// parking costs it a wake-up; a read takes hundreds of microseconds, and the I/O actor may need the CPU to issue it.
///
/// On a busy machine the other core may not even be running. Then watching only keeps it from that, so what matters is
/// whether watching paid the last times.
#[derive(Debug, Default)]
struct Watch {
    /// Whether the device actor has a CPU to itself: then its answer, too, is watched for.
    spare: bool,
    /// Waits since a long one was not in vain.
    vain: u32,
}

impl Watch {
    const LONG: Spin = Spin::looks(4000);
    const SHORT: Spin = Spin::looks(100);
    /// For a device's answer: a job of a prompt takes a millisecond, and a wake-up up to a fifth of that.
    const DEVICE: Spin = Spin::looks(40_000);

    fn spin(&self, reason: Reason) -> Spin {
        match reason {
            Reason::Barrier | Reason::Pred if self.vain < VAIN => Self::LONG,
            Reason::Barrier | Reason::Pred if self.vain.is_multiple_of(TRIAL) => Self::LONG,
            Reason::Device if self.spare => Self::DEVICE,
            _ => Self::SHORT,
        }
    }

    /// What came of a wait.
    fn learn(&mut self, reason: Reason, spin: Spin, woke: Woke) {
        match (reason, woke) {
            (Reason::IoGate | Reason::IoUpDown | Reason::Device | Reason::Idle, _) => {}
            (_, Woke::Spinning) if spin == Self::LONG => self.vain = 0,
            _ => self.vain = self.vain.wrapping_add(1),
        }
    }
}

/// The I/O actor's thread has no CPU to itself if every CPU has a core: it would start reads when the system next looks
/// whom to run, milliseconds later. A core that has just given it reads for which it will wait lets it run at once.
///
/// If others want the CPU, too, the system lets them run for milliseconds. Then the core passes for a long time, so
/// that it loses about a hundredth of its time. (If it always gave way, two cores beside a busy thread took 3.7 times
/// as long.)
#[derive(Debug, Default)]
struct GivesWay {
    /// Whether the I/O actor has a CPU to itself.
    spare: bool,
    /// Reads are to be given so many times more before the next time.
    pass: u64,
}

impl GivesWay {
    /// The I/O actor needs less to start all reads of a layer.
    const LONG_NS: u64 = 500_000;
    /// How often it passes for each microsecond that was lost.
    const PASSES_PER_US: f64 = 0.3;
    /// At most: a process that was stopped in between has lost nothing to others.
    const MAX_PASSES: u64 = 10_000;

    /// Whether to let it run now that it has been given reads.
    fn is_due(&mut self) -> bool {
        let due = !self.spare && self.pass == 0;
        self.pass = self.pass.saturating_sub(1);
        due
    }

    /// How long the core was off its CPU.
    fn learn(&mut self, ns: u64) {
        if ns > Self::LONG_NS {
            let pass = ns as f64 / 1e3 * Self::PASSES_PER_US;
            self.pass = (pass as u64).min(Self::MAX_PASSES);
        }
    }
}

/// A core waits for a device in so many slices: a process that was stopped for a while has lost one of them, not its
/// device.
const SLICES: u32 = 8;

impl Core {
    /// Runs on the calling thread until the core has finished, pinned to `core` if given; `spare` tells whether there
    /// are more CPUs than cores.
    pub(crate) fn run(&mut self, core: Option<usize>, spare: bool) {
        self.bell.bind();
        pin(core);
        let mut watch = Watch { spare, vain: 0 };
        let mut gives_way = GivesWay { spare, pass: 0 };
        let mut slices = 0;
        loop {
            let turn = self.turn();
            if self.io.take_gave_urgent() && gives_way.is_due() {
                let start = now_ns();
                std::thread::yield_now();
                gives_way.learn(now_ns() - start);
            }
            match turn {
                Turn::Progress => slices = 0,
                Turn::Blocked(reason) => {
                    let spin = watch.spin(reason);
                    let patience = self.patience(reason);
                    let woke = self
                        .bell
                        .wait(self.seen, spin, patience.map(|all| all / SLICES));
                    watch.learn(reason, spin, woke);
                    if let (Woke::TimedOut, Some(slept)) = (woke, patience) {
                        slices += 1;
                        if slices == SLICES {
                            self.lose_patience(slept);
                            slices = 0;
                        }
                    }
                }
                Turn::Finished => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `n` waits are long, if the bell is rung within the time of a long one or not.
    fn long_waits(watch: &mut Watch, n: usize, rung: Woke) -> usize {
        let mut long = 0;
        for _ in 0..n {
            let spin = watch.spin(Reason::Barrier);
            long += usize::from(spin == Watch::LONG);
            let woke = if spin == Watch::LONG {
                rung
            } else {
                Woke::Parked
            };
            watch.learn(Reason::Barrier, spin, woke);
        }
        long
    }

    #[test]
    fn a_core_that_watches_in_vain_tries_again_now_and_then() {
        let mut watch = Watch::default();
        assert_eq!(long_waits(&mut watch, 100, Woke::Spinning), 100);
        let vain = VAIN as usize;
        let long = long_waits(&mut watch, vain + 100, Woke::Parked);
        assert_eq!(long, vain + 100usize.div_ceil(TRIAL as usize));
        let soon = long_waits(&mut watch, TRIAL as usize, Woke::Spinning);
        assert!(soon > 0);
        assert_eq!(long_waits(&mut watch, 100, Woke::Spinning), 100);
    }

    #[test]
    fn a_core_that_gave_way_to_others_passes() {
        let mut beside = GivesWay::default();
        for _ in 0..100 {
            assert!(beside.is_due());
            beside.learn(80_000);
        }
        // Somebody else had the CPU for 3 ms.
        beside.learn(3_000_000);
        assert_eq!((0..1000).take_while(|_| !beside.is_due()).count(), 900);
        assert!(beside.is_due());
        let mut alone = GivesWay {
            spare: true,
            pass: 0,
        };
        assert!(!alone.is_due());
    }

    #[test]
    fn waits_for_reads_are_short_and_teach_nothing() {
        let mut watch = Watch::default();
        for _ in 0..100 {
            let spin = watch.spin(Reason::IoGate);
            assert_eq!(spin, Watch::SHORT);
            watch.learn(Reason::IoGate, spin, Woke::Parked);
        }
        assert_eq!(watch.spin(Reason::Barrier), Watch::LONG);
    }
}
