//! What a core did and when: its trace lane, and the accounts to which every nanosecond is charged.

use forebay_stages::contract::Slice;
use forebay_traces::clock::now_ns;
use forebay_traces::lane::TraceLane;
use forebay_traces::ledger::{Charged, Ledger, State};
use forebay_traces::record::{Counter, Kind, Reason, Record, StepKind};

/// The records of one core.
#[derive(Debug)]
pub(super) struct Recorder {
    pub trace: TraceLane,
    ledger: Ledger,
    /// End of the last recorded piece of work.
    last_ns: u64,
    /// Accounts at the start of the step.
    charged_before: Charged,
}

impl Recorder {
    /// Records into `trace`.
    pub fn new(trace: TraceLane) -> Self {
        Self {
            trace,
            ledger: Ledger::start(now_ns()),
            last_ns: 0,
            charged_before: Charged::default(),
        }
    }

    /// The core is awake again: its next work began now.
    pub fn wake(&mut self) {
        self.last_ns = now_ns();
    }

    /// A step begins: the time since the last one was idle.
    pub fn begin_step(&mut self) {
        self.wake();
        self.end_stall(0);
        self.charged_before = self.ledger.charged();
    }

    /// Says what the step that has just begun is for, and how many tokens it has.
    pub fn mark_step(&mut self, kind: StepKind, tokens: usize) {
        let record = Record::step(kind, tokens as u16, self.last_ns);
        self.trace.push(record);
    }

    /// A step is over: the accounts when it began, and now. The core idles from here on, even if it is suspended and
    /// finds the next step when it runs again.
    pub fn end_step(&mut self, layer: usize) -> (Charged, Charged) {
        self.begin_stall(Reason::Idle, layer);
        (self.charged_before, self.ledger.charged())
    }

    /// Records a piece of work that ends now and began where the last one ended.
    pub fn record(&mut self, slice: Slice, layer: usize) {
        self.end_stall(layer);
        if !self.trace.is_enabled() {
            // Reading the clock here would cost a percent of a small model's token.
            return;
        }
        let end_ns = now_ns();
        let record = Record::stage(slice.stage, layer as u16, self.last_ns, end_ns);
        let record = record.with_clusters(slice.cluster, slice.count as u16, slice.hit);
        self.trace
            .push(record.with_bytes(slice.bytes).with_flow(slice.flow));
        self.last_ns = end_ns;
    }

    /// The core has found nothing to do: a stall begins, or continues.
    pub fn begin_stall(&mut self, reason: Reason, layer: usize) {
        if self.ledger.state() != State::Stall(reason) {
            self.end_stall(layer);
            let now = now_ns();
            self.ledger.enter(State::Stall(reason), now);
            self.last_ns = now;
        }
    }

    /// The core has found work: the stall, if it was in one, ended when it woke (`last_ns`).
    pub fn end_stall(&mut self, layer: usize) {
        if let State::Stall(reason) = self.ledger.state() {
            let stall = self.ledger.enter(State::Busy, self.last_ns);
            let record = Record::new(Kind::Stall(reason), stall.start_ns, stall.end_ns);
            self.trace.push(Record {
                layer: layer as u16,
                ..record
            });
        }
    }

    /// Samples counters.
    pub fn count(&mut self, counters: [(Counter, usize); 3]) {
        if self.trace.is_enabled() {
            for (which, value) in counters {
                let record = Record::counter(which, value as u64, self.last_ns);
                self.trace.push(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_traces::record::Stage;

    use super::*;

    /// It may have been suspended since its last step: that time belongs to no work.
    #[test]
    fn a_core_that_finds_its_next_step_at_once_has_idled_as_well() {
        let mut recorder = Recorder::new(TraceLane::new("core 0", 8));
        let work = Slice::plain(Stage::Norm, 0, 1);
        for _ in 0..2 {
            recorder.begin_step();
            recorder.record(work, 0);
            let (before, after) = recorder.end_step(0);
            let idle = State::Stall(Reason::Idle);
            assert_eq!(after.since(&before).get(idle), 0);
        }
        let records: Vec<&Record> = recorder.trace.iter().collect();
        let kinds: Vec<Kind> = records.iter().map(|record| record.kind).collect();
        let (idle, norm) = (Kind::Stall(Reason::Idle), Kind::Stage(Stage::Norm));
        assert_eq!(kinds, [idle, norm, idle, norm]);
        assert!(records[1].end_ns <= records[2].start_ns);
        assert_eq!(records[2].end_ns, records[3].start_ns);
    }
}
