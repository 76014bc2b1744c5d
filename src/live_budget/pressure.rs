//! Whether the machine, or a control group of the process, is short of memory, and how much memory is released for it.

use std::time::{Duration, Instant};

use forebay_plans::cgroup::{Group, Version, groups};
use forebay_plans::kernel_files::KernelFiles;
use forebay_plans::limits::MemoryLimits;
use forebay_plans::process::rss_now;

/// Time between two checks, or more if a check is slow: checks take at most 1/`SHARE` of the time.
const INTERVAL: Duration = Duration::from_millis(10);
const SHARE: u32 = 50;
/// Other processes are expected to take memory at the same rate for at least this time: a step may take this long, or a
/// busy machine may delay the engine.
const AHEAD: Duration = Duration::from_millis(100);
/// Stalls are counted over this time.
const WINDOW: Duration = Duration::from_millis(250);
/// Part of that time stalled on memory from which the engine releases memory.
const STALLED: f64 = 0.1;
/// The machine's stalls count if less than 1/`SHORT` of its memory is left: else they are those of another group.
const SHORT: u64 = 8;
/// 1/`RESERVE` of a limit is kept free, for what others take between two checks.
const RESERVE: u64 = 64;
/// But never less than this, two huge pages.
const LEAST_RESERVE: u64 = 4 << 20;
/// The engine releases at least 1/`STEPS` of what it can release.
const STEPS: u64 = 8;
/// After this time without pressure it takes memory back: growing is slower than shrinking.
const CALM: Duration = Duration::from_secs(2);

/// What a check finds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    /// Part of the time stalled on memory, if the kernel counts it and a window is over.
    stalled: Option<f64>,
    /// Bytes left below the nearest limit, beyond the reserve; negative if the reserve is touched.
    room: Option<i64>,
    /// What this process has in memory.
    own: i64,
}

/// Watches memory pressure while the engine runs.
#[derive(Debug)]
pub(crate) struct Watch {
    kernel: KernelFiles,
    groups: Vec<Group>,
    next: Instant,
    /// When the current window for stalls began, and the count then, microseconds.
    window: Option<(Instant, u64)>,
    /// When the last check was, the room then, and what this process had.
    last: Option<(Instant, i64, i64)>,
    /// Bytes that can be released.
    most: u64,
    /// Bytes released.
    spared: u64,
    /// When there last was pressure, or memory was taken back.
    calm_since: Instant,
}

impl Watch {
    /// For an engine that can release `most` bytes.
    pub fn new(most: u64) -> Self {
        let kernel = KernelFiles::live();
        let now = Instant::now();
        Self {
            groups: groups(&kernel, "memory").unwrap_or_default(),
            kernel,
            next: now,
            window: None,
            last: None,
            most,
            spared: 0,
            calm_since: now,
        }
    }

    /// Bytes of the budget to do without for now. Checks only every few milliseconds.
    pub fn spared(&mut self) -> u64 {
        let now = Instant::now();
        if self.most > 0 && now >= self.next {
            let seen = self.look(now);
            self.decide(now, seen);
            let end = Instant::now();
            self.next = end + INTERVAL.max((end - now) * SHARE);
        }
        self.spared
    }

    fn look(&mut self, now: Instant) -> Seen {
        let Ok(limits) = MemoryLimits::read_from(&self.kernel) else {
            return Seen::default();
        };
        let groups = limits.groups.iter();
        let groups = groups.map(|g| room(g.available(), g.limit_bytes));
        let machine = room(limits.available_bytes, limits.total_bytes);
        let short = limits.available_bytes < limits.total_bytes / SHORT;
        Seen {
            stalled: self.stalled(now, short),
            room: groups.chain([machine]).min(),
            own: rss_now().map_or(0, |bytes| bytes as i64),
        }
    }

    /// The part of the last window that was stalled on memory, once the window is over: as counted by the innermost
    /// group that does, else by the machine, if it is `short` of memory.
    fn stalled(&mut self, now: Instant, short: bool) -> Option<f64> {
        if self.window.is_some_and(|(start, _)| now < start + WINDOW) {
            return None;
        }
        let own = self.groups.iter().filter(|g| g.version == Version::V2);
        let own = own.map(|g| g.dir.join("memory.pressure"));
        let machine = short.then(|| self.kernel.proc_path("pressure/memory"));
        let mut files = own.chain(machine);
        let total = files.find_map(|file| stalled_us(&std::fs::read_to_string(file).ok()?));
        // Without a count now there is nothing to compare with later.
        let before = std::mem::replace(&mut self.window, total.map(|total| (now, total)));
        let ((start, before), total) = before.zip(total)?;
        let lost = Duration::from_micros(total.saturating_sub(before));
        Some(lost.as_secs_f64() / (now - start).as_secs_f64())
    }

