//! How much of its attention a core leaves to the device: as much as lets both finish at the same time, learned from
//! what either took. No bit depends on it.

/// How fast the part follows what was measured.
const PACE: f64 = 0.3;
/// A smaller part is none.
const LEAST: f64 = 1.0 / 64.0;
/// Work that was not worth a job is tried again once there is so many times as much.
const MORE: f64 = 2.0;

/// The device's part of a core's attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    part: f64,
    /// The part that is tried first, and whether it stays what it is.
    first: f64,
    learns: bool,
    /// The least work, in scores, for which the device is asked again.
    least: f64,
}

impl Balance {
    /// Begins with a part, and keeps it unless it `learns`.
    pub fn new(first: f64, learns: bool) -> Self {
        Self {
            part: first,
            first,
            learns,
            least: 0.0,
        }
    }

    /// How many of the last tokens of a step the device gets, if each token's work is what `work` says.
    pub fn tokens(&self, work: impl DoubleEndedIterator<Item = f64> + Clone) -> usize {
        let all: f64 = work.clone().sum();
        if all < self.least {
            return 0;
        }
        let wanted = self.part() * all;
        let mut given = 0.0;
        let fits = |work: &f64| {
            // A token goes where its middle is.
            let takes = given + 0.5 * work <= wanted;
            given += work;
            takes
        };
        work.rev().take_while(fits).count()
    }

    fn part(&self) -> f64 {
        match self.part {
            0.0 => self.first,
            part => part,
        }
    }

    /// The core took `cpu_ns` for its part of `all` scores, the device `device_ns` for `given` of them.
    pub fn learn(&mut self, (all, given): (f64, f64), (cpu_ns, device_ns): (u64, u64)) {
        if !self.learns || given <= 0.0 {
            return;
        }
        let (cpu, device) = (
            cpu_ns as f64 / (all - given).max(1.0),
            device_ns as f64 / given,
        );
        let fair = match given < all {
            true => cpu / (cpu + device).max(f64::MIN_POSITIVE),
            // All was the device's: nothing is known of the core, which may have some again.
            false => 0.9,
        };
        let old = self.part();
        self.part = (old + PACE * (fair - old)).clamp(0.0, 1.0);
        // Where the job itself takes longer than all of it here, the part shrinks and shrinks.
        self.least = 0.0;
        if self.part < LEAST {
            (self.part, self.least) = (0.0, MORE * all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine: ns per score of a core and of the device, and ns of a job.
    fn settle(balance: &mut Balance, (cpu, device, job): (f64, f64, f64), tokens: usize) -> usize {
        let mut given = 0;
        for _ in 0..40 {
            let work = (0..tokens).map(|t| 1000.0 + t as f64);
            given = balance.tokens(work.clone());
            let all: f64 = work.clone().sum();
            let its: f64 = work.rev().take(given).sum();
            let times = ((all - its) * cpu, job + its * device);
            balance.learn((all, its), (times.0 as u64, times.1 as u64));
        }
        given
    }

    #[test]
    fn both_finish_at_the_same_time() {
        for (machine, part) in [
            ((1.0, 1.0, 0.0), 0.5),
            ((3.0, 1.0, 0.0), 0.75),
            ((1.0, 4.0, 0.0), 0.2),
        ] {
            let mut balance = Balance::new(0.5, true);
            let given = settle(&mut balance, machine, 256) as f64 / 256.0;
            assert!((given - part).abs() < 0.06, "{given} for {machine:?}");
        }
    }

    #[test]
    fn a_device_that_does_not_pay_is_asked_again_when_there_is_more() {
        let mut balance = Balance::new(0.5, true);
        // A job takes longer than all on the core.
        assert_eq!(settle(&mut balance, (1.0, 0.1, 1e6), 256), 0);
        let more = (0..2560).map(|_| 1000.0);
        assert!(balance.tokens(more) > 0);
    }

    #[test]
    fn a_fixed_part_stays() {
        for (part, tokens) in [(0.0, 0), (0.3, 3), (1.0, 10)] {
            let mut balance = Balance::new(part, false);
            balance.learn((10.0, 5.0), (1, 1_000_000));
            assert_eq!(balance.tokens([1.0; 10].into_iter()), tokens);
        }
    }
}
