//! The device actor: hands jobs to the driver and finished ones back, and weights. It never waits; its thread, or a
//! simulator, decides how it sleeps.

use std::sync::Arc;

use forebay_devices::{DeviceDone, DeviceDriver, DeviceJob, SegmentId};
use forebay_queues::doorbell::Bell;
use forebay_queues::lane::{LaneRx, LaneTx};
use forebay_stages::contract::Turn;
use forebay_traces::lane::TraceLane;
use forebay_traces::record::{Reason, Record};

use super::account::Account;
use super::errand::{Answer, Errand};
use super::link::layer_of;

/// The device actor's ends of its lanes.
#[derive(Debug)]
pub struct DeviceLanes {
    pub(super) errands: LaneRx<Errand>,
    pub(super) answers: LaneTx<Answer>,
    pub(super) bell: Bell,
    pub(super) account: Arc<Account>,
    /// What the device has in its memory.
    pub(super) segments: Vec<SegmentId>,
    pub(super) trace: TraceLane,
}

/// Hands jobs and weights to the driver, and finished jobs back to core 0.
#[derive(Debug)]
pub struct DeviceActor<D> {
    driver: D,
    lanes: DeviceLanes,
    /// When the device last had nothing to do, or began with its oldest job.
    since_ns: u64,
    /// A job for which the driver had no place.
    refused: Option<DeviceJob>,
    done: Vec<DeviceDone>,
}

impl<D: DeviceDriver> DeviceActor<D> {
    /// An actor on `driver`.
    pub fn new(driver: D, lanes: DeviceLanes) -> Self {
        Self {
            done: Vec::with_capacity(driver.capacity()),
            driver,
            lanes,
            since_ns: 0,
            refused: None,
        }
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// What wakes it: rung when a job has been sent, or core 0 has ended.
    pub fn bell(&self) -> &Bell {
        &self.lanes.bell
    }

    /// Takes errands, and returns jobs that are finished. [`Turn::Blocked`]: nothing can be done until the bell rings, or
    /// until the device has finished a job ([`Reason::Device`]). It ends when core 0 has, whatever is in flight.
    pub fn turn(&mut self, now_ns: u64) -> Turn {
        // Nobody waits for what a device that is given up may still finish.
        let busy = self.driver.in_flight() > 0 && !self.lanes.account.is_gone();
        let mut turn = Turn::Blocked(match busy {
            true => Reason::Device,
            false => Reason::Idle,
        });
        while let Some(errand) = self.next_errand() {
            if let Errand::Job(job) = errand {
                if self.driver.in_flight() == 0 {
                    self.since_ns = now_ns;
                }
                if let Err(job) = self.driver.submit(job, now_ns) {
                    self.refused = Some(job);
                    break;
                }
            } else {
                self.change_memory(errand);
            }
            turn = Turn::Progress;
        }
        self.driver.poll(now_ns, &mut self.done);
        for done in self.done.drain(..) {
            turn = Turn::Progress;
            let elapsed_ns = now_ns.saturating_sub(self.since_ns);
            self.lanes.account.finished(elapsed_ns, &done.result);
            let record = Record::job(layer_of(done.job.id), self.since_ns, now_ns);
            self.lanes.trace.push(record);
            self.since_ns = now_ns;
            // If core 0 is gone, the lane of jobs is closed, too.
            let _ = self.lanes.answers.send(Answer::Done(done));
        }
        if self.lanes.account.is_gone() {
            // Nobody uses a device that is given up again; the process may need the memory.
            let segments = self.lanes.segments.drain(..);
            segments.for_each(|segment| self.driver.unload(segment));
        }
        match turn {
            Turn::Blocked(_) if self.lanes.errands.is_closed() => Turn::Finished,
            turn => turn,
        }
    }

    fn next_errand(&mut self) -> Option<Errand> {
        let refused = self.refused.take().map(Errand::Job);
        refused.or_else(|| self.lanes.errands.try_recv())
    }

    /// Brings weights to the device, or gives them back.
    fn change_memory(&mut self, errand: Errand) {
        let segments = &mut self.lanes.segments;
        let answer = match errand {
            Errand::Job(_) => return,
            Errand::Load(bytes) => {
                let loaded = self.driver.load(&bytes);
                segments.extend(&loaded);
                Answer::Loaded(loaded)
            }
            Errand::Unload(segment) => {
                self.driver.unload(segment);
                segments.retain(|&other| other != segment);
                Answer::Unloaded
            }
        };
        // As with jobs.
        let _ = self.lanes.answers.send(answer);
    }

    /// Its trace.
    pub(super) fn into_trace(self) -> TraceLane {
        self.lanes.trace
    }

    /// Why it will answer no more.
    pub(super) fn account(&self) -> &Arc<Account> {
        &self.lanes.account
    }
}
