//! Memory that its owner alone changes, and that all threads read in between.
//!
//! A [`Slot`] is the only handle to its bytes. While it is published, there are readers instead, and nobody can write;
//! to change it, the owner retracts it, which succeeds once the last reader is gone. The locks are for those two
//! moments: readers keep what they have got, so none is taken while tokens are computed.

use std::sync::Arc;

use crate::slab::Slot;
use crate::sync::Mutex;

/// A published slot, for one reader.
pub type Reading = Arc<Slot>;

/// One place per owner.
#[derive(Debug)]
pub struct Published {
    slots: Box<[Mutex<Option<Reading>>]>, // [owners]
}

/// Somebody still reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillRead;

impl Published {
    /// What each owner publishes from the beginning.
    pub fn new(slots: impl IntoIterator<Item = Option<Slot>>) -> Self {
        let slots = slots.into_iter();
        Self {
            slots: slots.map(|slot| Mutex::new(slot.map(Arc::new))).collect(),
        }
    }

    /// Number of owners.
    pub fn owners(&self) -> usize {
        self.slots.len()
    }

    /// Publishes a slot, or nothing, in place of what was retracted.
    pub fn publish(&self, owner: usize, slot: Option<Slot>) {
        *self.place(owner) = slot.map(Arc::new);
    }

    /// What `owner` has published.
    pub fn read(&self, owner: usize) -> Option<Reading> {
        self.place(owner).clone()
    }

    /// Takes back what `owner` has published; nothing if there was nothing.
    ///
    /// # Errors
    /// Somebody still reads it: it stays published.
    pub fn retract(&self, owner: usize) -> Result<Option<Slot>, StillRead> {
        let mut place = self.place(owner);
        let Some(slot) = place.take() else {
            return Ok(None);
        };
        match Arc::try_unwrap(slot) {
            Ok(slot) => Ok(Some(slot)),
            Err(slot) => {
                *place = Some(slot);
                Err(StillRead)
            }
        }
    }

    /// An owner's place. A thread that panicked has changed nothing halfway: the place is written in one piece.
    fn place(&self, owner: usize) -> impl std::ops::DerefMut<Target = Option<Reading>> + '_ {
        let place = &self.slots[owner];
        place
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::slab::{PAGE, Slab};

    #[test]
    fn what_is_read_cannot_be_retracted() {
        let mut slab = Slab::new(2 * PAGE).expect("two pages");
        let published = Published::new([slab.carve(PAGE), None]);
        assert_eq!(published.owners(), 2);
        let reading = published.read(0).expect("published");
        assert_eq!(published.retract(0).unwrap_err(), StillRead);
        assert_eq!(reading.len(), PAGE);
        drop(reading);
        let mut slot = published.retract(0).expect("unread").expect("published");
        slot.fill(7);
        assert!(published.read(0).is_none());
        assert!(published.retract(0).expect("nothing there").is_none());
        published.publish(0, Some(slot));
        assert!(published.read(0).expect("again").iter().all(|&b| b == 7));
        assert!(published.read(1).is_none());
    }
}
