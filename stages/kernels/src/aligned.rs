//! Buffers of numbers whose vectors do not cross cache lines.

use bytemuck::Pod;
use forebay_queues::pages::give_back;

/// Bytes of a cache line, on which buffers start: no vector load is split.
pub(super) const LINE: usize = 64;

/// A buffer that starts on a cache line, as far as the allocator's address allows.
#[derive(Clone, Debug)]
pub struct Aligned<T> {
    buffer: Vec<T>,
    first: usize,
}

impl<T: Pod + Default> Aligned<T> {
    /// `len` zeros.
    pub fn new(len: usize) -> Self {
        let slack = LINE / size_of::<T>();
        let buffer = vec![T::default(); len + slack];
        let first = buffer.as_ptr().align_offset(LINE).min(slack);
        Self { buffer, first }
    }

    /// `[len]` from `start` on.
    #[inline(always)]
    pub fn part(&self, start: usize, len: usize) -> &[T] {
        &self.buffer[self.first + start..][..len]
    }

    /// The same, for writing.
    #[inline(always)]
    pub fn part_mut(&mut self, start: usize, len: usize) -> &mut [T] {
        &mut self.buffer[self.first + start..][..len]
    }

    /// Gives the memory back to the system, as far as it covers whole pages; the numbers are lost.
    pub fn give_back(&mut self) {
        give_back(&mut self.buffer);
    }

    pub(super) fn copy(&mut self, other: &Self, len: usize) {
        self.copy_part(other, (0, 0, len));
    }

    /// Copies so many numbers from the second place, in `other`, to the first.
    pub(super) fn copy_part(&mut self, other: &Self, (to, from, len): (usize, usize, usize)) {
        self.part_mut(to, len)
            .copy_from_slice(other.part(from, len));
    }
}
