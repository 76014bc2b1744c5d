//! How a sleeping core learns that there is work: every ring advances an epoch.
//!
//! The owner of a [`Bell`] reads [`Bell::epoch`], looks for work everywhere it may come from, and, having
//! found none, calls [`Bell::wait`] with the epoch it read. A ring in between has advanced the epoch, so the wait
//! returns at once: there is no lost wake-up, however many queues share one bell. (The idea is the event count of Reed
//! and Kanodia, CACM 22(2), 1979.)
//!
//! Epoch and "the owner is parked" share one word. Ringing is a single `fetch_add` that also tells whether the owner
//! sleeps, so the system call is made only then, and no store-load fence is needed.

use std::cell::Cell;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Deadline, Mutex, Ordering, Thread, ThreadId, current, spin_loop};

/// Lowest bit of the state: the owner is parked or about to be.
const PARKED: u64 = 1;
/// One step of the epoch, which is the state without its lowest bit.
const STEP: u64 = 2;

#[derive(Debug)]
struct Shared {
    /// `epoch << 1 | parked`. Only the owner changes the parked bit.
    state: AtomicU64,
    /// The thread to unpark. Locked when the owner binds and when a ringer finds it parked.
    owner: Mutex<Option<Thread>>,
}

/// How many times [`Bell::wait`] checks again before it parks.
///
/// One check is a load and a `spin_loop` hint. Spinning saves the waker the cost of an unpark (7 µs) and the sleeper
/// that of a wake-up (14 µs), but it keeps other threads off the core: on two virtual CPUs a long spin starves the very
/// thread that the spinning one waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spin {
    looks: u32,
}

impl Spin {
    /// Park at once.
    pub const NONE: Self = Self::looks(0);

    /// Check `looks` more times before parking.
    pub const fn looks(looks: u32) -> Self {
        Self { looks }
    }
}

/// Why [`Bell::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woke {
    /// The bell had already been rung, or was rung while spinning: no wake-up was needed.
    Spinning,
    /// The bell was rung while the thread was parked.
    Parked,
    /// The bell was not rung in time.
    TimedOut,
}

/// The listening end, owned by one thread at a time (`Send`, not `Sync`, not `Clone`).
#[derive(Debug)]
pub struct Bell {
    shared: Arc<CachePadded<Shared>>,
    bound: Cell<Option<ThreadId>>,
}

/// The ringing end: any number of clones, on any thread.
#[derive(Debug, Clone)]
pub struct Ringer {
    shared: Arc<CachePadded<Shared>>,
}

/// Makes a bell and its first ringer. Ringing before the bell has a thread is remembered by the epoch.
pub fn doorbell() -> (Bell, Ringer) {
    let shared = Arc::new(CachePadded::new(Shared {
        state: AtomicU64::new(0),
        owner: Mutex::new(None),
    }));
    let ringer = Ringer {
        shared: Arc::clone(&shared),
    };
    let bound = Cell::new(None);
    (Bell { shared, bound }, ringer)
}

impl Bell {
    /// Number of rings so far. Everything written before those rings is visible after this call.
    pub fn epoch(&self) -> u64 {
        self.shared.state.load(Ordering::Acquire) >> 1
    }

    /// Makes the calling thread the one to wake. [`Bell::wait`] does this too; calling it at
    /// start-up only moves the cost there.
    pub fn bind(&self) {
        let thread = current();
        if self.bound.get() != Some(thread.id()) {
            self.bound.set(Some(thread.id()));
            *self
                .shared
                .owner
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(thread);
        }
    }

    /// Returns as soon as the epoch differs from `seen`: spins first, then parks for at most `timeout` (`None`: without
    /// limit).
    ///
    /// Read `seen` from [`Bell::epoch`] before looking for work, never after.
    pub fn wait(&self, seen: u64, spin: Spin, timeout: Option<Duration>) -> Woke {
        for look in 0..=spin.looks {
            if self.epoch() != seen {
                return Woke::Spinning;
            }
            if look < spin.looks {
                spin_loop();
            }
        }
        if timeout == Some(Duration::ZERO) {
            return Woke::TimedOut;
        }
        self.park(seen, &Deadline::after(timeout))
    }

    fn park(&self, seen: u64, deadline: &Deadline) -> Woke {
        self.bind();
        let state = &self.shared.state;
        let awake = seen << 1;
        // Fails if and only if the bell has been rung since `seen`. A release, so that a ringer that sees the bit also
        // sees the bound thread.
        if state
            .compare_exchange(awake, awake | PARKED, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            return Woke::Spinning;
        }
        loop {
            let passed = deadline.park();
            // A park may end for no reason, or by an unpark that was meant for an earlier wait.
            if passed || self.epoch() != seen {
                let before = state.fetch_and(!PARKED, Ordering::Acquire);
                return if before >> 1 == seen {
                    Woke::TimedOut
                } else {
                    Woke::Parked
                };
            }
        }
    }
}

impl Ringer {
    /// Tells the bell's owner to look for work. What the caller wrote before is then visible to it.
    ///
    /// One read-modify-write while the owner is awake; a system call only if it is parked.
    pub fn ring(&self) {
        let before = self.shared.state.fetch_add(STEP, Ordering::AcqRel);
        if before & PARKED != 0 {
            self.unpark();
        }
    }

    #[cold]
    fn unpark(&self) {
        // Cloned so that the lock is not held during the system call: another ringer may follow immediately.
        let owner = self
            .shared
            .owner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(thread) = owner {
            thread.unpark();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Instant;

    const LONG: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn rings_before_the_thread_starts_are_remembered() {
        let (bell, ringer) = doorbell();
        ringer.ring();
        ringer.clone().ring();
        let woke = std::thread::spawn(move || (bell.epoch(), bell.wait(0, Spin::NONE, LONG)))
            .join()
            .expect("no panic");
        assert_eq!(woke, (2, Woke::Spinning));
    }

    #[test]
    fn wait_without_a_ring_times_out_and_leaves_the_bell_usable() {
        let (bell, ringer) = doorbell();
        let start = Instant::now();
        let timeout = Duration::from_millis(5);
        assert_eq!(bell.wait(0, Spin::looks(3), Some(timeout)), Woke::TimedOut);
        assert!(start.elapsed() >= timeout);
        assert_eq!(
            bell.wait(0, Spin::NONE, Some(Duration::ZERO)),
            Woke::TimedOut
        );
        ringer.ring();
        assert_eq!(bell.wait(0, Spin::NONE, LONG), Woke::Spinning);
        assert_eq!(bell.epoch(), 1);
    }

    #[test]
    fn a_foreign_unpark_does_not_end_the_wait() {
        let (bell, _ringer) = doorbell();
        std::thread::current().unpark();
        let timeout = Duration::from_millis(5);
        let start = Instant::now();
        assert_eq!(bell.wait(0, Spin::NONE, Some(timeout)), Woke::TimedOut);
        assert!(start.elapsed() >= timeout);
    }

    #[test]
    fn a_bell_may_move_to_another_thread() {
        let (bell, ringer) = doorbell();
        bell.bind();
        let waiter = std::thread::spawn(move || bell.wait(0, Spin::NONE, LONG));
        // Long enough that the waiter is parked, on its new thread, in nearly every run.
        std::thread::sleep(Duration::from_millis(20));
        ringer.ring();
        assert_ne!(waiter.join().expect("no panic"), Woke::TimedOut);
    }
}
