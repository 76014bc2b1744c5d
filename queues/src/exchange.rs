//! The point at which all cores have published their part: an all-to-all barrier without a lock.
//!
//! It is used several times per layer, so it is built from what each core can do alone: a core stores its own epoch and
//! reads the others'. A cell has one writer, so there is no contended read-modify-write. Nothing blocks here; a core
//! that finds the exchange incomplete does other work, or waits on its own [`Bell`](crate::doorbell::Bell):
//!
//! ```
//! # use forebay_queues::{doorbell::{Spin, doorbell}, exchange::exchange};
//! # let (bell, ringer) = doorbell();
//! # let mut member = exchange(vec![ringer]).0.remove(0);
//! // ... write this core's part to a board ...
//! let epoch = member.arrive();
//! loop {
//!     let seen = bell.epoch();
//!     if member.complete(epoch)? {
//!         break; // every core's part can be read
//!     }
//!     bell.wait(seen, Spin::looks(100), None);
//! }
//! # Ok::<(), forebay_queues::exchange::Aborted>(())
//! ```
//!
//! **Who rings.** Only the arrival of the last core turns [`Member::complete`] true, so only that core rings: `n - 1`
//! rings per exchange instead of `n (n - 1)`. Each core stores its own epoch and then, after a sequentially consistent
//! fence, reads all others; of two cores that arrive at the same moment at least one therefore sees both arrivals (both
//! may, and then both ring, which is harmless).

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::doorbell::Ringer;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

#[derive(Debug)]
struct Shared {
    /// Epoch each core has arrived at; cell `i` is written by member `i` only.
    arrived: Box<[CachePadded<AtomicU64>]>, // [n]
    aborted: CachePadded<AtomicBool>,
    /// The cores' doorbells.
    ringers: Box<[Ringer]>, // [n]
}

/// The exchange was aborted: a core or the supervisor stopped, so it will never be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cores' exchange was aborted: another core stopped; its own report has the cause")]
pub struct Aborted;

/// One core's part in the exchange. Dropping it aborts the exchange: a core that is gone, for instance after a panic,
/// never arrives, and no core may wait for it. Epochs that were complete before stay complete.
#[derive(Debug)]
pub struct Member {
    shared: Arc<Shared>,
    rank: usize,
    epoch: u64,
}

/// Aborts the exchange from outside, e.g. for a supervisor.
#[derive(Debug, Clone)]
pub struct Aborter {
    shared: Arc<Shared>,
}

/// Makes an exchange between as many cores as there are `ringers`; `ringers[i]` wakes member `i`.
///
/// Build a new one after an abort: the members then disagree on the epoch.
pub fn exchange(ringers: Vec<Ringer>) -> (Vec<Member>, Aborter) {
    let shared = Arc::new(Shared {
        arrived: ringers
            .iter()
            .map(|_| CachePadded::new(AtomicU64::new(0)))
            .collect(),
        aborted: CachePadded::new(AtomicBool::new(false)),
        ringers: ringers.into(),
    });
    let members = (0..shared.ringers.len())
        .map(|rank| Member {
            shared: Arc::clone(&shared),
            rank,
            epoch: 0,
        })
        .collect();
    (members, Aborter { shared })
}

impl Member {
    /// Publishes everything that this core has written and returns the epoch, counted from 1. Wakes the other cores if
    /// this was the last one to arrive.
    ///
    /// A core may arrive at the next epoch before the last one is complete.
    pub fn arrive(&mut self) -> u64 {
        self.epoch += 1;
        self.shared.arrived[self.rank].store(self.epoch, Ordering::Release);
        // Between the store to its own cell and the loads of the others': see the module's text.
        fence(Ordering::SeqCst);
        if self.shared.all_arrived(self.epoch) {
            self.shared.ring_all_but(Some(self.rank));
        }
        self.epoch
    }

    /// Whether every core has arrived at `epoch`. If so, everything that each of them wrote before is visible.
    ///
    /// # Errors
    /// The exchange was aborted before this epoch was complete.
    pub fn complete(&self, epoch: u64) -> Result<bool, Aborted> {
        if self.shared.all_arrived(epoch) {
            return Ok(true);
        }
        // Checked second, and so only read while waiting: a complete epoch stays complete, even if a member leaves.
        if !self.is_aborted() {
            return Ok(false);
        }
        // A core that arrived and then left did both before its abort was seen.
        if self.shared.all_arrived(epoch) {
            return Ok(true);
        }
        Err(Aborted)
    }

