//! The device actor: hands jobs to the driver and finished ones back. It never waits; its thread, or a simulator, decides
//! how it sleeps.

use std::sync::Arc;

use forebay_devices::{DeviceDone, DeviceDriver, DeviceJob};
use forebay_queues::doorbell::Bell;
use forebay_queues::lane::{LaneRx, LaneTx};
use forebay_stages::contract::Turn;
use forebay_traces::lane::TraceLane;
use forebay_traces::record::{Reason, Record};

use super::account::Account;
use super::link::layer_of;

/// The device actor's ends of its lanes.
#[derive(Debug)]
pub struct DeviceLanes {
    pub(super) jobs: LaneRx<DeviceJob>,
    pub(super) answers: LaneTx<DeviceDone>,
    pub(super) bell: Bell,
    pub(super) account: Arc<Account>,
    pub(super) trace: TraceLane,
}

/// Hands jobs to the driver, and finished ones back to core 0.
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

    /// Takes jobs, and returns those that are finished. [`Turn::Blocked`]: nothing can be done until the bell rings, or
    /// until the device has finished a job ([`Reason::Device`]). It ends when core 0 has, whatever is in flight.
    pub fn turn(&mut self, now_ns: u64) -> Turn {
        // Nobody waits for what a device that is given up may still finish.
        let busy = self.driver.in_flight() > 0 && !self.lanes.account.is_gone();
        let mut turn = Turn::Blocked(match busy {
            true => Reason::Device,
            false => Reason::Idle,
        });
        while let Some(job) = self.refused.take().or_else(|| self.lanes.jobs.try_recv()) {
            if self.driver.in_flight() == 0 {
                self.since_ns = now_ns;
            }
            if let Err(job) = self.driver.submit(job, now_ns) {
                self.refused = Some(job);
                break;
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
            let _ = self.lanes.answers.send(done);
        }
        match turn {
            Turn::Blocked(_) if self.lanes.jobs.is_closed() => Turn::Finished,
            turn => turn,
        }
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
