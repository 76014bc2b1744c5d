//! The thread of the single I/O actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use forebay_stages::contract::Turn;
use forebay_traces::clock::now_ns;
use forebay_traces::lane::TraceLane;

use crate::fault::cause_of_panic;
use crate::io::{Driver, IoActor, IoLimits, IoStatistics};
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
    fn set(&self, statistics: &IoStatistics) {
        self.reads.store(statistics.reads, Ordering::Relaxed);
        self.bytes.store(statistics.bytes, Ordering::Relaxed);
        self.busy_ns.store(statistics.busy_ns, Ordering::Relaxed);
    }
}

/// Handle of the running I/O actor.
#[derive(Debug)]
pub struct IoThread {
    thread: JoinHandle<Vec<TraceLane>>,
    published: Arc<Published>,
}

impl IoThread {
    /// Starts the actor. It ends by itself once all its clients are gone; if it ends before, `faults` is
    /// told why, and has to release whoever waits for reads.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        driver: Box<dyn Driver>,
        lanes: IoLanes,
        faults: Arc<dyn Fn(String) + Send + Sync>,
    ) -> std::io::Result<Self> {
        let published = Arc::new(Published::default());
        let (requests, completions) = lanes.split();
        let limits = IoLimits::new(completions.clients(), driver.capacity());
        let seen = Arc::clone(&published);
        let thread = std::thread::Builder::new()
            .name("forebay-io".into())
            .spawn(move || {
                let mut actor = IoActor::new(driver, requests, completions, limits);
                let whole = std::panic::AssertUnwindSafe(|| run(&mut actor, &seen));
                match std::panic::catch_unwind(whole) {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => faults(e.to_string()),
                    Err(panic) => faults(cause_of_panic(panic.as_ref())),
                }
                actor.sink_mut().take_traces()
            })?;
        Ok(Self { thread, published })
    }

    /// What has been done so far.
    pub fn counters(&self) -> IoCounters {
        let p = &self.published;
        IoCounters {
            reads: p.reads.load(Ordering::Relaxed),
            bytes: p.bytes.load(Ordering::Relaxed),
            busy_ns: p.busy_ns.load(Ordering::Relaxed),
        }
    }

    /// Waits for the end, which comes once all clients are gone, and returns the trace lanes.
    pub fn stop(self) -> Vec<TraceLane> {
        self.thread.join().unwrap_or_default()
    }
}

/// Gives the actor turns until it is done.
fn run(
    actor: &mut IoActor<Box<dyn Driver>, Requests, Completions>,
    published: &Published,
) -> std::io::Result<()> {
    loop {
        let turn = actor.turn(now_ns())?;
        // Every time: an actor that always has something to do may not block for a whole run.
        published.set(actor.statistics());
        match turn {
            Turn::Progress => {}
            Turn::Blocked(_) => {
                let in_flight = actor.driver().in_flight();
                actor.sink_mut().record_in_flight(in_flight, now_ns());
                actor.wait(None)?;
            }
            Turn::Finished => return Ok(()),
        }
    }
}
