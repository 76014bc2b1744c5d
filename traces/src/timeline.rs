//! A core's trace lane as a partition of its time: every nanosecond belongs to one slice, or to
//! none.

use crate::events::{Lane, Slice, What};
use crate::record::Reason;

/// A period of a core's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The innermost slice around it, as an index of [`Timeline::slices`]; `None` between slices.
    pub slice: Option<usize>,
    /// Start in nanoseconds.
    pub start_ns: u64,
    /// End in nanoseconds, after the start.
    pub end_ns: u64,
}

/// A compute core's slices and the partition of its time that they make.
#[derive(Debug, Clone)]
pub struct Timeline<'a> {
    /// Stages and stalls by start, the longer first. The idle time before the first work is omitted, as in the
    /// statistics: no request had been made yet.
    pub slices: Vec<&'a Slice>,
    /// From the first slice's start to the last end, without gaps, by time.
    pub segments: Vec<Segment>,
    /// Slices that overlap others without lying inside them; the later one loses the common time.
    pub overlaps: u64,
}

impl<'a> Timeline<'a> {
    /// `None` for a trace lane without work and stalls.
    pub fn of(lane: &'a Lane) -> Option<Self> {
        let ours = || lane.slices.iter().filter(|s| s.what != What::Read);
        let mut slices: Vec<&Slice> = ours()
            .skip_while(|s| s.what == What::Stall(Reason::Idle))
            .collect();
        if slices.is_empty() {
            slices = ours().collect();
        }
        let start = slices.first()?.start_ns;
        let mut timeline = Self {
            slices,
            segments: Vec::new(),
            overlaps: 0,
        };
        timeline.cut(start);
        Some(timeline)
    }

    fn cut(&mut self, start: u64) {
        let mut open: Vec<(usize, u64)> = Vec::new(); // indices and ends, outermost first
        let mut to = start;
        for i in 0..self.slices.len() {
            let (start_ns, end_ns) = (self.slices[i].start_ns, self.slices[i].end_ns);
            while let Some((outer, end)) = open.pop_if(|(_, end)| *end <= start_ns) {
                self.reach(&mut to, end, Some(outer));
            }
            self.reach(&mut to, start_ns, open.last().map(|o| o.0));
            while let Some((outer, end)) = open.pop_if(|(_, end)| *end < end_ns) {
                self.overlaps += 1;
                self.reach(&mut to, end, Some(outer));
            }
            open.push((i, end_ns));
        }
        while let Some((outer, end)) = open.pop() {
            self.reach(&mut to, end, Some(outer));
        }
    }

    /// Assigns the time up to `end` to `slice`, unless it is already assigned.
    fn reach(&mut self, to: &mut u64, end: u64, slice: Option<usize>) {
        if end > *to {
            self.segments.push(Segment {
                slice,
                start_ns: *to,
                end_ns: end,
            });
            *to = end;
        }
    }

    /// The segment that ends at `ns` or contains it; at a border, the earlier one.
    pub fn before(&self, ns: u64) -> Option<Segment> {
        let behind = self.segments.partition_point(|s| s.start_ns < ns);
        self.segments[..behind].last().copied()
    }

    /// What a segment's slice represents.
    pub fn what(&self, segment: &Segment) -> Option<What> {
        segment.slice.map(|i| self.slices[i].what)
    }

    /// The first products that begin at `ns` or later.
    pub fn next_stage(&self, ns: u64) -> Option<&'a Slice> {
        let from = self.slices.partition_point(|s| s.start_ns < ns);
        let mut behind = self.slices[from..].iter();
        behind.find(|s| s.computes()).copied()
    }
}
