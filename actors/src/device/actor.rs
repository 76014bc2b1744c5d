//! The device actor: hands jobs to the driver and finished ones back, and weights. It never waits; its thread, or a
//! simulator, decides how it sleeps.

use std::sync::Arc;

use forebay_devices::{DeviceDone, DeviceDriver, DeviceFault, DeviceJob, SegmentId};
use forebay_queues::doorbell::Bell;
use forebay_queues::lane::{LaneRx, LaneTx};
use forebay_stages::contract::Turn;
use forebay_traces::lane::TraceLane;
use forebay_traces::record::{Reason, Record, Residency};

use super::account::Account;
use super::errand::{Answer, Errand, Upload};
use super::job_number::{Sender, layer_of, sender_of};

/// The device actor's ends of its lanes.
#[derive(Debug)]
pub struct DeviceLanes {
    pub(super) errands: LaneRx<Errand>,
    pub(super) answers: LaneTx<Answer>,
    /// To the cores whose streamed clusters are copied, by rank.
    pub(super) uploads: Vec<LaneTx<Answer>>,
    /// To the cores for which it attends, by rank.
    pub(super) attention: Vec<LaneTx<Answer>>,
    pub(super) bell: Bell,
    pub(super) account: Arc<Account>,
    /// What the device has in its memory.
    pub(super) segments: Vec<SegmentId>,
    pub(super) trace: TraceLane,
}

impl DeviceLanes {
    /// A job is over: tells the core that sent it.
    fn answer(&self, done: DeviceDone) {
        let lane = match sender_of(done.job.id) {
            Sender::Clusters(rank) => &self.uploads[rank],
            Sender::Attention(rank) => &self.attention[rank],
            Sender::Phases => &self.answers,
        };
        // If that core is gone, nobody waits for it.
        let _ = lane.send(Answer::Done(done));
    }
}

/// Hands jobs and weights to the driver, and finished jobs back to their cores.
#[derive(Debug)]
pub struct DeviceActor<D> {
    driver: D,
    lanes: DeviceLanes,
    /// When the device last had nothing to do, or began with its oldest job.
    since_ns: u64,
    /// A job for which the driver had no place.
    refused: Option<DeviceJob>,
    /// Whether the cores have been told that the device has been given up.
    ended: bool,
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
            ended: false,
        }
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// What wakes it: rung when something has been sent, or all cores have ended.
    pub fn bell(&self) -> &Bell {
        &self.lanes.bell
    }

    /// Takes errands, and returns jobs that are finished. [`Turn::Blocked`]: nothing can be done until the bell rings,
    /// or until the device has finished a job ([`Reason::Device`]). It ends when the cores have, whatever is in flight.
    pub fn turn(&mut self, now_ns: u64) -> Turn {
        // Nobody waits for what a device that is given up may still finish.
        let busy = self.driver.in_flight() > 0 && !self.lanes.account.is_gone();
        let mut turn = Turn::Blocked(match busy {
            true => Reason::Device,
            false => Reason::Idle,
        });
        while let Some(errand) = self.next_errand() {
            match errand {
                Errand::Job(job) if self.lanes.account.is_gone() => self.refuse(job),
                Errand::Job(job) => {
                    if self.driver.in_flight() == 0 {
                        self.since_ns = now_ns;
                    }
                    if let Err(job) = self.driver.submit(job, now_ns) {
                        self.refused = Some(job);
                        break;
                    }
                }
                Errand::Upload(upload) => self.copy(upload, now_ns),
                other => self.change_memory(other),
            }
            turn = Turn::Progress;
        }
        self.driver.poll(now_ns, &mut self.done);
        for done in self.done.drain(..) {
            turn = Turn::Progress;
            let elapsed_ns = now_ns.saturating_sub(self.since_ns);
            let sender = sender_of(done.job.id);
            self.lanes
                .account
                .finished(sender, elapsed_ns, &done.result);
            let record = Record::job(layer_of(done.job.id), self.since_ns, now_ns);
            self.lanes.trace.push(record);
            self.since_ns = now_ns;
            self.lanes.answer(done);
        }
        if self.lanes.account.is_gone() {
            self.end();
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

    /// A job of a core that did not know yet that the device has been given up.
    fn refuse(&mut self, job: DeviceJob) {
        let reason = "it was given up".to_owned();
        let result = Err(DeviceFault::Lost { reason });
        self.lanes.account.finished(sender_of(job.id), 0, &result);
        self.lanes.answer(DeviceDone {
            job,
            result,
            elapsed_ns: 0,
        });
    }

    /// Copies a streamed cluster into the window. Jobs behind it would compute with something else if that failed, so
    /// the device is given up then.
    fn copy(&mut self, upload: Upload, now_ns: u64) {
        let account = &self.lanes.account;
        if !account.is_gone() {
            match self.driver.write(upload.segment, upload.at, &upload.bytes) {
                Ok(()) => {
                    account.copied(upload.bytes.len());
                    let record = Record::copy(upload.layer, upload.bytes.len() as u64, now_ns);
                    let record = record.with_clusters(upload.cluster, 1, Residency::Miss);
                    self.lanes.trace.push(record);
                }
                Err(fault) => account.give_up(fault),
            }
        }
        // If the core is gone, nobody needs the memory.
        let _ = self.lanes.uploads[upload.rank].send(Answer::Copied(upload.bytes));
    }

    /// Tells the cores, once, that nothing more is answered: one's job may have been the reason, and another may wait.
    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            let lanes = &self.lanes;
            let of_cores = lanes.uploads.iter().chain(&lanes.attention);
            for lane in of_cores.chain([&lanes.answers]) {
                // If the core is gone, it does not wait.
                let _ = lane.send(Answer::Ended);
            }
        }
    }

    /// Brings weights to the device, or gives them back.
    fn change_memory(&mut self, errand: Errand) {
        let segments = &mut self.lanes.segments;
        let answer = match errand {
            Errand::Job(_) | Errand::Upload(_) => return,
            Errand::Load(bytes) => {
                let loaded = self.driver.load(&bytes);
                segments.extend(&loaded);
                Answer::Loaded(loaded)
            }
            Errand::Reserve(bytes) => {
                let reserved = self.driver.reserve(bytes);
                segments.extend(&reserved);
                Answer::Loaded(reserved)
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