    fn decide(&mut self, now: Instant, seen: Seen) {
        let step = self.most.div_ceil(STEPS);
        let this = seen.room.map(|room| (now, room, seen.own));
        let last = std::mem::replace(&mut self.last, this);
        let short = seen.room.map_or(0, |room| {
            let coming = last.map_or(0.0, |(at, before, own)| {
                // A cache that fills is no neighbour: it ends at the budget.
                let filled = (seen.own - own).max(0);
                let taken = (before - room - filled).max(0) as f64;
                let past = (now - at).max(INTERVAL);
                taken * (AHEAD.as_secs_f64() / past.as_secs_f64()).max(1.0)
            });
            (coming as i64).saturating_sub(room).max(0) as u64
        });
        if short > 0 || seen.stalled.is_some_and(|share| share >= STALLED) {
            self.calm_since = now;
            self.spared = (self.spared + short.max(step)).min(self.most);
            return;
        }
        if self.spared == 0 || now < self.calm_since + CALM {
            return;
        }
        // Half of what is free: the cache fills only as neurons are wanted, so the half taken back last may not be in
        // use yet.
        let back = seen.room.map_or(step, |room| room.max(0) as u64 / 2);
        if back >= step.min(self.spared) {
            self.calm_since = now;
            self.spared = self.spared.saturating_sub(back);
        }
    }
}

/// What is left of `left` bytes below `limit` if the reserve is kept.
fn room(left: u64, limit: u64) -> i64 {
    let reserve = (limit / RESERVE).max(LEAST_RESERVE).min(limit / 8);
    left as i64 - reserve as i64
}

/// `total` of the line `some` of a pressure file, microseconds.
fn stalled_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split(' ').find_map(|f| f.strip_prefix("total="))?;
    total.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn watch() -> Watch {
        Watch::new(80 * MIB)
    }

    fn with_room(mib: i64) -> Seen {
        Seen {
            stalled: None,
            room: Some(mib << 20),
            own: 0,
        }
    }

    #[test]
    fn pressure_files_are_read() {
        let text = "some avg10=12.50 avg60=1.00 avg300=0.10 total=9\nfull avg10=3.00 avg60=0 avg300=0 total=1\n";
        assert_eq!(stalled_us(text), Some(9));
        assert_eq!(stalled_us("full avg10=3.00 total=1\n"), None);
        assert_eq!(stalled_us(""), None);
    }

    #[test]
    fn a_part_of_each_limit_is_kept_free() {
        assert_eq!(room(100 << 30, 128 << 30), 98 << 30);
        assert_eq!(room(3 << 20, 64 << 20), -(1 << 20));
        assert_eq!(room(1 << 20, 8 << 20), 0);
        assert_eq!(room(0, 0), 0);
    }

    #[test]
    fn what_the_engine_takes_itself_is_not_coming() {
        let (mut watch, start) = (watch(), Instant::now());
        let mut after = |checks: u32, mib: i64, own: i64| {
            let own = own << 20;
            watch.decide(
                start + AHEAD * checks,
                Seen {
                    own,
                    ..with_room(mib)
                },
            );
            watch.spared / MIB
        };
        assert_eq!(after(0, 60, 100), 0);
        assert_eq!(after(1, 20, 140), 0, "a cache has filled");
        assert_eq!(after(2, 10, 140), 0, "10 MiB more are coming, and there");
        assert_eq!(after(3, 3, 142), 10, "5 MiB more are coming, 3 are there");
    }

    #[test]
    fn it_gives_what_is_short_and_what_will_be_soon() {
        let mut watch = watch();
        let mut now = Instant::now();
        let mut after = |time: Duration, mib: i64| {
            now += time;
            watch.decide(now, with_room(mib));
            watch.spared / MIB
        };
        assert_eq!(after(AHEAD, 60), 0);
        assert_eq!(after(AHEAD, 35), 0, "10 MiB will still be left");
        assert_eq!(after(AHEAD, 10), 15, "25 MiB more are coming, 10 are left");
        assert_eq!(after(AHEAD, 10), 15, "that has stopped");
        assert_eq!(after(AHEAD / 2, 2), 29, "16 MiB in that time, 2 are left");
        assert_eq!(after(AHEAD, 2), 29);
        assert_eq!(
            after(AHEAD, -1),
            39,
            "3 MiB more, 1 missing, but no less than an eighth"
        );
        assert_eq!(after(AHEAD, -99), 80, "no more than it has");
    }

    #[test]
    fn it_gives_way_to_stalls() {
        let mut watch = watch();
        let stalled = |share| Seen {
            stalled: Some(share),
            ..Seen::default()
        };
        watch.decide(Instant::now(), stalled(0.09));
        assert_eq!(watch.spared, 0);
        watch.decide(Instant::now(), stalled(0.5));
        assert_eq!(watch.spared, 10 * MIB);
    }

    #[test]
    fn it_takes_back_half_of_what_is_free_once_it_is_calm() {
        let mut watch = watch();
        let start = Instant::now();
        watch.decide(start, with_room(-80));
        assert_eq!(watch.spared, 80 * MIB);
        watch.decide(start + CALM / 2, with_room(100));
        assert_eq!(watch.spared, 80 * MIB, "that may be for a moment only");
        watch.decide(start + CALM, with_room(100));
        assert_eq!(watch.spared, 30 * MIB);
        watch.decide(start + CALM, with_room(100));
        assert_eq!(
            watch.spared,
            30 * MIB,
            "what was taken back is to be filled first"
        );
        // What is left would be used up again.
        watch.last = None;
        watch.decide(start + 9 * CALM, with_room(19));
        assert_eq!(watch.spared, 30 * MIB);
        watch.decide(start + 10 * CALM, with_room(100));
        assert_eq!(watch.spared, 0);
    }

    #[test]
    fn without_anything_to_look_at_nothing_is_given_up() {
        let mut watch = watch();
        (0..100).for_each(|_| watch.decide(Instant::now(), Seen::default()));
        assert_eq!(watch.spared, 0);
        assert_eq!(Watch::new(0).spared(), 0);
    }
}
