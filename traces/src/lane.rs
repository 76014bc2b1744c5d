//! Preallocated ring of records, owned by one thread.
//!
//! A `tracing` span costs microseconds; a store into a ring costs no more than any store. Formatting is done after the
//! run.

use crate::record::{Kind, Reason, Record};

/// The newest records of one thread, or of one place in the I/O queue.
#[derive(Debug, Clone)]
pub struct TraceLane {
    name: String,
    ring: Box<[Record]>, // [capacity]
    /// Where the next record goes; 0 when disabled.
    next: usize,
    /// Records pushed so far.
    pushed: u64,
}

impl TraceLane {
    /// A trace lane shown as `name` that keeps the newest `capacity` records; 0 switches it off.
    ///
    /// The memory is written here, so that there is no page fault later.
    pub fn new(name: impl Into<String>, capacity: usize) -> Self {
        // Not all zero, so the pages really are written.
        let empty = Record::new(Kind::Stall(Reason::Idle), u64::MAX, u64::MAX);
        Self {
            name: name.into(),
            ring: vec![empty; capacity].into(),
            next: 0,
            pushed: 0,
        }
    }

    /// Keeps `record`, replacing the oldest one if the lane is full.
    #[inline]
    pub fn push(&mut self, record: Record) {
        // Out of range only if the lane is off: one branch for both checks.
        if let Some(slot) = self.ring.get_mut(self.next) {
            *slot = record;
            self.pushed += 1;
            self.next += 1;
            if self.next == self.ring.len() {
                self.next = 0;
            }
        }
    }

    /// Whether records are kept. Check this before reading a clock only for the record.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        !self.ring.is_empty()
    }

    /// The lane's name in the trace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of records kept.
    pub fn len(&self) -> usize {
        self.ring.len() - self.unused()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// Number of records lost because the ring was full.
    pub fn overwritten(&self) -> u64 {
        self.pushed.saturating_sub(self.ring.len() as u64)
    }

    /// The records kept, in the order they were pushed.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        let (newer, older) = self.ring.split_at(self.next);
        let older = if self.unused() > 0 { &[] } else { older };
        older.iter().chain(newer)
    }

    /// Forgets all records.
    pub fn clear(&mut self) {
        self.next = 0;
        self.pushed = 0;
    }

    fn unused(&self) -> usize {
        usize::try_from(self.pushed).map_or(0, |n| self.ring.len().saturating_sub(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(lane: &TraceLane) -> Vec<u64> {
        lane.iter().map(|r| r.start_ns).collect()
    }

    fn push(lane: &mut TraceLane, i: u64) {
        lane.push(Record::stall(Reason::Barrier, i, i + 1));
    }

    #[test]
    fn keeps_the_newest_in_order_and_counts_the_lost() {
        for n in 0..12_u64 {
            let mut lane = TraceLane::new("core 0", 4);
            (0..n).for_each(|i| push(&mut lane, i));
            let kept: Vec<u64> = (n.saturating_sub(4)..n).collect();
            assert_eq!(starts(&lane), kept, "after {n}");
            assert_eq!(lane.len(), kept.len());
            assert_eq!(lane.overwritten(), n.saturating_sub(4));
            assert_eq!(lane.is_empty(), n == 0);
        }
    }

    #[test]
    fn a_disabled_lane_keeps_nothing_and_costs_no_memory() {
        let mut lane = TraceLane::new("off", 0);
        push(&mut lane, 1);
        assert!(!lane.is_enabled() && lane.is_empty());
        assert_eq!((lane.len(), lane.overwritten(), lane.ring.len()), (0, 0, 0));
        assert_eq!(lane.iter().count(), 0);
    }

    #[test]
    fn clear_starts_afresh() {
        let mut lane = TraceLane::new("core 0", 3);
        (0..5).for_each(|i| push(&mut lane, i));
        lane.clear();
        assert_eq!((lane.len(), lane.overwritten()), (0, 0));
        push(&mut lane, 9);
        assert_eq!(starts(&lane), [9]);
    }
}
