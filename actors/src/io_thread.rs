//! The thread of the single I/O actor.

use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_stages::contract::Turn;
use forebay_traces::clock::now_ns;
use forebay_traces::lane::TraceLane;

use crate::fault::cause_of_panic;
use crate::io::{Driver, IoActor, IoLimits};
use crate::io_counters::{IoCounters, Published};
use crate::io_link::{Completions, IoLanes, Requests};

/// Handle of the running I/O actor.
#[derive(Debug)]
pub struct IoThread {
    thread: JoinHandle<Vec<TraceLane>>,
    published: Arc<Published>,
}

impl IoThread {
    /// Starts the actor. It ends once all its clients are gone; if it ends earlier, `faults` receives the reason, and
    /// has to release all that wait for reads.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        driver: Box<dyn Driver>,
        lanes: IoLanes,
        faults: Arc<dyn Fn(String) + Send + Sync>,
    ) -> std::io::Result<Self> {
        let (requests, completions) = lanes.split();
        let limits = IoLimits::new(completions.clients(), driver.capacity());
        let published = completions.published();
        let thread = std::thread::Builder::new()
            .name("forebay-io".into())
            .spawn(move || {
                let mut actor = IoActor::new(driver, requests, completions, limits);
                let whole = std::panic::AssertUnwindSafe(|| run(&mut actor));
                match std::panic::catch_unwind(whole) {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => faults(e.to_string()),
                    Err(panic) => faults(cause_of_panic(panic.as_ref())),
                }
                actor.sink_mut().take_traces()
            })?;
        Ok(Self { thread, published })
    }

    /// The work done so far.
    pub fn counters(&self) -> IoCounters {
        self.published.read()
    }

    /// Waits for the end, which comes once all clients are gone, and returns the trace lanes.
    pub fn stop(self) -> Vec<TraceLane> {
        self.thread.join().unwrap_or_default()
    }
}

/// Gives the actor turns until it is done.
fn run(actor: &mut IoActor<Box<dyn Driver>, Requests, Completions>) -> std::io::Result<()> {
    loop {
        let turn = actor.turn(now_ns())?;
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
