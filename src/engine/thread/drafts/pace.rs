//! How long steps take by their number of tokens, and how often what is expected comes: from what was seen, most of all
//! lately.

use super::lookup::LONGEST;
use forebay_plans::preload::MOST_DRAFTED;

/// What each drafted token is taken to add to a step's time before that was measured, as a part of a plain step.
const GROWTH: f64 = 0.25;
/// A running mean follows as if it were that of this many latest values.
const LATEST_STEPS: u32 = 8;
const LATEST_TOKENS: u32 = 32;
/// So many plain steps tell how long one takes.
const SETTLED: u32 = 4;
/// A time that was not measured for this many steps is forgotten: one bad value must not keep a length from ever being
/// tried again.
const REMEMBERED: u64 = 256;

/// A running mean.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    pub value: f64,
    /// Values so far, or how many the first one counts for.
    pub n: u32,
}

impl Mean {
    pub fn add(&mut self, value: f64, latest: u32) {
        self.n = (self.n + 1).min(latest);
        self.value += (value - self.value) / f64::from(self.n);
    }
}

/// The times of steps.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// In nanoseconds, by the number of drafted tokens, `[1 + MOST_DRAFTED]`, and the number of the latest such step.
    times: [(Mean, u64); 1 + MOST_DRAFTED],
    /// Steps so far.
    steps: u64,
}

impl Pace {
    /// A step with this many drafted tokens has taken `ns`.
    pub fn add(&mut self, drafted: usize, ns: u64) {
        self.steps += 1;
        // Something else may have held it up.
        let most = self
            .expected()
            .map_or(f64::INFINITY, |times| 2.0 * times[drafted]);
        let (mean, latest) = &mut self.times[drafted];
        mean.add((ns as f64).min(most), LATEST_STEPS);
        *latest = self.steps;
        // The plain steps' time stays: nothing can be decided without.
        for (mean, latest) in &mut self.times[1..] {
            if self.steps - *latest > REMEMBERED {
                *mean = Mean::default();
            }
        }
    }

    /// Whether the time of plain steps is known: the first ones after a prompt take longer.
    pub fn is_settled(&self) -> bool {
        self.times[0].0.n >= SETTLED
    }

    /// Steps since the last plain one, and since the last one with a draft.
    pub fn since(&self) -> (u64, u64) {
        let (_, plain) = self.times[0];
        let drafted = self.times[1..].iter().map(|&(_, latest)| latest).max();
        (self.steps - plain, self.steps - drafted.unwrap_or(0))
    }

    /// Expected times by the number of drafted tokens: on straight lines between those that are known, and on from the
    /// last of these. `None` before the first plain step.
    pub fn expected(&self) -> Option<[f64; 1 + MOST_DRAFTED]> {
        let known = |i: usize| (self.times[i].0.n > 0).then_some(self.times[i].0.value);
        let plain = known(0)?;
        let mut expected = [plain; 1 + MOST_DRAFTED];
        let (mut at, mut time) = (0, plain);
        for next in 1..=MOST_DRAFTED {
            let Some(value) = known(next) else { continue };
            let slope = (value - time) / (next - at) as f64;
            draw(&mut expected[at + 1..=next], time, slope);
            (at, time) = (next, value);
        }
        let slope = match at {
            0 => GROWTH * plain,
            _ => ((time - plain) / at as f64).max(0.0),
        };
        draw(&mut expected[at + 1..], time, slope);
        Some(expected)
    }
}

/// How many tokens to draft: as many as give the most tokens per nanosecond, which are the second result. `times` are
/// those of steps by the number of drafted tokens, drafting one takes `token_ns`, and `right` tells for each token of
/// the draft how often it is right, all before it having been.
pub(super) fn best_length(
    times: &[f64; 1 + MOST_DRAFTED],
    token_ns: f64,
    right: impl Iterator<Item = f64>,
) -> (usize, f64) {
    let (mut best, mut speed) = (0, 1.0 / times[0]);
    let (mut all_right, mut tokens) = (1.0, 1.0);
    for ((drafted, step), right) in (1..).zip(&times[1..]).zip(right) {
        all_right *= right;
        tokens += all_right;
        let time = step + f64::from(drafted) * token_ns;
        if tokens / time > speed {
            (best, speed) = (drafted as usize, tokens / time);
        }
    }
    (best, speed)
}

