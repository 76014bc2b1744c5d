//! Work that its owner has ready and any core may do: owned values that are offered, taken by whichever core is free,
//! and given back.
//!
//! [Claims](crate::claims) share what is in memory for all to read. What came from flash is a core's own: it travels in
//! its buffer, which only the owner may fill again. So a core that has nothing left to do takes the whole value, and
//! the owner gets it back before the exchange that ends their phase.

use crossbeam_queue::ArrayQueue;

/// What all cores offer.
#[derive(Debug)]
pub struct Lending<T> {
    shelves: Box<[Shelf<T>]>, // [owners]
}

/// What one core offers, and what it has not taken back yet.
#[derive(Debug)]
struct Shelf<T> {
    offered: ArrayQueue<T>,
    returned: ArrayQueue<T>,
}

impl<T> Lending<T> {
    /// For as many `owners`. A core offers one value for each of the others and one for itself, so that nobody waits
    /// while it does one of them. Nobody offers anything if there is one core.
    pub fn new(owners: usize) -> Self {
        let shelf = || Shelf {
            offered: ArrayQueue::new(owners),
            // The others have at most one each, and those on the shelf: no more is offered while there is one here.
            returned: ArrayQueue::new(2 * owners),
        };
        let shelves = if owners > 1 { owners } else { 0 };
        Self {
            shelves: (0..shelves).map(|_| shelf()).collect(),
        }
    }

    /// Whether there is more than one core.
    pub fn has_takers(&self) -> bool {
        !self.shelves.is_empty()
    }

    /// Whether `owner` may offer another value: its shelf is not full, and it has taken back what was returned.
    pub fn has_room(&self, owner: usize) -> bool {
        let shelf = self.shelves.get(owner);
        shelf.is_some_and(|shelf| !shelf.offered.is_full() && shelf.returned.is_empty())
    }

    /// Offers a value of `owner`'s.
    ///
    /// # Errors
    /// It has no room.
    pub fn offer(&self, owner: usize, value: T) -> Result<(), T> {
        match self.has_room(owner) {
            true => self.shelves[owner].offered.push(value),
            false => Err(value),
        }
    }

    /// Takes what was offered first, with its owner: of core `rank`'s own, or else of another's.
    pub fn take(&self, rank: usize) -> Option<(usize, T)> {
        let n = self.shelves.len();
        let mut owners = (rank..n).chain(0..rank.min(n));
        owners.find_map(|owner| Some((owner, self.shelves[owner].offered.pop()?)))
    }

    /// Gives a value back that was taken of `owner`'s. A core may take one more before it has given one back.
    ///
    /// # Panics
    /// Cores have taken more than that.
    pub fn give_back(&self, owner: usize, value: T) {
        let full = self.shelves[owner].returned.push(value).is_err();
        assert!(!full, "core {owner} gets back more than it had");
    }

    /// Takes back one of `owner`'s values.
    pub fn take_back(&self, owner: usize) -> Option<T> {
        self.shelves.get(owner)?.returned.pop()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_takes_its_own_first_and_then_others() {
        let lending = Lending::new(3);
        for value in [10, 11, 12] {
            assert_eq!(lending.offer(1, value), Ok(()));
        }
        assert!(!lending.has_room(1) && lending.has_room(0));
        assert_eq!(lending.offer(1, 13), Err(13));
        assert_eq!(lending.offer(2, 20), Ok(()));
        let taken: Vec<_> = std::iter::from_fn(|| lending.take(2)).collect();
        assert_eq!(taken, [(2, 20), (1, 10), (1, 11), (1, 12)]);
        lending.give_back(1, 11);
        assert_eq!(lending.offer(1, 14), Err(14), "it looks at what came back");
        assert_eq!(
            (lending.take_back(1), lending.take_back(1)),
            (Some(11), None)
        );
        assert_eq!(lending.offer(1, 14), Ok(()));
        assert_eq!(lending.take_back(2), None);
    }

    #[test]
    fn a_single_core_keeps_what_it_has() {
        let lending = Lending::new(1);
        assert!(!lending.has_takers() && !lending.has_room(0));
        assert_eq!(lending.offer(0, 1), Err(1));
        assert_eq!((lending.take(0), lending.take_back(0)), (None, None));
    }

    #[test]
    fn all_values_come_home_from_threads() {
        const N: usize = 1000;
        let lending = Lending::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut left = N;
                while left > 0 {
                    if let Some((owner, value)) = lending.take(1) {
                        lending.give_back(owner, value);
                        left -= 1;
                    }
                }
            });
            let (mut next, mut sum) = (0, 0);
            while sum < N * (N - 1) / 2 {
                if next < N && lending.offer(0, next).is_ok() {
                    next += 1;
                }
                sum += std::iter::from_fn(|| lending.take_back(0)).sum::<usize>();
            }
        });
        assert_eq!(lending.take_back(0), None);
    }
}
