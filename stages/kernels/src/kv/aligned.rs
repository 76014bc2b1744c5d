//! Zeroed memory on cache lines.

use std::ops::Range;

/// Alignment in bytes: one cache line, so that no vector load is split.
const LINE: usize = 64;

/// A buffer that starts on a cache line, as far as the allocator's address allows. It holds only plain integers and
/// floats: zeroed ones come directly from the system, and are committed when they are written.
#[derive(Debug)]
pub(super) struct Aligned<T> {
    buffer: Vec<T>,
    first: usize,
}

impl<T: Copy> Aligned<T> {
    /// Elements that are allocated in addition to the requested ones.
    const SLACK: usize = LINE / size_of::<T>();

    /// Takes over zeros, which must be [`Self::SLACK`] more than are used.
    fn over(buffer: Vec<T>) -> Self {
        let first = buffer.as_ptr().align_offset(LINE).min(Self::SLACK);
        Self { buffer, first }
    }

    /// Bytes of `len` elements.
    pub fn bytes(len: usize) -> usize {
        len.saturating_add(Self::SLACK)
            .saturating_mul(size_of::<T>())
    }

    /// Some of the elements.
    pub fn get(&self, range: Range<usize>) -> &[T] {
        &self.buffer[self.first..][range]
    }

    /// Some of the elements.
    pub fn get_mut(&mut self, range: Range<usize>) -> &mut [T] {
        &mut self.buffer[self.first..][range]
    }

    /// Copies some of the elements to others, from `to` on.
    pub fn copy_within(&mut self, from: Range<usize>, to: usize) {
        self.buffer[self.first..].copy_within(from, to);
    }
}

/// `len` zeros. The standard library turns the literal in `vec!` into untouched memory.
macro_rules! zeros {
    ($($t:ty: $zero:literal),*) => {$(
        impl Aligned<$t> {
            pub fn zeros(len: usize) -> Self {
                Self::over(vec![$zero; len.saturating_add(Self::SLACK)])
            }
        }
    )*};
}
zeros!(u16: 0, i8: 0, u64: 0, f32: 0.0);
