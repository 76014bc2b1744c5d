//! Core 0's end: makes jobs of phases, and takes their results.

use std::sync::Arc;

use forebay_devices::{DeviceDone, DeviceFault, DeviceJob, SegmentId, Work as Asked};
use forebay_plans::program::{Item, Work};
use forebay_plans::uploads::Uploads;
use forebay_queues::capacity::Capacity;
use forebay_queues::doorbell::{Ringer, doorbell};
use forebay_queues::lane::{LaneRx, LaneTx, lane};
use forebay_stages::frame::Frame;
use forebay_traces::lane::TraceLane;

use super::account::Account;
use super::actor::DeviceLanes;
use super::attender::Attender;
use super::attention_room::OwnAttention;
use super::errand::{Answer, Errand};
use super::fill::fill;
use super::job_number::{Sender, number};
use super::parts::{DeviceParts, PhasePart};
use super::room::JobRoom;
use super::uploader::Uploader;

/// Where the job of the current phase is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is none.
    None,
    /// The device has the one of this number.
    Away(u64),
    /// It is back, and is one of rows or of a share.
    Back { of_rows: bool },
    /// It failed.
    Failed,
}

/// Where a phase's weights are that are brought to the device or given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Moving {
    /// Nothing moves.
    #[default]
    None,
    /// The device has been asked.
    Asked(usize),
    /// They are where they are to be: in this segment, if they were brought.
    Moved(usize, Option<SegmentId>),
    /// The device has no room for them, or has failed.
    Failed(usize),
}

