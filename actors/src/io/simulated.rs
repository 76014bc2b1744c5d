//! A disk that exists only in memory and in virtual time: reads take as long as a seed decides, finish in any order,
//! are interrupted and cut short, and may fail. With it, one thread drives the real I/O actor.
//!
//! Nothing here waits. [`Driver::wait`] announces the sleep by the protocol of the real drivers, and the actor's caller
//! asks [`SimulatedDriver::is_awake`] whether it would be over: so a lost wake-up is lost here too.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::driver::Driver;
use super::op::{self, ALIGNMENT, FaultKind, ReadDone, ReadOp};
use super::progress::{Progress, Step};
use super::random::SplitMix;
use super::table::Table;
use super::waker::{Bell, Waker};

/// How the disk behaves. Rates are per thousand reads, or attempts at them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weather {
    /// Time that a read takes, ns.
    pub latency_ns: Range<u64>,
    /// Reads that take `stall_ns` longer.
    pub stalls: u32,
    /// How much longer, ns.
    pub stall_ns: u64,
    /// Attempts that the system interrupts (`EINTR`, `EAGAIN`).
    pub interruptions: u32,
    /// Attempts that read only a part of the request.
    pub partial: u32,
    /// Reads that fail for a transient reason; the next one into the same buffer succeeds.
    pub passing: u32,
    /// Reads that fail for a transient reason, however often they are tried.
    pub errors: u32,
    /// Reads that end with `ETIMEDOUT`, after `stall_ns`.
    pub timeouts: u32,
    /// Reads that succeed with one bit flipped.
    pub flips: u32,
    /// Byte ranges of the file in which every byte is misread.
    pub damaged: Vec<Range<u64>>,
    /// Byte ranges of the file whose reads always fail with `EIO`.
    pub broken: Vec<Range<u64>>,
    /// Where the file ends, if it was cut off after it was opened.
    pub end: Option<u64>,
    /// The driver itself is broken: it cannot start reads any more.
    pub broken_driver: bool,
}

impl Weather {
    /// Every read succeeds at once.
    pub fn calm() -> Self {
        Self {
            latency_ns: 0..1,
            stalls: 0,
            stall_ns: 0,
            interruptions: 0,
            partial: 0,
            passing: 0,
            errors: 0,
            timeouts: 0,
            flips: 0,
            damaged: Vec::new(),
            broken: Vec::new(),
            end: None,
            broken_driver: false,
        }
    }
}

#[derive(Debug)]
struct Disk {
    bytes: Arc<[u8]>,
    weather: Weather,
    random: SplitMix,
    /// Addresses of buffers whose last read failed for a transient reason.
    failed_once: HashSet<usize>,
    reads: u64,
}

/// A handle on the disk behind a [`SimulatedDriver`], to change its behaviour while reads are in flight.
#[derive(Debug, Clone)]
pub struct Medium(Arc<Mutex<Disk>>);

impl Medium {
    /// A disk with one file of these `bytes`.
    pub fn new(bytes: Arc<[u8]>, seed: u64, weather: Weather) -> Self {
        Self(Arc::new(Mutex::new(Disk {
            bytes,
            weather,
            random: SplitMix(seed),
            failed_once: HashSet::new(),
            reads: 0,
        })))
    }

    /// Changes the behaviour, also for reads in flight.
    pub fn set_weather(&self, weather: Weather) {
        self.0.lock().weather = weather;
    }

    /// Reads done so far.
    pub fn reads(&self) -> u64 {
        self.0.lock().reads
    }
}

impl Disk {
    fn strikes(&mut self, rate: u32) -> bool {
        rate > 0 && self.random.below(1000) < u64::from(rate)
    }

    /// How long the next read takes.
    fn duration(&mut self) -> u64 {
        let Range { start, end } = self.weather.latency_ns;
        let latency = start + self.random.below(end.saturating_sub(start));
        match self.strikes(self.weather.stalls) {
            true => latency + self.weather.stall_ns,
            false => latency,
        }
    }

    /// Why a read fails, if it does.
    fn failure(&mut self, op: &ReadOp) -> Option<FaultKind> {
        const PASSING: [i32; 5] = [
            libc::EIO,
            libc::EBUSY,
            libc::ENOMEM,
            libc::ECANCELED,
            libc::ETIMEDOUT,
        ];
        let hit = touches(&self.weather.broken, op.offset, op.len);
        if hit || self.strikes(self.weather.errors) {
            return Some(FaultKind::Os(libc::EIO));
        }
        if self.strikes(self.weather.timeouts) {
            return Some(FaultKind::Os(libc::ETIMEDOUT));
        }
        let buffer = op.slot.as_ptr() as usize;
        if self.failed_once.remove(&buffer) || !self.strikes(self.weather.passing) {
            return None;
        }
        self.failed_once.insert(buffer);
        let which = self.random.below(PASSING.len() as u64) as usize;
        Some(FaultKind::Os(PASSING[which]))
    }

