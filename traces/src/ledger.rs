//! Exact accounting of a core's time: every nanosecond is charged to exactly one state.
//!
//! It is not sampled, nor summed from separately measured spans: one reading of the clock ends a state and begins the
//! next, so nothing is lost between them and the fractions add up to 1 by construction.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::record::Reason;

/// What a core's time is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It computes.
    Busy,
    /// It waits.
    Stall(Reason),
}

impl State {
    const COUNT: usize = 1 + Reason::ALL.len();

    fn index(self) -> usize {
        match self {
            Self::Busy => 0,
            Self::Stall(reason) => 1 + reason as usize,
        }
    }
}

/// A period in one state, as the ledger has charged it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// The state.
    pub state: State,
    /// Start in nanoseconds.
    pub start_ns: u64,
    /// End in nanoseconds.
    pub end_ns: u64,
}

/// Accounts of one compute core.
#[derive(Debug, Clone)]
pub struct Ledger {
    state: State,
    since_ns: u64,
    charged: Charged,
}

/// Nanoseconds per state, of one core or of several together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Charged {
    ns: [u64; State::COUNT], // by State::index
}

/// Shares of compute-core time; they add up to 1.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bubbles {
    /// Computing.
    pub compute_busy: f64,
    /// Waiting for Gate rows.
    pub wait_io_gate: f64,
    /// Waiting for Up rows and Down columns.
    pub wait_io_updown: f64,
    /// Waiting for other cores.
    pub wait_barrier: f64,
    /// Waiting for the prediction of active neurons.
    pub wait_pred: f64,
    /// Waiting for the device.
    pub wait_device: f64,
    /// Without a token to work on.
    pub idle: f64,
}

impl Ledger {
    /// Opens the accounts at `now_ns`, in the state [`Reason::Idle`].
    pub fn start(now_ns: u64) -> Self {
        Self {
            state: State::Stall(Reason::Idle),
            since_ns: now_ns,
            charged: Charged::default(),
        }
    }

    /// Charges the time since the last call to the previous state, and continues in `state`.
    ///
    /// Returns what was charged, so that the trace can record the very same interval. A clock that ran
    /// backwards charges nothing.
    #[inline]
    pub fn enter(&mut self, state: State, now_ns: u64) -> Interval {
        let interval = self.finish(now_ns);
        self.state = state;
        interval
    }

    /// Charges the time since the last call to the current state, which continues.
    #[inline]
    pub fn finish(&mut self, now_ns: u64) -> Interval {
        let now_ns = now_ns.max(self.since_ns);
        let interval = Interval {
            state: self.state,
            start_ns: self.since_ns,
            end_ns: now_ns,
        };
        self.charged.ns[self.state.index()] += now_ns - self.since_ns;
        self.since_ns = now_ns;
        interval
    }

    /// The current state.
    pub fn state(&self) -> State {
        self.state
    }

    /// What was charged so far, without the time since the last call.
    pub fn charged(&self) -> Charged {
        self.charged
    }
}

impl Charged {
    /// Adds `ns` to a state.
    pub fn charge(&mut self, state: State, ns: u64) {
        let account = &mut self.ns[state.index()];
        *account = account.saturating_add(ns);
    }

    /// Nanoseconds charged to a state.
    pub fn get(&self, state: State) -> u64 {
        self.ns[state.index()]
    }

    /// Nanoseconds charged altogether.
    pub fn total(&self) -> u64 {
        self.ns.iter().fold(0, |sum, &ns| sum.saturating_add(ns))
    }

    /// Adds another core's accounts, or the difference to an earlier reading.
    pub fn merge(&mut self, other: &Self) {
        for (ns, more) in self.ns.iter_mut().zip(other.ns) {
            *ns = ns.saturating_add(more);
        }
    }

    /// What was charged since `earlier`, a reading of the same accounts.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut ns = self.ns;
        for (now, before) in ns.iter_mut().zip(earlier.ns) {
            *now = now.saturating_sub(before);
        }
        Self { ns }
    }

    /// Shares of the total. Accounts without any time count as idle.
    pub fn fractions(&self) -> Bubbles {
        let total = self.total();
        let share = |state: State| match total {
            0 => f64::from(u8::from(state == State::Stall(Reason::Idle))),
            _ => self.get(state) as f64 / total as f64,
        };
        Bubbles {
            compute_busy: share(State::Busy),
            wait_io_gate: share(State::Stall(Reason::IoGate)),
            wait_io_updown: share(State::Stall(Reason::IoUpDown)),
            wait_barrier: share(State::Stall(Reason::Barrier)),
            wait_pred: share(State::Stall(Reason::Pred)),
            wait_device: share(State::Stall(Reason::Device)),
            idle: share(State::Stall(Reason::Idle)),
        }
    }
}

