//! What limits a run, in one sentence, and what to do about it.

use std::cmp::Reverse;

use crate::ledger::State;
use crate::record::Reason;
use crate::report::Report;

/// The sentence and the advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headline {
    /// What most of the cores' time went into.
    pub finding: String,
    /// What would reduce it, and where to look.
    pub advice: String,
}

/// A cause with this part of all waiting for reads is named alone.
const MOST: f64 = 0.8;

impl Headline {
    /// For a whole trace: the largest of computing, reads, other cores, prediction and idleness.
    pub fn of(report: &Report) -> Self {
        let b = report.bubbles();
        let reads = b.wait_io_gate + b.wait_io_updown;
        let concerns = [
            (b.compute_busy, State::Busy),
            (reads, State::Stall(Reason::IoGate)),
            (b.wait_barrier, State::Stall(Reason::Barrier)),
            (b.wait_pred, State::Stall(Reason::Pred)),
            (b.wait_device, State::Stall(Reason::Device)),
            (b.idle, State::Stall(Reason::Idle)),
        ];
        let largest = concerns.into_iter().max_by(|x, y| x.0.total_cmp(&y.0));
        let (share, state) = largest.unwrap_or((0.0, State::Busy));
        let percent = format!("{:.0}% of core time", 100.0 * share);
        match state {
            State::Busy => Self::busy(report, &percent),
            State::Stall(Reason::IoGate | Reason::IoUpDown) => Self::reads(report, &percent),
            State::Stall(reason) => Self::waiting(&percent, reason),
        }
    }

    fn busy(report: &Report, percent: &str) -> Self {
        let busiest = report.stages.iter().max_by_key(|(_, time)| time.busy_ns);
        let most = busiest.map_or(String::new(), |(stage, _)| format!(", most of it {stage}"));
        Self {
            finding: format!("{percent} is computing{most}"),
            advice: "The cores are the limit, not the disk: more cores, a smaller format or fewer \
                     computed neurons would make it faster; more memory would not."
                .into(),
        }
    }

    fn reads(report: &Report, percent: &str) -> Self {
        let all: u64 = report.cores.iter().map(|c| c.charged.total()).sum();
        let mut waits = waits_for(report);
        waits.sort_by_key(|(_, ns)| Reverse(*ns));
        let total: u64 = waits.iter().map(|(_, ns)| ns).sum();
        let what = match &waits[..] {
            [(what, ns), ..] if *ns as f64 >= MOST * total as f64 => format!("reads of {what}"),
            [(first, x), (second, y), ..] => {
                let percent = |ns: &u64| 100.0 * *ns as f64 / all.max(1) as f64;
                let (x, y) = (percent(x), percent(y));
                format!("reads: {x:.0}% for {first}, {y:.0}% for {second}")
            }
            _ => "reads".into(),
        };
        let speed = report.reads.bytes as f64 / report.reads.busy_ns.max(1) as f64;
        Self {
            finding: format!("{percent} waits for {what}"),
            advice: format!(
                "The disk is the limit: {speed:.2} GB/s while any read was in flight. More memory means fewer reads; \
                 compare the speed with what forebay doctor measures for the disk."
            ),
        }
    }

    fn waiting(percent: &str, reason: Reason) -> Self {
        let (finding, advice) = match reason {
            Reason::Barrier => (
                "spent by cores waiting for each other",
                "The work is divided unevenly, or one core waits for the disk while the others are done: \
                 look for the core that is not waiting.",
            ),
            Reason::Pred => (
                "spent waiting for predictions",
                "The predictor decides which neurons to read: until then, no read can be started.",
            ),
            Reason::Device => (
                "spent waiting for the device",
                "The device's share is too large for it: forebay doctor measures it beside the cores.",
            ),
            _ => (
                "spent without a token to work on",
                "Sampling, embedding, or the reader of the tokens is slower than the cores.",
            ),
        };
        Self {
            finding: format!("{percent} is {finding}"),
            advice: advice.into(),
        }
    }
}

/// Which reads were waited for, and how long by all cores.
fn waits_for(report: &Report) -> Vec<(&'static str, u64)> {
    let mut waits: Vec<(&str, u64)> = Vec::new();
    let mut add = |what, ns| match waits.iter_mut().find(|(name, _)| *name == what) {
        Some((_, sum)) => *sum += ns,
        None => waits.push((what, ns)),
    };
    for (stage, time) in &report.stages {
        let what = match stage.as_str() {
            "qkv" | "attention" | "output" => "attention matrices",
            "head" => "the output head",
            "pred" => "the predictor",
            _ => "Gate and whole FFN clusters",
        };
        add(what, time.waited.get(State::Stall(Reason::IoGate)));
        add("Up/Down", time.waited.get(State::Stall(Reason::IoUpDown)));
    }
    waits
}
