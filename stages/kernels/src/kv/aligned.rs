//! Zeroed memory, committed page by page, and given back so.

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;
use forebay_queues::pages::{give_back, page};
#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::MmapMut;

/// Zeros in pages of their own: only what is written is committed. It holds plain integers and floats.
#[derive(Debug)]
pub(super) struct Aligned<T> {
    map: MmapMut,
    elements: PhantomData<T>,
}

impl<T: Pod> Aligned<T> {
    /// `len` zeros.
    ///
    /// # Panics
    /// The memory is not available.
    pub fn zeros(len: usize) -> Self {
        let bytes = Self::bytes(len);
        let map = match MmapMut::map_anon(bytes.max(1)) {
            Ok(map) => map,
            Err(e) => panic!("cannot reserve {bytes} bytes for the KV cache: {e}"),
        };
        // A huge page would commit other heads' memory, which the weights may still have. Systems without huge pages
        // refuse the advice.
        #[cfg(target_os = "linux")]
        let _ = map.advise(Advice::NoHugePage);
        Self {
            map,
            elements: PhantomData,
        }
    }

    /// Bytes of `len` elements.
    pub fn bytes(len: usize) -> usize {
        let bytes = len.saturating_mul(size_of::<T>());
        bytes.checked_next_multiple_of(page()).unwrap_or(usize::MAX)
    }

    /// Some of the elements.
    pub fn get(&self, range: Range<usize>) -> &[T] {
        bytemuck::cast_slice(&self.map[Self::of_bytes(range)])
    }

    /// Some of the elements.
    pub fn get_mut(&mut self, range: Range<usize>) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.map[Self::of_bytes(range)])
    }

    /// Copies some of the elements to others, from `to` on.
    pub fn copy_within(&mut self, from: Range<usize>, to: usize) {
        self.map
            .copy_within(Self::of_bytes(from), to * size_of::<T>());
    }

    /// Gives the memory of some of the elements back to the system, as far as pages have nothing else. They are zeros
    /// or what they were.
    pub fn forget(&mut self, range: Range<usize>) {
        give_back(self.get_mut(range));
    }

    fn of_bytes(elements: Range<usize>) -> Range<usize> {
        elements.start * size_of::<T>()..elements.end * size_of::<T>()
    }
}
