//! Whether the machine, or a control group that the process is in, runs short of memory, and how much of the neuron
//! cache is given up for it.

use std::time::{Duration, Instant};

use forebay_plans::cgroup::{Group, Version, groups};
use forebay_plans::kernel_files::KernelFiles;
use forebay_plans::limits::MemoryLimits;

/// Between two looks: they cost some hundred microseconds.
const INTERVAL: Duration = Duration::from_millis(250);
/// Percent of the last ten seconds in which something waited for memory, from which on the engine gives way.
const STALLED: f64 = 10.0;
/// A limit is near where less than this part of it is left.
const NEAR: u64 = 128;
/// The cache gives way by this part of what it can.
const STEPS: u64 = 8;
/// Looks without pressure after which it takes a step back: growing is slower than shrinking.
const CALM: u32 = 20;

/// What a look shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    /// Percent of time lost to waiting for memory, where the kernel counts it.
    stalled: Option<f64>,
    /// The least that is left below a limit, and that limit, in bytes.
    left: Option<(u64, u64)>,
}

/// Looks at the memory's pressure while tokens flow.
#[derive(Debug)]
pub(super) struct Watch {
    kernel: KernelFiles,
    groups: Vec<Group>,
    next: Instant,
    /// Bytes that can be given up.
    most: u64,
    /// Bytes given up.
    spared: u64,
    calm: u32,
}

impl Watch {
    /// For an engine that can do with `most` bytes less.
    pub fn new(most: u64) -> Self {
        let kernel = KernelFiles::live();
        Self {
            groups: groups(&kernel, "memory").unwrap_or_default(),
            kernel,
            next: Instant::now(),
            most,
            spared: 0,
            calm: 0,
        }
    }

    /// Bytes of the budget to do without for now. Looks only every quarter of a second.
    pub fn spared(&mut self) -> u64 {
        if self.most > 0 && Instant::now() >= self.next {
            self.decide(self.look());
            self.next = Instant::now() + INTERVAL;
        }
        self.spared
    }

    fn look(&self) -> Seen {
        let own = self.groups.iter().filter(|g| g.version == Version::V2);
        let own = own.map(|g| g.dir.join("memory.pressure"));
        let machine = self.kernel.proc_path("pressure/memory");
        let mut files = own.chain([machine]);
        let stalled = files.find_map(|file| stalled(&std::fs::read_to_string(file).ok()?));
        let limits = MemoryLimits::read_from(&self.kernel).ok();
        let left = limits.and_then(|limits| {
            let groups = limits.groups.iter();
            let groups = groups.map(|g| (g.available(), g.limit_bytes));
            let all = groups.chain([(limits.available_bytes, limits.total_bytes)]);
            all.min_by_key(|&(left, limit)| left.saturating_sub(limit / NEAR))
        });
        Seen { stalled, left }
    }

    fn decide(&mut self, seen: Seen) {
        let step = self.most.div_ceil(STEPS);
        let near = seen.left.is_some_and(|(left, limit)| left < limit / NEAR);
        if near || seen.stalled.is_some_and(|share| share >= STALLED) {
            self.calm = 0;
            self.spared = (self.spared + step).min(self.most);
            return;
        }
        self.calm += 1;
        let roomy = |(left, limit): (u64, u64)| left >= limit / NEAR + 2 * step;
        if self.calm >= CALM && seen.left.is_none_or(roomy) {
            self.calm = 0;
            self.spared = self.spared.saturating_sub(step);
        }
    }
}

/// `avg10` of the line `some` of a pressure file.
fn stalled(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let average = some.split(' ').find_map(|f| f.strip_prefix("avg10="))?;
    average.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn watch() -> Watch {
        Watch::new(80 * MIB)
    }

    #[test]
    fn pressure_files_are_read() {
        let text = "some avg10=12.50 avg60=1.00 avg300=0.10 total=9\nfull avg10=3.00 avg60=0 avg300=0 total=1\n";
        assert_eq!(stalled(text), Some(12.5));
        assert_eq!(stalled("full avg10=3.00\n"), None);
        assert_eq!(stalled(""), None);
    }

    #[test]
    fn it_gives_way_by_steps_and_takes_back_slowly() {
        let mut watch = watch();
        let tight = Seen {
            stalled: None,
            left: Some((MIB, 1024 * MIB)),
        };
        for n in 1..=12 {
            watch.decide(tight);
            assert_eq!(watch.spared, (n * 10 * MIB).min(80 * MIB));
        }
        let calm = Seen {
            stalled: Some(0.0),
            left: Some((500 * MIB, 1024 * MIB)),
        };
        for _ in 0..CALM {
            assert_eq!(watch.spared, 80 * MIB);
            watch.decide(calm);
        }
        assert_eq!(watch.spared, 70 * MIB);
        // What is left would be used up again by a step.
        let narrow = Seen {
            left: Some((20 * MIB, 1024 * MIB)),
            ..calm
        };
        (0..10 * CALM).for_each(|_| watch.decide(narrow));
        assert_eq!(watch.spared, 70 * MIB);
        watch.decide(Seen {
            stalled: Some(30.0),
            ..calm
        });
        assert_eq!(watch.spared, 80 * MIB);
    }

    #[test]
    fn without_anything_to_look_at_nothing_is_given_up() {
        let mut watch = watch();
        (0..100).for_each(|_| watch.decide(Seen::default()));
        assert_eq!(watch.spared, 0);
        assert_eq!(Watch::new(0).spared(), 0);
    }
}
