//! Core 0's end: makes jobs of phases, and takes their results.

use std::sync::Arc;

use forebay_devices::{DeviceDone, DeviceFault, DeviceJob, SegmentId, Work as Asked};
use forebay_plans::program::{Item, Work};
use forebay_queues::capacity::Capacity;
use forebay_queues::doorbell::{Ringer, doorbell};
use forebay_queues::lane::{LaneRx, LaneTx, lane};
use forebay_stages::frame::Frame;
use forebay_stages::kernels::Activations;
use forebay_traces::lane::TraceLane;

use super::account::Account;
use super::actor::DeviceLanes;
use super::errand::{Answer, Errand};
use super::parts::{DeviceParts, PhasePart};
use super::room::JobRoom;

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

/// The lanes of a device whose answers wake core 0 through `ringer`.
pub(crate) fn device_lanes(
    parts: &DeviceParts,
    room: JobRoom,
    ringer: Ringer,
    trace: TraceLane,
) -> (DeviceLink, DeviceLanes) {
    let account = &parts.account;
    let in_flight = ("a job of the current phase", 1);
    // After a job that took too long, another one may be sent, and both may be answered.
    let late = ("a job that core 0 no longer waits for", 1);
    let capacity = Capacity::of(&[in_flight, late, ("weights that move", 1)]);
    let (bell, device) = doorbell();
    let (errands, errands_rx) = lane(&capacity, device);
    let (answers_tx, answers) = lane(&capacity, ringer);
    let link = DeviceLink {
        errands,
        answers,
        account: Arc::clone(account),
        rows: Some(empty_rows(room)),
        share: Some(empty_share(room)),
        state: State::None,
        moving: Moving::None,
        given: Vec::with_capacity(room.most_items()),
        sent: 0,
    };
    let lanes = DeviceLanes {
        errands: errands_rx,
        answers: answers_tx,
        bell,
        account: Arc::clone(account),
        segments: parts.segments(),
        trace,
    };
    (link, lanes)
}

fn job(room: JobRoom, work: Asked) -> DeviceJob {
    DeviceJob {
        id: 0,
        segment: SegmentId::NONE,
        tokens: Activations::new(room.batch, room.columns),
        work,
    }
}

fn empty_rows(room: JobRoom) -> DeviceJob {
    let panels = Vec::with_capacity(room.most_items());
    let out = Vec::with_capacity(room.rows);
    job(room, Asked::Rows { panels, out })
}

fn empty_share(room: JobRoom) -> DeviceJob {
    let work = Asked::Share {
        clusters: Vec::with_capacity(room.clusters),
        activation: forebay_models::network::Activation::Silu,
        biases: [0; 2].map(|_| Vec::with_capacity(room.neurons)),
        weights: Vec::with_capacity(room.clusters * room.batch),
        out: Vec::with_capacity(room.batch * room.d_model),
    };
    job(room, work)
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
        job.id = id(frame.phase.layer, self.sent);
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
        }
    }

    /// Receives the device's answer.
    pub fn collect(&mut self) {
        while let Some(answer) = self.answers.try_recv() {
            let DeviceDone { job, result, .. } = match answer {
                Answer::Done(done) => done,
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
            Answer::Unloaded | Answer::Done(_) => Moving::Moved(phase, None),
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
                    None => Outcome::Failed,
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

/// The number of the `sent`th job, for a phase of `layer`.
fn id(layer: usize, sent: u64) -> u64 {
    (layer as u64) << 32 | sent & 0xffff_ffff
}

/// The layer of the job's phase.
pub(super) fn layer_of(id: u64) -> u16 {
    (id >> 32) as u16
}

/// What the device is asked in a phase.
fn fill(job: &mut DeviceJob, frame: &Frame<'_>, part: &PhasePart, given: &[Item]) {
    job.segment = part.segment().unwrap_or(SegmentId::NONE);
    job.tokens.copy_blocks(frame.input);
    let n_tokens = frame.input.n_tokens();
    let place = |item: &Item| item.source.place().unwrap_or_default();
    match &mut job.work {
        Asked::Rows { panels, out } => {
            panels.clear();
            panels.extend(given.iter().map(|item| part.rows[place(item)]));
            let width: usize = panels.iter().map(|range| range.n_rows).sum();
            out.resize(n_tokens * width, 0.0);
        }
        Asked::Share {
            clusters,
            activation,
            biases,
            weights,
            out,
        } => {
            clusters.clear();
            clusters.extend(given.iter().map(|item| part.clusters[place(item)]));
            *activation = frame.rule.activation();
            fill_biases(biases, frame, given);
            weights.clear();
            if frame.phase.is_routed() {
                for item in given {
                    extend_weights(weights, frame, item);
                }
            }
            out.resize(n_tokens * frame.bundle.meta.network.d_model, 0);
        }
    }
}

/// The clusters' biases of Gate and Up one after the other; none if no cluster has any.
fn fill_biases(biases: &mut [Vec<f32>; 2], frame: &Frame<'_>, given: &[Item]) {
    biases.iter_mut().for_each(Vec::clear);
    let has_any = |item: &Item| frame.biases(item).iter().any(|bias| !bias.is_empty());
    if !given.iter().any(has_any) {
        return;
    }
    for item in given {
        let n = frame.entry(item.cluster).count as usize;
        for (all, own) in biases.iter_mut().zip(frame.biases(item)) {
            all.extend_from_slice(own);
            all.resize(all.len() + n - own.len(), 0.0);
        }
    }
}

/// The weight of a cluster for each token: 0 if the token does not use its expert.
fn extend_weights(weights: &mut Vec<f32>, frame: &Frame<'_>, item: &Item) {
    let (start, n_tokens) = (weights.len(), frame.n_tokens());
    let tokens = frame.tokens_of(item);
    weights.resize(start + n_tokens, 0.0);
    let of_tokens = &mut weights[start..];
    let weight = |i: usize| tokens.weights.get(i).copied().unwrap_or(1.0);
    match tokens.places {
        [] => (0..n_tokens).for_each(|t| of_tokens[t] = weight(t)),
        places => {
            for (i, &t) in places.iter().enumerate() {
                of_tokens[t as usize] = weight(i);
            }
        }
    }
}
