//! Bounded queue of owned values between two actors; sends never wait.
//!
//! A lane is a bounded flume channel plus what wakes its receiver: a doorbell, or another kind of [`Alarm`].
//! Back-pressure is not here but where a buffer is taken: a lane has room for everything that can be in flight, so a
//! full lane is a bug, as its error tells.
//!
//! **Allocation.** flume 0.12 keeps the values in a `VecDeque` that starts empty and grows by doubling, but
//! never shrinks. So a new lane is filled to its capacity and drained once, after which `try_send` and `try_recv` touch
//! no allocator (`tests/no_alloc.rs` counts). flume's blocking and async calls allocate a hook per wait, and its
//! `drain()` takes the whole `VecDeque` out: none of them is used here.

use std::fmt;

use crate::capacity::Capacity;
use crate::doorbell::Ringer;

/// Wakes the receiver of a lane.
pub trait Alarm {
    /// Tells the receiver to look for work. What the caller wrote before is then visible to it.
    fn ring(&self);
}

impl Alarm for Ringer {
    fn ring(&self) {
        Ringer::ring(self);
    }
}

/// The sending end. Dropping the last clone closes the lane and rings.
#[derive(Debug)]
pub struct LaneTx<T, A: Alarm = Ringer> {
    // Declared before `alarm`: fields are dropped in this order, so the receiver that is woken by the
    // last ring finds the lane closed.
    queue: flume::Sender<Option<T>>,
    alarm: RingOnDrop<A>,
    capacity: Capacity,
}

/// The receiving end.
#[derive(Debug)]
pub struct LaneRx<T> {
    queue: flume::Receiver<Option<T>>,
}

#[derive(Debug, Clone)]
struct RingOnDrop<A: Alarm>(A);

impl<A: Alarm> Drop for RingOnDrop<A> {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// A value that could not be sent, and why; the value is returned.
#[derive(thiserror::Error)]
pub enum SendError<T> {
    /// More values are in the lane than it was sized for.
    #[error(
        "lane is full at {capacity}: more is in flight than these reasons allow; \
         this is a bug in the sizes, please report it"
    )]
    Full {
        /// The value.
        value: T,
        /// The lane's size.
        capacity: Capacity,
    },
    /// The receiver is gone.
    #[error("lane is closed: its receiver has stopped")]
    Closed {
        /// The value.
        value: T,
    },
}

impl<T> SendError<T> {
    /// The value that was not sent.
    pub fn into_value(self) -> T {
        match self {
            Self::Full { value, .. } | Self::Closed { value } => value,
        }
    }
}

impl<T> fmt::Debug for SendError<T> {
    // Implemented by hand, so that values need not be `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Makes a lane with room for `capacity` values, whose receiver is woken through `alarm`.
///
/// Allocates everything that it will ever need. A lane with a capacity of 0 is always full.
pub fn lane<T, A: Alarm>(capacity: &Capacity, alarm: A) -> (LaneTx<T, A>, LaneRx<T>) {
    // `Option` only for the warm-up, which needs some value to send; it costs nothing for boxes.
    let (tx, rx) = flume::bounded(capacity.total());
    while tx.try_send(None).is_ok() {}
    while rx.try_recv().is_ok() {}
    let tx = LaneTx {
        queue: tx,
        alarm: RingOnDrop(alarm),
        capacity: capacity.clone(),
    };
    (tx, LaneRx { queue: rx })
}

impl<T, A: Alarm> LaneTx<T, A> {
    /// Sends `value` and rings the receiver. Never blocks.
    ///
    /// # Errors
    /// The lane is full (a bug in its size) or its receiver is gone; either way the value is returned.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.send_quiet(value)?;
        self.ring();
        Ok(())
    }