/// Draws a line that begins at `start`, one place before the first value.
fn draw(values: &mut [f64], start: f64, slope: f64) {
    for (i, value) in (1..).zip(values) {
        *value = start + slope * f64::from(i);
    }
}

/// How often the next token is the expected one, by the length of the run before it.
#[derive(Debug)]
pub(super) struct Hits([Mean; 1 + LONGEST]);

impl Hits {
    /// Before anything was seen, long runs are trusted more.
    pub fn new() -> Self {
        Self(std::array::from_fn(|run| Mean {
            value: run as f64 / (run + 4) as f64,
            n: 2,
        }))
    }

    /// The share after a run of `run` tokens.
    pub fn share(&self, run: usize) -> f64 {
        self.0[run.min(LONGEST)].value
    }

    /// After a run of `run` tokens, the expected token did or did not come.
    pub fn add(&mut self, run: usize, came: bool) {
        self.0[run.min(LONGEST)].add(f64::from(u8::from(came)), LATEST_TOKENS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lie_on_lines_between_known_ones() {
        let mut pace = Pace::default();
        assert_eq!(pace.expected(), None);
        pace.add(3, 50);
        assert_eq!(pace.expected(), None, "no plain step");
        let mut pace = Pace::default();
        pace.add(0, 100);
        let guessed = pace.expected().expect("a plain step");
        assert_eq!((guessed[0], guessed[1], guessed[4]), (100.0, 125.0, 200.0));
        pace.add(4, 140);
        pace.add(6, 200);
        let known = pace.expected().expect("a plain step");
        assert_eq!(
            known[..8],
            [
                100.0,
                110.0,
                120.0,
                130.0,
                140.0,
                170.0,
                200.0,
                200.0 + 100.0 / 6.0
            ]
        );
        // Drafts that seem to make steps shorter are not taken to do so without end.
        pace.add(6, 0);
        pace.add(6, 0);
        let known = pace.expected().expect("a plain step");
        assert!(known[7] >= known[6]);
    }

    #[test]
    fn a_step_that_was_held_up_counts_for_twice_what_was_expected() {
        let mut pace = Pace::default();
        pace.add(0, 100);
        pace.add(4, 1_000_000);
        assert_eq!(pace.expected().expect("a plain step")[4], 400.0);
        pace.add(4, 100);
        assert_eq!(pace.expected().expect("a plain step")[4], 250.0);
        pace.add(0, 1_000_000);
        assert_eq!(pace.expected().expect("a plain step")[0], 150.0);
    }

    #[test]
    fn what_was_not_measured_for_long_is_forgotten() {
        let mut pace = Pace::default();
        pace.add(5, 9_000_000);
        for _ in 0..REMEMBERED {
            pace.add(0, 100);
        }
        assert!(pace.expected().expect("a plain step")[5] > 1e6);
        assert_eq!(pace.since(), (0, REMEMBERED));
        pace.add(0, 100);
        assert_eq!(pace.expected().expect("a plain step")[4], 200.0);
        for _ in 0..2 * REMEMBERED {
            pace.add(1, 110);
        }
        let expected = pace.expected().expect("the plain steps' time stays");
        assert_eq!(expected[..2], [100.0, 110.0]);
    }

    #[test]
    fn means_follow_the_latest_values() {
        let mut pace = Pace::default();
        pace.add(0, 1000);
        for _ in 0..40 {
            pace.add(0, 100);
        }
        let plain = pace.expected().expect("a plain step")[0];
        assert!((plain - 100.0).abs() < 10.0, "{plain}");
        let mut hits = Hits::new();
        assert!(hits.share(2) < hits.share(8) && hits.share(8) < hits.share(99));
        for _ in 0..100 {
            hits.add(2, true);
            hits.add(40, false);
        }
        assert!(hits.share(2) > 0.95 && hits.share(LONGEST) < 0.05);
    }
}
