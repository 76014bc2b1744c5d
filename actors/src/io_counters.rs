//! What the I/O actor has done, for other threads to read.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::io::IoTally;

/// The I/O actor's work since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Completed reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Time with at least one read in flight.
    pub busy_ns: u64,
}

/// The counters where other threads find them.
#[derive(Debug, Default)]
pub(crate) struct Published {
    reads: AtomicU64,
    bytes: AtomicU64,
    busy_ns: AtomicU64,
}

impl Published {
    /// Called before a read is handed back: whoever has got it finds it counted.
    pub fn set(&self, statistics: &IoTally) {
        self.reads.store(statistics.reads, Ordering::Relaxed);
        self.bytes.store(statistics.bytes, Ordering::Relaxed);
        self.busy_ns.store(statistics.busy_ns, Ordering::Relaxed);
    }

    /// The work done so far.
    pub fn read(&self) -> IoCounters {
        IoCounters {
            reads: self.reads.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
        }
    }
}