    /// Sends `value` without ringing. For several values in a row: finish with [`LaneTx::ring`].
    ///
    /// # Errors
    /// As [`LaneTx::send`].
    pub fn send_quiet(&self, value: T) -> Result<(), SendError<T>> {
        // The inner value is always `Some`: `None` is sent by the warm-up only.
        self.queue.try_send(Some(value)).or_else(|e| match e {
            flume::TrySendError::Full(Some(value)) => Err(SendError::Full {
                value,
                capacity: self.capacity.clone(),
            }),
            flume::TrySendError::Disconnected(Some(value)) => Err(SendError::Closed { value }),
            flume::TrySendError::Full(None) | flume::TrySendError::Disconnected(None) => Ok(()),
        })
    }

    /// Wakes the receiver.
    pub fn ring(&self) {
        self.alarm.0.ring();
    }

    /// Whether the receiver is gone, so that nothing sent will ever be seen.
    pub fn is_closed(&self) -> bool {
        self.queue.is_disconnected()
    }

    /// Size of the lane, with its reasons.
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }
}

impl<T, A: Alarm + Clone> Clone for LaneTx<T, A> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            alarm: self.alarm.clone(),
            capacity: self.capacity.clone(),
        }
    }
}

impl<T> LaneRx<T> {
    /// The oldest value, if there is one. Never blocks: wait on the bell that the lane rings.
    pub fn try_recv(&self) -> Option<T> {
        self.queue.try_recv().ok().flatten()
    }

    /// Whether every sender is gone and every value has been taken.
    pub fn is_closed(&self) -> bool {
        // In this order: once the senders are gone, nothing can be added to an empty queue.
        self.queue.is_disconnected() && self.queue.is_empty()
    }

    /// Number of waiting values.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no value waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::doorbell::doorbell;

    #[test]
    fn values_arrive_in_order_and_each_send_rings() {
        let (bell, ringer) = doorbell();
        let (tx, rx) = lane(&Capacity::of(&[("test", 3)]), ringer);
        tx.send("a").expect("room");
        tx.send("b").expect("room");
        assert_eq!((bell.epoch(), rx.len()), (2, 2));
        tx.send_quiet("c").expect("room");
        assert_eq!((bell.epoch(), rx.len()), (2, 3));
        tx.ring();
        assert_eq!(bell.epoch(), 3);
        assert_eq!([rx.try_recv(), rx.try_recv()], [Some("a"), Some("b")]);
        assert_eq!([rx.try_recv(), rx.try_recv()], [Some("c"), None]);
    }

    #[test]
    fn a_full_lane_gives_the_value_back_and_calls_it_a_bug() {
        let (bell, ringer) = doorbell();
        let (tx, _rx) = lane(&Capacity::of(&[("tokens", 1), ("faults", 1)]), ringer);
        tx.send(1).expect("room");
        tx.send(2).expect("room");
        let error = tx.send(3).expect_err("full");
        assert_eq!(bell.epoch(), 2, "a failed send does not ring");
        let text = error.to_string();
        assert!(text.contains("2 = tokens 1 + faults 1"), "{text}");
        assert!(text.contains("bug"), "{text}");
        assert_eq!(error.into_value(), 3);
    }

    #[test]
    fn closing_is_seen_at_both_ends_and_rings() {
        let (bell, ringer) = doorbell();
        let capacity = Capacity::of(&[("test", 2)]);
        let (tx, rx) = lane(&capacity, ringer.clone());
        let second = tx.clone();
        tx.send_quiet(7).expect("room");
        drop(tx);
        assert!(!rx.is_closed());
        drop(second);
        assert_eq!(bell.epoch(), 2, "each sender rings when it goes");
        assert!(!rx.is_closed(), "a value waits");
        assert_eq!(rx.try_recv(), Some(7));
        assert!(rx.is_closed());

        let (tx, rx) = lane(&capacity, ringer);
        drop(rx);
        assert!(tx.is_closed());
        let error = tx.send(vec![1]).expect_err("closed");
        assert!(matches!(error, SendError::Closed { .. }));
        assert_eq!(error.into_value(), [1]);
    }

    #[test]
    fn a_lane_without_places_is_always_full() {
        let (tx, _rx) = lane(&Capacity::of(&[]), doorbell().1);
        assert!(matches!(tx.send(()), Err(SendError::Full { .. })));
    }
}
