//! What a device computes of the core's phases. Only core 0 has to do with what is pinned; streamed clusters go there
//! from every core (`Uploader`).

use std::sync::Arc;
use std::time::Duration;

use forebay_plans::program::Work;
use forebay_stages::contract::Turn;
use forebay_stages::rows;
use forebay_traces::record::Reason;

use super::phases::Apart;
use super::{Core, State};
use crate::device::{DeviceLink, Errand, Move, Moving, Outcome, gather};
use crate::wiring::Stages;

impl Core {
    /// Phase `number` has been prepared: the device gets its clusters.
    pub(super) fn give_to_device(&mut self, number: usize) {
        let Some(mut link) = self.device.take() else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        let places = shared.device_places(&self.step, number) as usize;
        let parts = shared.device.as_ref().and_then(|device| device.of(number));
        if let (Some(part), true) = (parts, places > 0) {
            let items = &shared.on_device.phases[number].items[..places];
            link.begin(&self.apart(number).frame, part, items);
        }
        self.device = Some(link);
    }

    /// Takes what the device has computed of phase `number`, or computes it itself; false if there is nothing new.
    pub(super) fn take_from_device(&mut self, number: usize) -> bool {
        let Some(mut link) = self.device.take() else {
            return false;
        };
        link.collect();
        let Apart { frame, stages, .. } = &mut self.apart(number);
        let taken = match link.take() {
            None => false,
            Some((outcome, given)) => {
                match outcome {
                    Outcome::Rows(results) => rows::publish(frame, given, results),
                    Outcome::Share(share) => stages.udc.add(share),
                    Outcome::Failed if frame.phase.neurons().is_empty() => {
                        stages.rows.make_good(given);
                    }
                    Outcome::Failed => stages.pred.make_good(given),
                }
                true
            }
        };
        self.device = Some(link);
        taken
    }

    /// Copies a cluster of the next FFN to the device in a phase before it, if one has been read and there is room;
    /// false if not.
    pub(super) fn copy_ahead(&mut self, number: usize) -> bool {
        let n_tokens = self.step.tokens.places.len();
        let program = self.prompts.program().unwrap_or(&self.program);
        let phase = &program.phases[number];
        let Stages {
            uploader, preload, ..
        } = &mut self.stages;
        let (Some(uploader), true) = (uploader, self.prompts.is_active()) else {
            return false;
        };
        if matches!(phase.work, Work::Neurons { .. }) || !uploader.has_room() {
            return false;
        }
        let next = program.ffn_after(number, phase.layer);
        let items = next.map_or(&[][..], |next| program.phases[next].neurons());
        items.iter().any(|item| {
            let ordinal = item.source.ordinal();
            let here = ordinal.and_then(|ordinal| preload.reader.window_ref().here(ordinal));
            here.is_some_and(|bytes| {
                let which = (item.cluster, self.shared.entry(item.cluster));
                uploader.copy_ahead(n_tokens, which, bytes)
            })
        })
    }

    /// Whether the device still computes a part of the phase.
    pub(super) fn awaits_device(&self) -> bool {
        let attender = self.mixers.attender.as_ref();
        let attends = attender.is_some_and(|attender| attender.is_waiting());
        attends || self.device.as_ref().is_some_and(|link| link.is_waiting())
    }

    /// Nothing can be done in a phase until a read or the device is back.
    pub(super) fn wait_in_phase(&mut self) -> Turn {
        let uploads = self.stages.uploader.as_ref();
        let waits = self.awaits_device() || uploads.is_some_and(|u| u.is_waiting());
        let Some(device) = self.shared.device.as_ref().filter(|_| waits) else {
            return Turn::Blocked(self.waits_for());
        };
        if !self.blocked {
            device.account.waited();
        }
        match self.is_reading() {
            true => Turn::Blocked(self.waits_for()),
            false => Turn::Blocked(Reason::Device),
        }
    }

    /// Has the next phase's weights given back or copied, so that the device has those of the first `keep` phases and
    /// no others; `None` once it has, or is not used any more.
    pub(super) fn move_on_device(&mut self, keep: usize) -> Option<Turn> {
        let shared = Arc::clone(&self.shared);
        let (link, parts) = (self.device.as_mut()?, shared.device.as_ref()?);
        link.collect();
        match link.take_moved() {
            Moving::Asked(_) => return Some(Turn::Blocked(Reason::Device)),
            Moving::Moved(phase, segment) => parts.moved(phase, segment),
            // It would have no room for those of later phases either.
            Moving::Failed(phase) => {
                self.state = State::ResizeDevice {
                    keep: keep.min(phase),
                }
            }
            Moving::None if link.account().is_gone() => return None,
            Moving::None => {
                let (phase, errand) = match parts.next_move(keep)? {
                    Move::Unload(phase, segment) => (phase, Errand::Unload(segment)),
                    Move::Reserve(phase, bytes) => (phase, Errand::Reserve(bytes)),
                    Move::Load(phase) => {
                        let of_phase = &shared.on_device.phases[phase];
                        let bytes = gather(&shared.bundle, of_phase, &shared.resident);
                        (phase, Errand::Load(bytes.ok()?))
                    }
                };
                link.move_weights(phase, errand);
            }
        }
        Some(Turn::Progress)
    }

    /// How long the core may sleep for `reason`.
    pub(super) fn patience(&self, reason: Reason) -> Option<Duration> {
        let device = self.shared.device.as_ref();
        device
            .filter(|_| reason == Reason::Device)
            .map(|device| device.patience)
    }

    /// The core has slept that long.
    pub(super) fn lose_patience(&mut self, slept: Duration) {
        if let Some(link) = &mut self.device {
            link.give_up(slept.as_secs());
        }
        if let Some(uploader) = &mut self.stages.uploader {
            uploader.give_up(slept.as_secs());
        }
        if let Some(attender) = &mut self.mixers.attender {
            attender.give_up(slept.as_secs());
        }
    }
}

/// Room in the stages for what a device fails to compute.
pub(super) fn reserve(link: Option<&DeviceLink>, stages: &mut Stages) {
    let most = link.map_or(0, DeviceLink::most_items);
    stages.rows.reserve_for_device(most);
    stages.pred.reserve_for_device(most);
}
