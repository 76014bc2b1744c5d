//! The thread of the single I/O actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use forebay_traces::lane::TraceLane;

use crate::io::{Driver, IoActor, IoStats, IoTurn, Waker};
use crate::io_link::{Completions, IoLanes, Requests};

/// What the I/O actor has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Completed reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Time with at least one read in flight.
    pub busy_ns: u64,
}

#[derive(Debug, Default)]
struct Published {
    reads: AtomicU64,
    bytes: AtomicU64,
    busy_ns: AtomicU64,
}

impl Published {
    fn set(&self, stats: &IoStats) {
        self.reads.store(stats.reads, Ordering::Relaxed);
        self.bytes.store(stats.bytes, Ordering::Relaxed);
        self.busy_ns.store(stats.busy_ns, Ordering::Relaxed);
    }
}

/// Handle of the running I/O actor.
#[derive(Debug)]
pub struct IoThread {
    thread: JoinHandle<Vec<TraceLane>>,
    waker: Waker,
    published: Arc<Published>,
}
