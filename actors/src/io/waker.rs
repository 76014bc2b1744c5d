//! Interrupting a waiting driver: one atomic swap, and an eventfd write only if it really sleeps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use forebay_queues::lane::Alarm;
use rustix::event::{EventfdFlags, eventfd};

/// The driver runs; no call since it last looked.
const RUNNING: u8 = 0;
/// The driver sleeps or is about to: a caller must ring the bell.
const WAITING: u8 = 1;
/// There was a call: the next wait returns at once.
const CALLED: u8 = 2;

#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    bell: OwnedFd,
}

/// Interrupts one driver's `wait` from any thread.
///
/// A call is never lost: it either finds the driver asleep and rings, or is remembered and makes the
/// next wait return at once. Calls do not add up; what was published before a call is visible to the
/// driver's thread after the wait that the call ended.
#[derive(Debug, Clone)]
pub struct Waker {
    shared: Arc<Shared>,
}

impl Waker {
    /// Ends the driver's current wait, or its next.
    pub fn wake(&self) {
        if self.shared.state.swap(CALLED, Ordering::AcqRel) == WAITING {
            self.write();
        }
    }

    fn write(&self) {
        // The counter is drained after each ring, so that it cannot overflow, and a ring that finds it
        // non-zero has already been heard: no error here loses a wake-up.
        let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
    }
}

impl Alarm for Waker {
    fn ring(&self) {
        self.wake();
    }
}

/// The driver's end of its [`Waker`]s.
#[derive(Debug)]
pub(super) struct Bell {
    shared: Arc<Shared>,
}

impl Bell {
    /// Makes a bell.
    ///
    /// # Errors
    /// The process may open no more file descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            shared: Arc::new(Shared {
                state: AtomicU8::new(RUNNING),
                bell,
            }),
        })
    }

    /// A new handle for callers.
    pub(super) fn waker(&self) -> Waker {
        Waker {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Announces a wait. `false` if there was a call meanwhile: then do not wait. After `true` the driver must look for
    /// completions once more before it sleeps, and call [`resume`](Self::resume) afterwards.
    pub(super) fn prepare_wait(&self) -> bool {
        let state = &self.shared.state;
        match state.compare_exchange(RUNNING, WAITING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(_) => {
                self.resume();
                false
            }
        }
    }

    /// Ends a wait; forgets the call that ended it, since the caller's work is visible now.
    pub(super) fn resume(&self) {
        self.shared.state.swap(RUNNING, Ordering::AcqRel);
    }

    /// Whether there was a call since the last wait, or during it.
    pub(super) fn is_called(&self) -> bool {
        self.shared.state.load(Ordering::Acquire) == CALLED
    }

    /// Silences the bell after it was heard.
    pub(super) fn silence(&self) {
        let mut counter = [0u8; 8];
        // Fails only if it is already silent.
        let _ = rustix::io::read(&self.shared.bell, &mut counter);
    }

    /// The descriptor, for a ring's poll operation.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.shared.bell.as_raw_fd()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(bell: &Bell) -> u64 {
        let mut counter = [0u8; 8];
        match rustix::io::read(&bell.shared.bell, &mut counter) {
            Ok(_) => u64::from_ne_bytes(counter),
            Err(_) => 0,
        }
    }

    #[test]
    fn a_running_driver_is_called_without_a_system_call() {
        let bell = Bell::new().expect("eventfd");
        bell.waker().wake();
        bell.waker().wake();
        assert_eq!(counter(&bell), 0);
        assert!(!bell.prepare_wait(), "the call is remembered");
        assert!(bell.prepare_wait(), "and forgotten once heard");
    }

    #[test]
    fn a_sleeping_driver_hears_the_bell_once() {
        let bell = Bell::new().expect("eventfd");
        let waker = bell.waker();
        assert!(bell.prepare_wait());
        waker.wake();
        waker.wake();
        assert_eq!(counter(&bell), 1);
        bell.resume();
        assert!(bell.prepare_wait());
        waker.wake();
        bell.silence();
        assert_eq!(counter(&bell), 0);
    }
}