/// What became of a phase's job.
#[derive(Debug)]
pub(crate) enum Outcome<'a> {
    /// Results of rows, side by side, `[n_tokens, rows]`.
    Rows(&'a mut [f32]),
    /// A share of the FFN, `[n_tokens, d_model]`.
    Share(&'a [i64]),
    /// The cores compute it.
    Failed,
}

/// Core 0's end of the lanes to the device actor.
#[derive(Debug)]
pub(crate) struct DeviceLink {
    errands: LaneTx<Errand>,
    answers: LaneRx<Answer>,
    account: Arc<Account>,
    /// The jobs for rows and for a share, while the device does not have them.
    rows: Option<DeviceJob>,
    share: Option<DeviceJob>,
    state: State,
    moving: Moving,
    /// Clusters of the current job.
    given: Vec<Item>,
    sent: u64,
}

/// A core's ends of the lanes to a device, as far as it has any.
#[derive(Debug, Default)]
pub(crate) struct DeviceEnds {
    /// Core 0's, for its phases.
    pub link: Option<Box<DeviceLink>>,
    /// With a window for streamed clusters.
    pub uploader: Option<Box<Uploader>>,
    /// If the device attends.
    pub attender: Option<Box<Attender>>,
}

/// The lanes of a device whose answers wake the cores through `ringers`, by rank. Each core copies its streamed
/// clusters to it as `uploads` says, if there is a window for them, and has it do a part of its `attention`, if it has
/// copies of keys and values.
pub(crate) fn device_lanes(
    parts: &DeviceParts,
    (room, attention): (JobRoom, Vec<OwnAttention>),
    uploads: Option<(&Uploads, &[u16])>,
    ringers: &[Ringer],
    trace: TraceLane,
) -> (Vec<DeviceEnds>, DeviceLanes) {
    let account = &parts.account;
    let in_flight = ("a job of the current phase", 1);
    // After a job that took too long, another one may be sent, and both may be answered.
    let late = ("a job that core 0 no longer waits for", 1);
    let own = Capacity::of(&[in_flight, late, ("weights that move", 1)]);
    let window = parts.window().zip(uploads);
    let (copies, jobs) = (Uploader::errands(), Attender::errands());
    let to_windows = window.iter().flat_map(|_| ringers.iter().map(|_| &copies));
    let attending = ringers.iter().filter(|_| parts.kv().is_some());
    let to_attend = attending.map(|_| &jobs);
    let all = std::iter::once(&own).chain(to_windows).chain(to_attend);
    let (bell, device) = doorbell();
    let (errands, errands_rx) = lane(&all.sum(), device);
    let with_end = |capacity: &Capacity| {
        [capacity, &Capacity::of(&[("its end", 1)])]
            .into_iter()
            .sum()
    };
    let (answers_tx, answers) = lane(&with_end(&own), ringers[0].clone());
    let ends = |ringer: &Ringer, capacity: &Capacity| {
        let (tx, rx) = lane(&with_end(capacity), ringer.clone());
        (tx, (errands.clone(), rx, Arc::clone(account)))
    };
    let (mut uploads_tx, mut attention_tx) = (Vec::new(), Vec::new());
    let core = |((rank, ringer), own): ((usize, &Ringer), OwnAttention)| DeviceEnds {
        link: None,
        uploader: window.clone().map(|(window, wanted)| {
            let (tx, lanes) = ends(ringer, &copies);
            uploads_tx.push(tx);
            Box::new(Uploader::new(rank, lanes, window, wanted, room))
        }),
        attender: parts.kv().map(|kv| {
            let (tx, lanes) = ends(ringer, &jobs);
            attention_tx.push(tx);
            Box::new(Attender::new(rank, lanes, kv, own))
        }),
    };
    let cores = ringers.iter().enumerate().zip(attention);
    let mut of_cores: Vec<DeviceEnds> = cores.map(core).collect();
    let link = DeviceLink {
        errands,
        answers,
        account: Arc::clone(account),
        rows: Some(room.empty_rows()),
        share: Some(room.empty_share()),
        state: State::None,
        moving: Moving::None,
        given: Vec::with_capacity(room.most_items()),
        sent: 0,
    };
    let lanes = DeviceLanes {
        errands: errands_rx,
        answers: answers_tx,
        uploads: uploads_tx,
        attention: attention_tx,
        bell,
        account: Arc::clone(account),
        segments: parts.segments(),
        trace,
    };
    of_cores[0].link = Some(Box::new(link));
    (of_cores, lanes)
}

impl DeviceLink {
    /// The device's work so far.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Whether the device has the phase's job.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Away(_))
    }

    /// Whether weights are on their way to the device or back.
    pub fn is_moving(&self) -> bool {
        matches!(self.moving, Moving::Asked(_))
    }

    /// Jobs that the device does not have.
    pub fn spare(&self) -> usize {
        usize::from(self.rows.is_some()) + usize::from(self.share.is_some())
    }

    /// Most clusters of a job.
    pub fn most_items(&self) -> usize {
        self.given.capacity()
    }

    /// A phase begins, of which the device computes the first clusters of `items`.
    pub fn begin(&mut self, frame: &Frame<'_>, part: &PhasePart, items: &[Item]) {
        let is_used = |item: &&Item| frame.tokens_of(item).n > 0;
        self.given.clear();
        self.given.extend(items.iter().filter(is_used));
        if self.given.is_empty() || frame.input.n_tokens() == 0 {
            self.state = State::None;
            return;
        }
        self.state = State::Failed;
        if self.account.is_gone() {
            return;
        }
        let of_rows = matches!(frame.phase.work, Work::Rows(_));
        let spare = match of_rows {
            true => &mut self.rows,
            false => &mut self.share,
        };
        // None while the device still has one that took too long.
        let Some(mut job) = spare.take() else {
            return;
        };
        self.sent += 1;
        fill(&mut job, frame, part, &self.given);
        job.id = number(Sender::Phases, frame.phase.layer, self.sent);
        self.state = State::Away(job.id);
        if let Err(unsent) = self.errands.send(Errand::Job(job)) {
            let reason = unsent.to_string();
            self.lose(DeviceFault::Lost { reason });
            if let Errand::Job(job) = unsent.into_value() {
                self.take_back(job);
            }
        }
    }

    /// Has the weights of a phase brought to the device, or their memory given back.
    pub fn move_weights(&mut self, phase: usize, errand: Errand) {
        self.moving = Moving::Asked(phase);
        if let Err(unsent) = self.errands.send(errand) {
            let reason = unsent.to_string();
            self.lose(DeviceFault::Lost { reason });
        }
    }

    /// What became of that, told once.
    pub fn take_moved(&mut self) -> Moving {
        match self.is_moving() {
            true => self.moving,
            false => std::mem::take(&mut self.moving),
        }
    }

    fn take_back(&mut self, job: DeviceJob) {
        match job.work {
            Asked::Rows { .. } => self.rows = Some(job),
            Asked::Share { .. } => self.share = Some(job),
            // None is sent here.
            Asked::Attention(_) => {}
        }
    }

    /// Receives the device's answer.
    pub fn collect(&mut self) {
        while let Some(answer) = self.answers.try_recv() {
            let DeviceDone { job, result, .. } = match answer {
                Answer::Done(done) => done,
                Answer::Ended => {
                    let reason = "it was given up".to_owned();
                    self.lose(DeviceFault::Lost { reason });
                    continue;
                }
                moved => {
                    self.has_moved(moved);
                    continue;
                }
            };
            let of_rows = matches!(job.work, Asked::Rows { .. });
            if self.state == State::Away(job.id) {
                self.state = match result {
                    Ok(()) => State::Back { of_rows },
                    Err(_) => State::Failed,
                };
            }
            self.take_back(job);
        }
        if (self.is_waiting() || self.is_moving()) && self.answers.is_closed() {
            let reason = "its thread has ended".to_owned();
            self.lose(DeviceFault::Lost { reason });
        }
    }

    /// The device has answered about weights. If nobody waits for that any more, it has been given up.
    fn has_moved(&mut self, answer: Answer) {
        let Moving::Asked(phase) = self.moving else {
            return;
        };
        self.moving = match answer {
            Answer::Loaded(Ok(segment)) => Moving::Moved(phase, Some(segment)),
            Answer::Loaded(Err(fault)) => {
                use DeviceFault::{OutOfMemory, TooLarge};
                // Then the cores compute what it has no room for.
                if !matches!(fault, OutOfMemory { .. } | TooLarge { .. }) {
                    self.account.give_up(fault);
                }
                Moving::Failed(phase)
            }
            Answer::Unloaded => Moving::Moved(phase, None),
            Answer::Done(_) | Answer::Copied(_) | Answer::Ended => return,
        };
    }

    /// What it was asked will not be answered.
    fn lose(&mut self, fault: DeviceFault) {
        if self.is_waiting() {
            self.account.failed(fault);
            self.state = State::Failed;
        } else if let Moving::Asked(phase) = self.moving {
            self.account.give_up(fault);
            self.moving = Moving::Failed(phase);
        }
    }

    /// What became of the phase's job, once that is known, with its clusters.
    pub fn take(&mut self) -> Option<(Outcome<'_>, &[Item])> {
        let outcome = match std::mem::replace(&mut self.state, State::None) {
            State::Failed => Outcome::Failed,
            State::Back { of_rows } => {
                let job = match of_rows {
                    true => &mut self.rows,
                    false => &mut self.share,
                };
                match job.as_mut().map(|job| &mut job.work) {
                    Some(Asked::Rows { out, .. }) => Outcome::Rows(out),
                    Some(Asked::Share { out, .. }) => Outcome::Share(out),
                    Some(Asked::Attention(_)) | None => Outcome::Failed,
                }
            }
            waiting => {
                self.state = waiting;
                return None;
            }
        };
        Some((outcome, &self.given))
    }

    /// The device has had enough time: it is not used again.
    pub fn give_up(&mut self, seconds: u64) {
        self.lose(DeviceFault::Stuck { seconds });
    }
}
