//! The I/O actor's counters.

use super::op::ReadDone;

/// Counters of one I/O actor since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoTally {
    /// Operations completed without a fault.
    pub reads: u64,
    /// Urgent ones among them.
    pub urgent_reads: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Operations completed with a fault.
    pub faults: u64,
    /// Reads tried again after a transient fault.
    pub retries: u64,
    /// Maximum number of reads that were in flight at once.
    pub max_depth: usize,
    /// Time with at least one read in flight, ns, up to the last turn.
    pub busy_ns: u64,
    /// When the actor last counted, if reads were in flight then.
    last_busy_ns: Option<u64>,
}

impl IoTally {
    /// Records how many reads are in flight now.
    pub(super) fn observe(&mut self, in_flight: usize, now_ns: u64) {
        self.max_depth = self.max_depth.max(in_flight);
        if let Some(last) = self.last_busy_ns {
            self.busy_ns += now_ns.saturating_sub(last);
        }
        self.last_busy_ns = (in_flight > 0).then_some(now_ns);
    }

    /// Records a completed operation.
    pub(super) fn count(&mut self, done: &ReadDone, urgent: bool) {
        if done.result.is_ok() {
            self.reads += 1;
            self.urgent_reads += u64::from(urgent);
            self.bytes += u64::from(done.len);
        } else {
            self.faults += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_is_the_time_with_reads_in_flight() {
        let mut s = IoTally::default();
        s.observe(0, 100);
        s.observe(2, 200);
        s.observe(1, 350);
        s.observe(0, 400);
        s.observe(0, 900);
        s.observe(1, 1000);
        assert_eq!((s.busy_ns, s.max_depth), (200, 2));
    }
}
