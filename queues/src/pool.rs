//! A fixed number of boxes that go out with work and come home empty.
//!
//! The one place where back-pressure lives: who cannot take a box waits, so nothing downstream ever has to.
//! A pool belongs to one actor and has no lock; boxes come home over a lane.

use crate::capacity::{Capacity, TooSmall};

/// A fixed number of boxed `T`s.
#[derive(Debug)]
pub struct Pool<T> {
    name: &'static str,
    // Boxed, because it is the box that travels: moving a batch moves one pointer.
    home: Vec<Box<T>>,
    size: usize,
}

impl<T> Pool<T> {
    /// Makes `size` boxes, all at home.
    pub fn new(name: &'static str, size: usize, mut make: impl FnMut() -> T) -> Self {
        Self {
            name,
            home: (0..size).map(|_| Box::new(make())).collect(),
            size,
        }
    }

    /// A box, unless all are out: then the caller has to wait until one comes home.
    ///
    /// The box that came home last goes out first, since its memory is warm.
    pub fn take(&mut self) -> Option<Box<T>> {
        self.home.pop()
    }

    /// Takes a box home. It is the giver's task to have emptied it.
    ///
    /// # Panics
    /// No box is out, so this one cannot be of this pool: a bug in the caller, which would otherwise break
    /// the limit that every lane's size relies on.
    pub fn give(&mut self, item: Box<T>) {
        assert!(
            self.home.len() < self.size,
            "a foreign box came to pool `{}`, all of whose {} boxes are at home",
            self.name,
            self.size
        );
        self.home.push(item);
    }

    /// Number of boxes that are out.
    pub fn out(&self) -> usize {
        self.size - self.home.len()
    }

    /// Number of boxes at home.
    pub fn available(&self) -> usize {
        self.home.len()
    }

    /// Number of boxes altogether.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What the pool is called in messages.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Checks at start-up that a lane holds all of this pool's boxes at once.
    ///
    /// # Errors
    /// The lane is too small.
    pub fn fits(&self, lane: &Capacity) -> Result<(), TooSmall> {
        lane.covers(self.name, self.size)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::batch::Batch;

    #[test]
    fn boxes_go_out_and_come_home() {
        let mut made = 0;
        let mut pool = Pool::new("batches", 2, || {
            made += 1;
            Batch::<u32, 4>::new()
        });
        let (a, b) = (pool.take().expect("two"), pool.take().expect("one"));
        assert!(pool.take().is_none());
        assert_eq!((pool.out(), pool.available()), (2, 0));
        let address = std::ptr::from_ref(&*b);
        pool.give(b);
        pool.give(a);
        assert_eq!((pool.out(), pool.available()), (0, 2));
        pool.take();
        assert!(std::ptr::eq(
            &*pool.take().expect("the first one home"),
            address
        ));
        assert_eq!(made, 2, "no box is made after start-up");
    }

    #[test]
    #[should_panic(expected = "foreign box came to pool `batches`")]
    fn a_foreign_box_is_refused() {
        Pool::new("batches", 1, || 0).give(Box::new(1));
    }

    #[test]
    fn a_lane_is_checked_against_the_pool() {
        let pool = Pool::new("batches", 3, || ());
        assert!(pool.fits(&Capacity::sum(&[("batches", 3)])).is_ok());
        let error = pool
            .fits(&Capacity::sum(&[("batches", 2)]))
            .expect_err("too small");
        assert!(error.to_string().contains("pool `batches`"));
    }
}
