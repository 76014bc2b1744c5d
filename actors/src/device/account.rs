//! What a device has done, for other threads to read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_devices::DeviceFault;
use parking_lot::Mutex;

use super::job_number::Sender;

/// A device's work since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Jobs that it was given.
    pub jobs: u64,
    /// Those of them that were parts of attention.
    pub attention_jobs: u64,
    /// Time with a job in flight.
    pub busy_ns: u64,
    /// How often a core waited for it.
    pub waits: u64,
    /// Jobs that the cores computed because the device failed.
    pub faults: u64,
    /// Streamed clusters that were copied to it.
    pub copied: u64,
    /// Their bytes.
    pub copied_bytes: u64,
}

/// The counters where other threads find them, and whether the device is still used.
#[derive(Debug, Default)]
pub struct Account {
    jobs: AtomicU64,
    attention_jobs: AtomicU64,
    busy_ns: AtomicU64,
    waits: AtomicU64,
    faults: AtomicU64,
    copied: AtomicU64,
    copied_bytes: AtomicU64,
    gone: AtomicBool,
    /// Why it is no longer used. Locked only then.
    cause: Mutex<Option<DeviceFault>>,
}

impl Account {
    /// The work done so far.
    pub fn counters(&self) -> DeviceCounters {
        DeviceCounters {
            jobs: self.jobs.load(Ordering::Relaxed),
            attention_jobs: self.attention_jobs.load(Ordering::Relaxed),
            busy_ns: self.busy_ns.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
            faults: self.faults.load(Ordering::Relaxed),
            copied: self.copied.load(Ordering::Relaxed),
            copied_bytes: self.copied_bytes.load(Ordering::Relaxed),
        }
    }

    /// Whether it is no longer used.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Why it is no longer used, if so.
    pub fn cause(&self) -> Option<DeviceFault> {
        self.cause.lock().clone()
    }

    /// A job is over. Numbers out of range concern that job alone; after any other fault the device is not used again.
    pub(super) fn finished(
        &self,
        sender: Sender,
        elapsed_ns: u64,
        result: &Result<(), DeviceFault>,
    ) {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        if matches!(sender, Sender::Attention(_)) {
            self.attention_jobs.fetch_add(1, Ordering::Relaxed);
        }
        self.busy_ns.fetch_add(elapsed_ns, Ordering::Relaxed);
        if let Err(fault) = result {
            self.faults.fetch_add(1, Ordering::Relaxed);
            if *fault != DeviceFault::OutOfRange {
                self.give_up(fault.clone());
            }
        }
    }

    /// A streamed cluster has been copied to it.
    pub(super) fn copied(&self, bytes: usize) {
        self.copied.fetch_add(1, Ordering::Relaxed);
        self.copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A core waits for it.
    pub(crate) fn waited(&self) {
        self.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// It is not used any more. The first cause is kept.
    pub(crate) fn give_up(&self, fault: DeviceFault) {
        self.cause.lock().get_or_insert(fault);
        self.gone.store(true, Ordering::Relaxed);
    }

    /// A job was not answered, or not even accepted.
    pub(super) fn failed(&self, fault: DeviceFault) {
        self.faults.fetch_add(1, Ordering::Relaxed);
        self.give_up(fault);
    }
}
