//! A core's job on its way to the device and back.

use std::sync::Arc;

use forebay_devices::{DeviceFault, DeviceJob};
use forebay_queues::lane::{LaneRx, LaneTx};

use super::account::Account;
use super::errand::{Answer, Errand};
use super::job_number::{Sender, number};

/// A core's ends of its lanes to and from the device actor, and the device's account.
pub(super) type Lanes = (LaneTx<Errand>, LaneRx<Answer>, Arc<Account>);

/// Where the job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was asked.
    None,
    /// The device has the one of this number.
    Away(u64),
    /// It is back.
    Back,
    /// It failed.
    Failed,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Trip {
    sender: Sender,
    errands: LaneTx<Errand>,
    answers: LaneRx<Answer>,
    pub account: Arc<Account>,
    /// While the device does not have it.
    job: Option<DeviceJob>,
    state: State,
    sent: u64,
    /// How long the driver had the last job.
    pub elapsed_ns: u64,
}

impl Trip {
    pub fn new(sender: Sender, (errands, answers, account): Lanes, job: DeviceJob) -> Self {
        Self {
            sender,
            errands,
            answers,
            account,
            job: Some(job),
            state: State::None,
            sent: 0,
            elapsed_ns: 0,
        }
    }

    /// Whether the device has the job.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Away(_))
    }

    /// Whether nothing was asked, or the answer was taken.
    pub fn is_over(&self) -> bool {
        self.state == State::None
    }

    /// The job, unless the device has it.
    pub fn job(&mut self) -> Option<&mut DeviceJob> {
        self.job.as_mut()
    }

    /// Whether the job is here.
    pub fn has_job(&self) -> bool {
        self.job.is_some()
    }

    /// Sends the job, which is one for `layer`; nothing if the device has it.
    pub fn send(&mut self, layer: usize) {
        let Some(mut job) = self.job.take() else {
            return;
        };
        self.sent += 1;
        job.id = number(self.sender, layer, self.sent);
        self.state = State::Away(job.id);
        if let Err(Errand::Job(job)) = self.ask(Errand::Job(job)) {
            self.job = Some(job);
        }
    }

    /// Sends something; gives it back if it was not accepted, and then the device is not used again.
    #[expect(
        clippy::result_large_err,
        reason = "the errand is given back, not an error"
    )]
    pub fn ask(&mut self, errand: Errand) -> Result<(), Errand> {
        self.errands.send(errand).map_err(|unsent| {
            self.lose(unsent.to_string());
            unsent.into_value()
        })
    }

    /// Receives what the device actor has answered; memory of what has been copied goes to `copied`.
    pub fn collect(&mut self, mut copied: impl FnMut(Vec<u8>)) {
        while let Some(answer) = self.answers.try_recv() {
            match answer {
                Answer::Copied(bytes) => copied(bytes),
                Answer::Done(done) => {
                    if self.state == State::Away(done.job.id) {
                        self.state = match done.result {
                            Ok(()) => State::Back,
                            Err(_) => State::Failed,
                        };
                    }
                    self.elapsed_ns = done.elapsed_ns;
                    self.job = Some(done.job);
                }
                Answer::Ended => self.lose("it was given up".to_owned()),
                Answer::Loaded(_) | Answer::Unloaded => {}
            }
        }
        if self.is_waiting() && self.answers.is_closed() {
            self.lose("its thread has ended".to_owned());
        }
    }

    /// Whether the job came back with results, told once; `None` while it is not back, or there is none.
    pub fn take(&mut self) -> Option<bool> {
        let worked = match self.state {
            State::None | State::Away(_) => return None,
            State::Back => true,
            State::Failed => false,
        };
        self.state = State::None;
        Some(worked)
    }

    /// The device has had enough time: it is not used again.
    pub fn give_up(&mut self, seconds: u64) {
        if self.is_waiting() {
            self.fail(DeviceFault::Stuck { seconds });
        }
    }

    /// What it was asked will not be answered.
    fn lose(&mut self, reason: String) {
        self.fail(DeviceFault::Lost { reason });
    }

    fn fail(&mut self, fault: DeviceFault) {
        match self.is_waiting() {
            true => {
                self.account.failed(fault);
                self.state = State::Failed;
            }
            false => self.account.give_up(fault),
        }
    }
}