impl Bubbles {
    /// Shares of the time of several cores together.
    pub fn merged<'a>(cores: impl IntoIterator<Item = &'a Charged>) -> Self {
        let mut all = Charged::default();
        cores.into_iter().for_each(|core| all.merge(core));
        all.fractions()
    }

    /// Names and shares, in the order of the fields.
    pub fn named(&self) -> [(&'static str, f64); State::COUNT] {
        [
            ("compute_busy", self.compute_busy),
            ("wait_io_gate", self.wait_io_gate),
            ("wait_io_updown", self.wait_io_updown),
            ("wait_barrier", self.wait_barrier),
            ("wait_pred", self.wait_pred),
            ("wait_device", self.wait_device),
            ("idle", self.idle),
        ]
    }
}

impl fmt::Display for Bubbles {
    /// `compute_busy 81.2 %, wait_io_gate 3.0 %, …`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, share)) in self.named().into_iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {:.1} %", 100.0 * share)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bubbles: &Bubbles) -> f64 {
        bubbles.named().iter().map(|n| n.1).sum()
    }

    #[test]
    fn time_is_charged_to_the_state_that_was() {
        let mut ledger = Ledger::start(100);
        let idle = ledger.enter(State::Busy, 110);
        assert_eq!(idle.state, State::Stall(Reason::Idle));
        assert_eq!((idle.start_ns, idle.end_ns), (100, 110));
        ledger.enter(State::Stall(Reason::IoGate), 150);
        ledger.enter(State::Stall(Reason::Barrier), 180);
        ledger.enter(State::Busy, 170); // a clock that ran backwards
        ledger.finish(200);
        let b = ledger.charged().fractions();
        assert_eq!((b.idle, b.compute_busy), (0.1, 0.6));
        assert_eq!((b.wait_io_gate, b.wait_barrier), (0.3, 0.0));
        assert_eq!(ledger.charged().total(), 100);
        assert_eq!(ledger.state(), State::Busy);
    }

    #[test]
    fn every_state_has_its_own_account_and_name() {
        let mut charged = Charged::default();
        let states = std::iter::once(State::Busy).chain(Reason::ALL.map(State::Stall));
        let mut expected = Vec::new();
        for (i, state) in states.enumerate() {
            charged.charge(state, 1 << i);
            let name = match state {
                State::Busy => "compute_busy",
                State::Stall(reason) => reason.name(),
            };
            expected.push((name, f64::from(1 << i) / 127.0));
        }
        assert_eq!(charged.fractions().named().to_vec(), expected);
        let json = serde_json::to_value(charged.fractions()).expect("plain numbers");
        for (name, share) in &expected {
            assert_eq!(json[name], *share);
        }
        assert_eq!(json.as_object().map(|o| o.len()), Some(7));
    }

    #[test]
    fn merged_cores_add_up_to_one() {
        let mut seed = 12345_u64;
        let mut random = || {
            // Numerical Recipes' linear congruential generator.
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        let cores: Vec<Charged> = (0..7)
            .map(|_| {
                let mut now = random();
                let start = now;
                let mut ledger = Ledger::start(now);
                for _ in 0..200 {
                    now += random() % 100_000;
                    let state = Reason::ALL
                        .get((random() % 7) as usize)
                        .map_or(State::Busy, |&r| State::Stall(r));
                    ledger.enter(state, now);
                }
                assert_eq!(
                    ledger.charged().total(),
                    now - start,
                    "no nanosecond is lost"
                );
                ledger.charged()
            })
            .collect();
        let merged = Bubbles::merged(&cores);
        assert!((sum(&merged) - 1.0).abs() < 1e-12);
        let busy: u64 = cores.iter().map(|c| c.get(State::Busy)).sum();
        let total: u64 = cores.iter().map(Charged::total).sum();
        assert_eq!(merged.compute_busy, busy as f64 / total as f64);
    }

    #[test]
    fn no_time_at_all_is_idle() {
        let b = Bubbles::merged([]);
        assert_eq!((b.idle, sum(&b)), (1.0, 1.0));
    }

    #[test]
    fn a_later_reading_minus_an_earlier_one_is_what_lies_between() {
        let mut ledger = Ledger::start(0);
        ledger.enter(State::Busy, 5);
        let earlier = ledger.charged();
        ledger.finish(25);
        let between = ledger.charged().since(&earlier);
        assert_eq!((between.total(), between.get(State::Busy)), (20, 20));
    }
}
