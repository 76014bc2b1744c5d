//! How much of what the plan gives a device it computes of a generated token: as much as is fastest, found by trying.
//! Others may use the device, the CPU or the memory at the same time, of which no plan knows. No bit depends on it.

use forebay_plans::placement::PARTS;

/// Tokens between two trials, and those that count.
const CALM: usize = 32;
/// Tokens of a trial; the first one does not count.
const TRIAL: usize = 9;
/// Tokens whose median counts.
const COUNTED: usize = TRIAL - 1;
/// A trial must be faster by this factor.
const GAIN: f64 = 0.97;
/// The first trial, and then one in so many, is of nothing at all, or of everything: where the device does not pay at
/// all, a sixteenth less gains too little to be seen.
const LEAP: u32 = 16;

/// The device's part of its places, in parts of [`PARTS`].
#[derive(Clone, Debug)]
pub(super) struct DevicePart {
    /// Whether it changes.
    learns: bool,
    part: u8,
    /// The part that is tried, if one is.
    trial: Option<u8>,
    /// Whether the next small trial has more.
    more: bool,
    /// Trials so far.
    trials: u32,
    /// Of the tokens since the last change, ns.
    times: Vec<u64>,
    /// Median with the part in force, ns.
    usual_ns: u64,
}

impl DevicePart {
    /// All that the plan says; if it `learns`, for the time being.
    pub fn new(learns: bool) -> Self {
        Self {
            learns,
            part: PARTS,
            trial: None,
            more: false,
            trials: 0,
            times: Vec::with_capacity(CALM),
            usual_ns: 0,
        }
    }

    /// The part in the next step, of a generated token or of a prompt.
    pub fn get(&self, n_tokens: usize) -> u8 {
        match n_tokens {
            1 => self.trial.unwrap_or(self.part),
            _ => PARTS,
        }
    }

    /// A step has taken so long.
    pub fn learn(&mut self, n_tokens: usize, ns: u64) {
        if !self.learns || n_tokens != 1 {
            return;
        }
        self.times.push(ns);
        let wanted = if self.trial.is_some() { TRIAL } else { CALM };
        if self.times.len() < wanted {
            return;
        }
        let median = self.median();
        self.times.clear();
        match self.trial.take() {
            None => {
                self.usual_ns = median;
                self.try_next();
            }
            Some(part) if (median as f64) < GAIN * self.usual_ns as f64 => {
                (self.part, self.usual_ns) = (part, median);
                self.try_next();
            }
            Some(_) => self.more = !self.more,
        }
    }

    fn try_next(&mut self) {
        let leaps = self.trials.is_multiple_of(LEAP);
        self.trials = self.trials.wrapping_add(1);
        if leaps {
            self.trial = Some(if self.part == 0 { PARTS } else { 0 });
            return;
        }
        self.more = match self.part {
            0 => true,
            PARTS => false,
            _ => self.more,
        };
        let next = match self.more {
            true => self.part + 1,
            false => self.part - 1,
        };
        self.trial = Some(next);
    }

    /// Of the last tokens.
    fn median(&mut self) -> u64 {
        let first = self.times.len() - COUNTED;
        let last = &mut self.times[first..];
        last.sort_unstable();
        last[COUNTED / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generates tokens that take `ns` by the device's share; every now and then one takes ten times as long.
    fn settle(part: &mut DevicePart, ns: impl Fn(f64) -> f64, tokens: usize) -> u8 {
        for token in 0..tokens {
            let share = f64::from(part.get(1)) / f64::from(PARTS);
            let often = if token % 11 == 3 { 10.0 } else { 1.0 };
            part.learn(1, (often * ns(share)) as u64);
            part.learn(128, 5);
        }
        assert_eq!(part.get(128), PARTS);
        part.part
    }

    /// On a machine on which the device takes `device` ns for all that it may have, and the cores `cpu`.
    fn beside(device: f64, cpu: f64) -> impl Fn(f64) -> f64 {
        move |share| 1e6 + (share * device).max((1.0 - share) * cpu)
    }

    #[test]
    fn it_goes_where_tokens_are_fastest_and_follows_the_load() {
        let mut part = DevicePart::new(true);
        assert_eq!(settle(&mut part, beside(1e6, 9e7), 400), PARTS);
        // Somebody else uses the device.
        let less = settle(&mut part, beside(9e7, 9e7), 2000);
        assert!((7..=9).contains(&less), "{less}");
        assert!(settle(&mut part, beside(9e9, 9e6), 2000) <= 1);
        assert!(settle(&mut part, beside(1e6, 9e7), 2000) >= PARTS - 1);
    }

    #[test]
    fn a_device_that_does_not_pay_is_soon_left_out() {
        let mut part = DevicePart::new(true);
        // A tenth more with all of it, for every token that it has any part of: each sixteenth alone shows nothing.
        assert_eq!(
            settle(&mut part, |share| 1e7 + share * 1e6, CALM + TRIAL),
            0
        );
        assert_eq!(settle(&mut part, |share| 1e7 + share * 1e6, 2000), 0);
    }

    #[test]
    fn it_stays_where_nothing_is_learned() {
        let mut part = DevicePart::new(false);
        assert_eq!(settle(&mut part, beside(9e9, 1e6), 500), PARTS);
    }
}
