//! The primitives on which the concurrent parts are built: std's, or loom's when a model is checked
//! (`RUSTFLAGS="--cfg loom"`).

pub(crate) use primitives::*;

#[cfg(not(loom))]
mod primitives {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::Mutex;
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence,
    };
    pub(crate) use std::thread::{Thread, ThreadId, current};

    use std::time::{Duration, Instant};

    /// The moment at which a parked thread stops waiting; `None` means never.
    pub(crate) struct Deadline(Option<Instant>);

    impl Deadline {
        /// A timeout that is too long for the clock means no timeout.
        pub(crate) fn after(timeout: Option<Duration>) -> Self {
            Self(timeout.and_then(|t| Instant::now().checked_add(t)))
        }

        /// Parks once (wakes may be spurious); returns whether the deadline has passed.
        pub(crate) fn park(&self) -> bool {
            let Some(at) = self.0 else {
                std::thread::park();
                return false;
            };
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::park_timeout(left);
            Instant::now() >= at
        }
    }
}

#[cfg(loom)]
mod primitives {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence,
    };
    pub(crate) use loom::thread::{Thread, ThreadId, current};

    use std::time::Duration;

    /// loom has no clock: a deadline passes at the first park, in every interleaving.
    pub(crate) struct Deadline(bool);

    impl Deadline {
        pub(crate) fn after(timeout: Option<Duration>) -> Self {
            Self(timeout.is_some())
        }

        pub(crate) fn park(&self) -> bool {
            if self.0 {
                loom::thread::yield_now();
            } else {
                loom::thread::park();
            }
            self.0
        }
    }
}