    /// Makes one attempt at a read: bytes read into `out`, or `errno`.
    fn attempt(&mut self, offset: u64, out: &mut [u8]) -> Result<u32, i32> {
        if self.strikes(self.weather.interruptions) {
            let interrupted = [libc::EINTR, libc::EAGAIN];
            return Err(interrupted[self.random.below(2) as usize]);
        }
        let end = self.weather.end.unwrap_or(u64::MAX);
        let end = end.min(self.bytes.len() as u64);
        let there = end.saturating_sub(offset).min(out.len() as u64);
        let got = match self.strikes(self.weather.partial) {
            // Systems stop at a page boundary at the earliest: less than that means the end of the
            // file.
            true => self
                .random
                .below(there)
                .max(there.min(u64::from(ALIGNMENT))),
            false => there,
        };
        let (from, got) = (offset as usize, got as usize);
        out[..got].copy_from_slice(&self.bytes[from..from + got]);
        for range in &self.weather.damaged {
            let inside = range.start.max(offset)..range.end.min(offset + got as u64);
            for at in inside {
                out[(at - offset) as usize] ^= 0x10;
            }
        }
        Ok(got as u32)
    }

    fn read(&mut self, op: &mut ReadOp, wanted: u32) -> Result<(), FaultKind> {
        self.reads += 1;
        if let Some(kind) = self.failure(op) {
            return Err(kind);
        }
        let range = op::slot_range(op)?;
        let mut progress = Progress::new(wanted);
        let result = loop {
            let from = progress.resume_at();
            let target = &mut op.slot[range.start + from as usize..range.end];
            let attempt = self.attempt(op.offset + u64::from(from), target);
            if let Step::Finished(result) = progress.step(attempt) {
                break result;
            }
        };
        result?;
        op::zero_tail(op, wanted);
        if self.strikes(self.weather.flips) {
            let bit = self.random.below(u64::from(wanted) * 8);
            op.slot[range.start + (bit / 8) as usize] ^= 1 << (bit % 8);
        }
        Ok(())
    }
}

fn touches(ranges: &[Range<u64>], offset: u64, len: u32) -> bool {
    let end = offset + u64::from(len);
    ranges.iter().any(|r| r.start < end && offset < r.end)
}

#[derive(Debug)]
struct Flying {
    op: ReadOp,
    wanted: Result<u32, FaultKind>,
    started_ns: u64,
    due_ns: u64,
}

/// The driver of a [`Medium`].
#[derive(Debug)]
pub struct SimulatedDriver {
    medium: Medium,
    flying: Table<Flying>,
    bell: Bell,
    asleep: bool,
}

impl SimulatedDriver {
    /// A driver with at most `depth` reads in flight.
    ///
    /// # Errors
    /// The process may open no more file descriptors.
    pub fn new(medium: Medium, depth: u16) -> io::Result<Self> {
        Ok(Self {
            medium,
            flying: Table::new(depth),
            bell: Bell::new()?,
            asleep: false,
        })
    }

    /// When the next read finishes, if any is in flight.
    pub fn next_due(&self) -> Option<u64> {
        self.flying.iter().map(|(_, f)| f.due_ns).min()
    }

    /// Whether a sleep, if one was announced, would be over at this time: a read has finished, or the waker was used.
    pub fn is_awake(&self, now_ns: u64) -> bool {
        !self.asleep || self.bell.is_called() || self.next_due().is_some_and(|due| due <= now_ns)
    }
}

impl Driver for SimulatedDriver {
    fn capacity(&self) -> usize {
        self.flying.capacity()
    }

    fn submit(&mut self, mut op: ReadOp, now_ns: u64) -> Result<(), ReadOp> {
        let mut disk = self.medium.0.lock();
        let wanted = op::slot_range(&op)
            .and_then(|_| op::wanted(op.offset, op.len, disk.bytes.len() as u64));
        if let Ok(range) = op::slot_range(&op) {
            // Using a buffer before its read is finished should be noticed.
            op.slot[range].fill(0xdb);
        }
        let flying = Flying {
            op,
            wanted,
            started_ns: now_ns,
            due_ns: now_ns + disk.duration(),
        };
        self.flying.insert(flying).map(|_| ()).map_err(|f| f.op)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.medium.0.lock().weather.broken_driver {
            true => Err(io::Error::other("the simulated driver is broken")),
            false => Ok(()),
        }
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<ReadDone>) -> usize {
        if std::mem::take(&mut self.asleep) {
            self.bell.resume();
        }
        let before = out.len();
        let mut disk = self.medium.0.lock();
        let due = self.flying.iter().filter(|(_, f)| f.due_ns <= now_ns);
        let mut due: Vec<u16> = due.map(|(place, _)| place).collect();
        while !due.is_empty() {
            let place = due.swap_remove(disk.random.below(due.len() as u64) as usize);
            let Some(mut done) = self.flying.remove(place) else {
                continue;
            };
            let result = done
                .wanted
                .and_then(|wanted| disk.read(&mut done.op, wanted));
            let late = disk.weather.stall_ns;
            if result == Err(FaultKind::Os(libc::ETIMEDOUT)) && done.due_ns < done.started_ns + late
            {
                // A timeout takes time: the same read comes again later, and times out then.
                done.due_ns = done.started_ns + late;
                done.wanted = Err(FaultKind::Os(libc::ETIMEDOUT));
                drop(self.flying.insert(done));
                continue;
            }
            let times = (done.started_ns, now_ns);
            out.push(ReadDone::of(done.op, result, times, place));
        }
        out.len() - before
    }

    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        self.asleep = self.bell.prepare_wait();
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.bell.waker()
    }

    fn in_flight(&self) -> usize {
        self.flying.len()
    }

    fn name(&self) -> &'static str {
        "simulated"
    }
}
