//! A storage-fault simulator: decorates a driver with errors, short reads, delays and flipped bits.
//!
//! Everything follows from one seed and the order of calls, so that a failing run can be repeated. After TigerBeetle's
//! simulated storage: faults are drawn per read, and some parts of the medium are permanently broken.

use std::io;
use std::ops::Range;
use std::time::Duration;

use super::driver::Driver;
use super::op::{FaultKind, ReadDone, ReadFault, ReadOp};
use super::random::SplitMix;
use super::waker::Waker;

/// What goes wrong, and how often. Rates are per thousand reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Start of the random sequence.
    pub seed: u64,
    /// Reads that fail with `EIO`; a retry draws again.
    pub errors: u32,
    /// Reads that end early: the rest of the slot's range holds garbage.
    pub short_reads: u32,
    /// Reads that succeed with one bit flipped: silent corruption, for checksums to find.
    pub bit_flips: u32,
    /// Completions held back, so that later ones overtake them.
    pub delays: u32,
    /// Longest delay, in calls of `poll`.
    pub longest_delay: u32,
    /// Byte ranges of the file whose reads always fail with `EIO`.
    pub broken: Vec<Range<u64>>,
}

/// The faults injected so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultTally {
    /// `EIO` results, including those of broken parts.
    pub errors: u64,
    /// Short reads.
    pub short_reads: u64,
    /// Flipped bits.
    pub bit_flips: u64,
    /// Delayed completions.
    pub delays: u64,
}

/// A driver whose medium misbehaves as planned.
pub struct FaultyDriver<D> {
    inner: D,
    plan: FaultPlan,
    random: SplitMix,
    /// Completions held back, with the polls left.
    held: Vec<(u32, ReadDone)>,
    arrived: Vec<ReadDone>,
    tally: FaultTally,
}

impl<D: Driver> FaultyDriver<D> {
    /// Decorates `inner`.
    pub fn new(inner: D, plan: FaultPlan) -> Self {
        Self {
            random: SplitMix(plan.seed),
            held: Vec::with_capacity(inner.capacity()),
            arrived: Vec::with_capacity(inner.capacity()),
            tally: FaultTally::default(),
            inner,
            plan,
        }
    }

    /// The faults injected so far.
    pub fn tally(&self) -> FaultTally {
        self.tally
    }

    fn strikes(&mut self, rate: u32) -> bool {
        self.random.below(1000) < u64::from(rate)
    }

    /// Damages a read that really succeeded.
    fn damage(&mut self, done: &mut ReadDone) {
        let end = done.offset + u64::from(done.len);
        let broken = |b: &Range<u64>| b.start < end && done.offset < b.end;
        let fault = |kind| {
            Err(ReadFault {
                kind,
                offset: done.offset,
                len: done.len,
            })
        };
        let start = done.slot_offset as usize;
        if self.plan.broken.iter().any(broken) || self.strikes(self.plan.errors) {
            self.tally.errors += 1;
            done.result = fault(FaultKind::Os(libc::EIO));
            done.slot[start..start + done.len as usize].fill(0xdb);
        } else if self.strikes(self.plan.short_reads) {
            self.tally.short_reads += 1;
            let got = self.random.below(u64::from(done.len)) as u32;
            done.result = fault(FaultKind::ShortRead { got });
            done.slot[start + got as usize..start + done.len as usize].fill(0xdb);
        } else if self.strikes(self.plan.bit_flips) {
            self.tally.bit_flips += 1;
            let bit = self.random.below(u64::from(done.len) * 8);
            done.slot[start + (bit / 8) as usize] ^= 1 << (bit % 8);
        }
    }
}

impl<D: Driver> Driver for FaultyDriver<D> {
    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn submit(&mut self, op: ReadOp, now_ns: u64) -> Result<(), ReadOp> {
        if self.in_flight() >= self.capacity() {
            return Err(op);
        }
        self.inner.submit(op, now_ns)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<ReadDone>) -> usize {
        let before = out.len();
        for (polls, _) in &mut self.held {
            *polls = polls.saturating_sub(1);
        }
        out.extend(self.held.extract_if(.., |h| h.0 == 0).map(|(_, mut done)| {
            done.done_ns = now_ns;
            done
        }));
        let mut arrived = std::mem::take(&mut self.arrived);
        self.inner.poll(now_ns, &mut arrived);
        for mut done in arrived.drain(..) {
            if done.result.is_ok() {
                self.damage(&mut done);
            }
            let longest = u64::from(self.plan.longest_delay);
            if longest > 0 && self.strikes(self.plan.delays) {
                self.tally.delays += 1;
                let polls = 1 + self.random.below(longest) as u32;
                self.held.push((polls, done));
            } else {
                out.push(done);
            }
        }
        self.arrived = arrived;
        out.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.held.is_empty() {
            self.inner.wait(timeout)
        } else {
            // Delays are counted in polls: the next poll must come.
            Ok(())
        }
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }

    fn name(&self) -> &'static str {
        "faulty"
    }
}
