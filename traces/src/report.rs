//! Where the cores' time went, and why: bubbles per core and stage, from a trace file.
//!
//! As in the [`crate::ledger`], a core's time is a partition: a core that does not stall is busy. Busy time outside
//! every stage (dispatch, bookkeeping) is shown as such. A stall is attributed to the stage that runs next on that
//! core, since that is the one that waited; if that stage's slice has an arrow from a read, the read is the cause.

use std::collections::BTreeMap;
use std::path::Path;

use crate::events::{Args, Lane, ReadError, Slice, Trace, What};
use crate::ledger::{Bubbles, Charged, State};
use crate::path::{CriticalPath, Tracer};
use crate::record::Reason;
use crate::timeline::Timeline;
use crate::tokens::{at_percentile, tokens};

/// How many of the longest bubbles are listed.
const LONGEST: usize = 10;

/// A stage's work, on one core or on all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageTime {
    /// Number of slices.
    pub slices: u64,
    /// Time worked, without stalls and inner slices.
    pub busy_ns: u64,
    /// Time stalled right before its slices, by cause.
    pub waited: Charged,
    /// Clusters worked on.
    pub clusters: u64,
    /// Bytes worked on.
    pub bytes: u64,
    /// Slices whose clusters were in memory.
    pub hits: u64,
    /// Slices whose clusters had to be read.
    pub misses: u64,
}

/// One compute core.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CoreReport {
    /// Name of its trace lane.
    pub name: String,
    /// The whole time from the first work to the last slice, by state.
    pub charged: Charged,
    /// Busy time outside every stage.
    pub outside_ns: u64,
    /// By name of the stage.
    pub stages: BTreeMap<String, StageTime>,
    /// Records lost because the ring was full: the report covers what was kept.
    pub overwritten: u64,
    /// Slices that overlap others without lying inside them; their common time is counted once.
    pub overlaps: u64,
}

/// All reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadReport {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Time with at least one read in flight.
    pub busy_ns: u64,
    /// The sum of the reads' durations: divided by `busy_ns`, the mean depth.
    pub latency_ns: u64,
}

/// The read that a stage had to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Name of the read's trace lane.
    pub lane: String,
    /// Start of the read.
    pub start_ns: u64,
    /// End of the read.
    pub end_ns: u64,
    /// What was read.
    pub args: Args,
}

/// One stall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bubble {
    /// Name of the core's trace lane.
    pub core: String,
    /// Why it stalled.
    pub reason: Reason,
    /// Start of the stall.
    pub start_ns: u64,
    /// Length of the stall.
    pub ns: u64,
    /// The stage that waited and its layer.
    pub stage: Option<(String, u64)>,
    /// The last of the reads that the stage consumed.
    pub cause: Option<Cause>,
}

/// Critical paths of chosen tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The path of the token with the median duration.
    pub median: CriticalPath,
    /// The path of the token at the 99th percentile.
    pub p99: CriticalPath,
}

/// The analysis of a trace. `Display` prints it as tables.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Compute cores, in the order of their trace lanes.
    pub cores: Vec<CoreReport>,
    /// All cores together, by name of the stage.
    pub stages: BTreeMap<String, StageTime>,
    /// All reads together.
    pub reads: ReadReport,
    /// The longest stalls other than idleness, longest first.
    pub longest: Vec<Bubble>,
    /// Number of tokens that the trace covers completely.
    pub tokens: usize,
    /// Critical paths of the median token and of the P99 token; `None` if there are no tokens.
    pub paths: Option<Paths>,
}

impl Report {
    /// Reads and analyses a trace file.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or contains nothing of ours.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        Trace::read(path).map(|trace| Self::of(&trace))
    }

    /// Analyses a trace.
    pub fn of(trace: &Trace) -> Self {
        let mut report = Self::default();
        for lane in &trace.lanes {
            let Some(core) = CoreReport::of(lane) else {
                continue;
            };
            for (name, time) in &core.stages {
                report.stages.entry(name.clone()).or_default().add(time);
            }
            report.cores.push(core);
        }
        report.reads = ReadReport::of(&trace.lanes);
        report.longest = longest(trace);
        let tokens = tokens(trace);
        report.tokens = tokens.len();
        report.paths = at_percentile(&tokens, 0.5)
            .zip(at_percentile(&tokens, 0.99))
            .map(|(median, p99)| {
                let tracer = Tracer::of(trace);
                Paths {
                    median: tracer.path(median),
                    p99: tracer.path(p99),
                }
            });
        report
    }

    /// Shares of the compute cores' time, for comparison with the ledgers'.
    pub fn bubbles(&self) -> Bubbles {
        Bubbles::merged(self.cores.iter().map(|core| &core.charged))
    }
}

