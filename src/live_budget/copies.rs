//! What a device has of the process's memory, and how much of it goes if that has to shrink: first keys and values,
//! then the window for streamed clusters, then copies of weights from the last phase on.

use forebay_models::bundle::Bundle;
use forebay_plans::on_device::{OnDevice, PhaseOnDevice};

/// Copies of weights on a device, in memory that it shares with the CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    /// Bytes by phase, those of the window for streamed clusters, and those of keys and values.
    pub(super) phases: Vec<u64>,
    pub(super) window: u64,
    /// Of keys and values.
    pub(super) kv: u64,
}

impl Copies {
    /// Those of a device that shares the memory, and `imports` pinned weights or has copies of them.
    pub fn of(bundle: &Bundle, (on_device, kv): (&OnDevice, u64), imports: bool) -> Self {
        let uploads = on_device.uploads.as_ref();
        let of_phase = |phase: &PhaseOnDevice| match imports {
            true => 0,
            false => phase.bytes(bundle),
        };
        Self {
            phases: on_device.phases.iter().map(of_phase).collect(),
            window: uploads.map_or(0, |uploads| uploads.window.device_bytes()),
            kv,
        }
    }

    /// Bytes that are released if those of the first `keep` phases stay.
    pub(super) fn freed(&self, keep: usize) -> u64 {
        self.phases.iter().skip(keep).sum()
    }

    /// Bytes of the window that are released then.
    pub(super) fn freed_window(&self, keep: usize) -> u64 {
        match keep > self.phases.len() {
            true => 0,
            false => self.window,
        }
    }

    /// Bytes of keys and values that are released then.
    pub(super) fn freed_kv(&self, keep: usize) -> u64 {
        match keep > self.phases.len() + 1 {
            true => 0,
            false => self.kv,
        }
    }

    pub(super) fn freed_in_all(&self, keep: usize) -> u64 {
        self.freed(keep) + self.freed_window(keep) + self.freed_kv(keep)
    }

    /// How many phases can keep theirs if `bytes` are to be released: all if none are or nothing is here, none if even
    /// that is too little. Behind the last phase come the window, and keys and values.
    pub(super) fn keep(&self, bytes: u64) -> usize {
        match bytes.min(self.freed_in_all(0)) {
            0 => usize::MAX,
            _ => {
                let enough = |&keep: &usize| self.freed_in_all(keep) >= bytes;
                (0..=self.phases.len() + 1).rev().find(enough).unwrap_or(0)
            }
        }
    }
}