    /// Wakes another core: this one has something for it.
    pub fn ring(&self, rank: usize) {
        self.shared.ringers[rank].ring();
    }

    /// Aborts the exchange for all members, and wakes them.
    pub fn abort(&self) {
        self.shared.abort(Some(self.rank));
    }

    /// Whether the exchange was aborted, even if the current epoch is complete.
    pub fn is_aborted(&self) -> bool {
        self.shared.aborted.load(Ordering::Acquire)
    }

    /// Number of epochs at which this core has arrived.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Index of this core, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of cores.
    pub fn members(&self) -> usize {
        self.shared.ringers.len()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.abort();
    }
}

impl Aborter {
    /// Aborts the exchange for all members, and wakes them.
    pub fn abort(&self) {
        self.shared.abort(None);
    }
}

impl Shared {
    fn all_arrived(&self, epoch: u64) -> bool {
        self.arrived
            .iter()
            .all(|cell| cell.load(Ordering::Acquire) >= epoch)
    }

    fn abort(&self, by: Option<usize>) {
        // Only the first abort rings, or the members' drops would wake every core n times.
        if !self.aborted.swap(true, Ordering::AcqRel) {
            self.ring_all_but(by);
        }
    }

    fn ring_all_but(&self, rank: Option<usize>) {
        for (i, ringer) in self.ringers.iter().enumerate() {
            if Some(i) != rank {
                ringer.ring();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::doorbell::{Bell, doorbell};

    fn meeting(n: usize) -> (Vec<Bell>, Vec<Member>, Aborter) {
        let (bells, ringers) = (0..n).map(|_| doorbell()).unzip();
        let (members, aborter) = exchange(ringers);
        (bells, members, aborter)
    }

    #[test]
    fn complete_when_the_last_core_arrives_which_alone_rings() {
        let (bells, mut members, _) = meeting(3);
        for rank in [2, 0] {
            assert_eq!(members[rank].arrive(), 1);
            assert_eq!(members[rank].complete(1), Ok(false));
        }
        let rings = |bells: &[Bell]| bells.iter().map(Bell::epoch).collect::<Vec<_>>();
        assert_eq!(rings(&bells), [0, 0, 0]);
        members[1].arrive();
        assert_eq!(rings(&bells), [1, 0, 1]);
        assert!(members.iter().all(|m| m.complete(1) == Ok(true)));
        assert!(members.iter().all(|m| m.complete(2) == Ok(false)));
    }

    #[test]
    fn a_core_may_run_ahead() {
        let (bells, mut members, _) = meeting(2);
        assert_eq!((members[0].arrive(), members[0].arrive()), (1, 2));
        assert_eq!(members[1].arrive(), 1);
        assert_eq!(bells[0].epoch(), 1);
        assert_eq!(members[0].complete(1), Ok(true));
        assert_eq!(members[0].complete(2), Ok(false));
        members[1].arrive();
        assert_eq!(bells[0].epoch(), 2);
        assert_eq!(members[0].complete(2), Ok(true));
    }

    #[test]
    fn one_core_meets_itself() {
        let (_, mut members, _) = meeting(1);
        let epoch = members[0].arrive();
        assert_eq!(members[0].complete(epoch), Ok(true));
        assert_eq!((members[0].rank(), members[0].members()), (0, 1));
    }

    #[test]
    fn an_abort_wakes_everybody_and_spares_complete_meetings() {
        let (bells, mut members, aborter) = meeting(2);
        members[0].arrive();
        members[1].arrive();
        let next = members[0].arrive();
        let before = [bells[0].epoch(), bells[1].epoch()];
        aborter.abort();
        assert_eq!([bells[0].epoch(), bells[1].epoch()], before.map(|e| e + 1));
        assert_eq!(members[0].complete(next), Err(Aborted));
        assert_eq!(members[0].complete(1), Ok(true));
        assert!(members[1].is_aborted());
    }

    #[test]
    fn a_core_that_is_gone_aborts_what_it_cannot_join() {
        let (bells, mut members, _) = meeting(2);
        let mut leaving = members.remove(1);
        let epoch = members[0].arrive();
        leaving.arrive();
        drop(leaving);
        assert_eq!(members[0].complete(epoch), Ok(true));
        assert_eq!(
            bells[0].epoch(),
            2,
            "once for the meeting, once for the abort"
        );
        let epoch = members[0].arrive();
        assert_eq!(members[0].complete(epoch), Err(Aborted));
    }
}