impl StageTime {
    fn add(&mut self, other: &Self) {
        self.slices += other.slices;
        self.busy_ns = self.busy_ns.saturating_add(other.busy_ns);
        self.waited.merge(&other.waited);
        // A damaged file may contain any number.
        self.clusters = self.clusters.saturating_add(other.clusters);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.hits += other.hits;
        self.misses += other.misses;
    }
}

impl CoreReport {
    /// `None` for a trace lane without work and stalls.
    fn of(lane: &Lane) -> Option<Self> {
        let timeline = Timeline::of(lane)?;
        let start = timeline.segments.first()?.start_ns;
        let end = timeline.segments.last()?.end_ns;
        let mut core = Self {
            name: lane.name.clone(),
            overwritten: lane.overwritten,
            overlaps: timeline.overlaps,
            ..Self::default()
        };
        let (mut waiting, mut last) = (Charged::default(), None);
        for (slice, own_ns) in timeline.slices.iter().zip(own_times(&timeline)) {
            match slice.what {
                What::Stall(reason) => {
                    core.charged.charge(State::Stall(reason), own_ns);
                    waiting.charge(State::Stall(reason), own_ns);
                }
                _ => {
                    let waited = match slice.computes() {
                        true => std::mem::take(&mut waiting),
                        false => Charged::default(),
                    };
                    last = Some(&slice.name);
                    let stage = core.stages.entry(slice.name.clone()).or_default();
                    stage.count(slice, own_ns, waited);
                }
            }
        }
        // If nothing was computed afterwards.
        let last = last.and_then(|name| core.stages.get_mut(name));
        last.into_iter()
            .for_each(|stage| stage.waited.merge(&waiting));
        let busy = (end - start).saturating_sub(core.charged.total());
        core.charged.charge(State::Busy, busy);
        let staged: u64 = core.stages.values().map(|s| s.busy_ns).sum();
        core.outside_ns = busy.saturating_sub(staged);
        Some(core)
    }
}

impl StageTime {
    fn count(&mut self, slice: &Slice, own_ns: u64, waited: Charged) {
        self.slices += 1;
        self.busy_ns += own_ns;
        self.waited.merge(&waited);
        self.clusters = self.clusters.saturating_add(slice.args.clusters);
        self.bytes = self.bytes.saturating_add(slice.args.bytes);
        self.hits += u64::from(slice.args.residency == "hit");
        self.misses += u64::from(slice.args.residency == "miss");
    }
}

/// Each slice's time, excluding the slices inside it.
fn own_times(timeline: &Timeline) -> Vec<u64> {
    let mut own = vec![0; timeline.slices.len()];
    for segment in &timeline.segments {
        if let Some(slice) = segment.slice {
            own[slice] += segment.end_ns - segment.start_ns;
        }
    }
    own
}

impl ReadReport {
    fn of(lanes: &[Lane]) -> Self {
        let mut all: Vec<&Slice> = lanes
            .iter()
            .flat_map(|lane| &lane.slices)
            .filter(|s| s.what == What::Read)
            .collect();
        all.sort_by_key(|s| s.start_ns);
        let mut report = Self::default();
        let mut covered_to = 0;
        for read in all {
            report.reads += 1;
            report.bytes = report.bytes.saturating_add(read.args.bytes);
            report.latency_ns = report
                .latency_ns
                .saturating_add(read.end_ns - read.start_ns);
            report.busy_ns += read.end_ns.saturating_sub(covered_to.max(read.start_ns));
            covered_to = covered_to.max(read.end_ns);
        }
        report
    }
}

fn longest(trace: &Trace) -> Vec<Bubble> {
    let mut stalls: Vec<(&Lane, usize, Reason, u64)> = Vec::new();
    for lane in &trace.lanes {
        for (i, slice) in lane.slices.iter().enumerate() {
            if let What::Stall(reason) = slice.what
                && reason != Reason::Idle
            {
                stalls.push((lane, i, reason, slice.end_ns - slice.start_ns));
            }
        }
    }
    stalls.sort_by_key(|stall| std::cmp::Reverse(stall.3));
    stalls.truncate(LONGEST);
    stalls
        .into_iter()
        .map(|(lane, i, reason, ns)| {
            let next = lane.slices[i..].iter().find(|s| s.computes());
            Bubble {
                core: lane.name.clone(),
                reason,
                start_ns: lane.slices[i].start_ns,
                ns,
                stage: next.map(|s| (s.name.clone(), s.args.layer)),
                cause: next.and_then(|s| cause(trace, lane, s)),
            }
        })
        .collect()
}

fn cause(trace: &Trace, lane: &Lane, waited: &Slice) -> Option<Cause> {
    let (source, read) = trace.last_read(lane, waited)?;
    Some(Cause {
        lane: trace.lanes[source].name.clone(),
        start_ns: read.start_ns,
        end_ns: read.end_ns,
        args: read.args.clone(),
    })
}
