//! Fixed-capacity collection of owned items that travels between cores in a box and comes home.
//!
//! One message per batch instead of one per cluster: a hop costs the same for 1 as for 32 items.

use std::slice;

/// Up to `N` items, allocated once.
#[derive(Debug)]
pub struct Batch<T, const N: usize> {
    items: Vec<T>, // len <= N <= capacity, never grown
}

impl<T, const N: usize> Batch<T, N> {
    /// An empty batch with room for `N` items.
    pub fn new() -> Self {
        Self {
            items: Vec::with_capacity(N),
        }
    }

    /// Adds an item at the end.
    ///
    /// # Errors
    /// The batch is full; the item comes back.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        self.items.push(item);
        Ok(())
    }

    /// Takes the last item.
    pub fn pop(&mut self) -> Option<T> {
        self.items.pop()
    }

    /// Takes every item, first to last; the batch is empty afterwards and keeps its memory.
    pub fn drain(&mut self) -> std::vec::Drain<'_, T> {
        self.items.drain(..)
    }

    /// Drops every item and keeps the memory.
    pub fn clear(&mut self) {
        self.items.clear();
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether there is no room.
    pub fn is_full(&self) -> bool {
        self.items.len() == N
    }

    /// The items, first to last.
    pub fn as_slice(&self) -> &[T] {
        &self.items
    }

    /// The items, first to last.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items
    }

    /// Walks over the items.
    pub fn iter(&self) -> slice::Iter<'_, T> {
        self.items.iter()
    }

    /// Walks over the items.
    pub fn iter_mut(&mut self) -> slice::IterMut<'_, T> {
        self.items.iter_mut()
    }
}

impl<T, const N: usize> Default for Batch<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a Batch<T, N> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a mut Batch<T, N> {
    type Item = &'a mut T;
    type IntoIter = slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn holds_n_items_in_order_and_never_moves_its_memory() {
        let mut batch = Batch::<String, 3>::new();
        let home = batch.as_slice().as_ptr();
        for round in 0..3 {
            for i in 0..3 {
                batch.push(format!("{round}.{i}")).expect("room");
            }
            assert!(batch.is_full());
            assert_eq!(batch.push("one more".into()), Err("one more".into()));
            for item in &mut batch {
                item.push('!');
            }
            let items: Vec<String> = batch.drain().collect();
            assert_eq!(items, [0, 1, 2].map(|i| format!("{round}.{i}!")));
            assert!(batch.is_empty());
        }
        assert_eq!(batch.as_slice().as_ptr(), home);
    }

    #[test]
    fn a_batch_of_none_is_empty_and_full() {
        let mut batch = Batch::<u8, 0>::default();
        assert!(batch.is_empty() && batch.is_full());
        assert_eq!(batch.push(1), Err(1));
        assert_eq!(batch.pop(), None);
    }
}
