//! `forebay bench --trace-cost`: what recording a trace costs, and what it costs when it is off.

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use anyhow::Context;
use forebay::Engine;
use forebay::bench::BenchTest;
use forebay_traces::lane::TraceLane;
use forebay_traces::record::{Record, Stage};
use serde::Serialize;

use super::output::warn_of_loss;
use super::run::TRACE_RECORDS;

/// How many records are made to measure the cost of one.
const RECORDS: u64 = 1 << 20;

/// Speeds with and without a trace, measured alternately: a machine that becomes slower then affects both.
#[derive(Debug, Serialize)]
pub struct TraceCost {
    test: String,
    /// Tokens per second without a trace.
    off: Vec<f64>,
    /// The same again, to see how far two equal series are apart.
    off_again: Vec<f64>,
    /// With a trace.
    on: Vec<f64>,
    /// Time per token of `off_again` divided by that of `off`, by medians: the noise.
    off_ratio: f64,
    /// Time per token of `on` divided by that of both others together, by medians.
    on_ratio: f64,
    /// The same by the fastest runs: other programs can only make a run slower.
    on_ratio_fastest: f64,
    /// Records per token on the core that has the most.
    records_per_token: f64,
    /// What making one record costs without a trace, nanoseconds.
    record_ns_off: f64,
    /// The same with a trace.
    record_ns_on: f64,
    /// The part of a token's time that its records take, without a trace and with one: free of other programs' noise.
    records_share_off: f64,
    records_share_on: f64,
}

impl TraceCost {
    /// Measures `repetitions` rounds, of which there are some, of `test`; `start` makes an engine with room for this many records.
    pub fn measure(
        test: BenchTest,
        repetitions: usize,
        start: impl Fn(usize) -> anyhow::Result<Engine>,
    ) -> anyhow::Result<Self> {
        let mut records = 0;
        let mut speed = |capacity| -> anyhow::Result<f64> {
            let engine = start(capacity)?;
            let reports = engine.bench(&[test], 1, |_, _, _| {})?;
            warn_of_loss(engine.device_problem());
            let lanes = engine.finish();
            let most = lanes.iter().map(|l| l.len() as u64 + l.overwritten());
            records = records.max(most.max().unwrap_or_default());
            let report = reports.first().context("the engine measured nothing")?;
            Ok(report.tokens_per_second.median)
        };
        let (mut off, mut off_again, mut on) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..repetitions {
            // The first one of a round may find a cooler machine, so the order rotates.
            for i in 0..3 {
                match (i + round) % 3 {
                    0 => off.push(speed(0)?),
                    1 => on.push(speed(TRACE_RECORDS)?),
                    _ => off_again.push(speed(0)?),
                }
            }
        }
        let both = [&off[..], &off_again].concat();
        // A measurement runs all tokens twice: the first time to warm up.
        let records_per_token = records as f64 / (2 * test.tokens) as f64;
        let (record_ns_off, record_ns_on) = (record_ns(0), record_ns(TRACE_RECORDS));
        let share = |ns: f64| records_per_token * ns * 1e-9 * median(&both);
        Ok(Self {
            test: test.to_string(),
            off_ratio: median(&off) / median(&off_again),
            on_ratio: median(&both) / median(&on),
            on_ratio_fastest: fastest(&both) / fastest(&on),
            records_per_token,
            record_ns_off,
            record_ns_on,
            records_share_off: share(record_ns_off),
            records_share_on: share(record_ns_on),
            off,
            off_again,
            on,
        })
    }
}

/// Nanoseconds to make a record and put it into a trace lane of this capacity.
fn record_ns(capacity: usize) -> f64 {
    let mut lane = TraceLane::new("", capacity);
    let start = Instant::now();
    for ns in 0..RECORDS {
        lane.push(black_box(Record::stage(Stage::Gc, 0, ns, ns + 1)));
    }
    let elapsed = start.elapsed();
    black_box(&lane);
    elapsed.as_nanos() as f64 / RECORDS as f64
}

fn fastest(speeds: &[f64]) -> f64 {
    speeds.iter().copied().fold(f64::MIN_POSITIVE, f64::max)
}

/// The middle value, or the mean of the two in the middle.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let middle = sorted
        .get(n.saturating_sub(1) / 2..=n / 2)
        .unwrap_or_default();
    middle.iter().sum::<f64>() / middle.len().max(1) as f64
}

impl fmt::Display for TraceCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ratio: f64| 100.0 * (ratio - 1.0);
        for (name, speeds) in [
            ("without a trace", &self.off),
            ("without, again", &self.off_again),
            ("with a trace", &self.on),
        ] {
            let (median, n) = (median(speeds), speeds.len());
            writeln!(
                f,
                "{} {name:16} {median:8.2} tokens/s, median of {n}",
                self.test
            )?;
        }
        writeln!(
            f,
            "a trace makes a token {:+.2}% longer by medians, {:+.2}% by the fastest runs; two series \
             without one differ by {:+.2}%",
            percent(self.on_ratio),
            percent(self.on_ratio_fastest),
            percent(self.off_ratio)
        )?;
        write!(
            f,
            "{:.0} records per token and core: with a trace {:.2} ns each, {:.3}% of the token's time; without \
             {:.2} ns, {:.3}%",
            self.records_per_token,
            self.record_ns_on,
            100.0 * self.records_share_on,
            self.record_ns_off,
            100.0 * self.records_share_off
        )
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians_of_even_and_odd_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
    }
}
