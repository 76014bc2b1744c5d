//! One anonymous mapping, cut into owned slots.
//!
//! All weights, cache slots and read buffers live in one preallocated region (LLM in a Flash,
//! section 3.3: preallocated DRAM; nothing is allocated or freed while tokens flow). A [`Slot`] is the
//! unique handle to its bytes: whoever holds it owns the memory, so buffers cross cores by moving.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapMut};

/// Alignment of every slot and granularity of its length: the unit of `O_DIRECT` reads.
pub const PAGE: usize = 4096;

/// Huge-page size assumed for alignment of the region's start.
const HUGE: usize = 2 << 20;

/// The slab could not be mapped.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reserve {bytes} bytes of memory for the weight slab: {source}; give a smaller --memory"
)]
pub struct SlabError {
    bytes: usize,
    source: std::io::Error,
}

#[derive(Debug)]
struct Region {
    _map: MmapMut,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the region's bytes are only reached through `Slot`s, which are disjoint by construction
// (`Slab::carve` only moves forward) and each owned by one thread at a time.
unsafe impl Send for Region {}
// SAFETY: as above; the region itself offers no access to its bytes.
unsafe impl Sync for Region {}

/// A preallocated region from which slots are carved once, at start-up.
#[derive(Debug)]
pub struct Slab {
    region: Arc<Region>,
    used: usize,
    huge_pages: bool,
}

impl Slab {
    /// Maps `bytes` (rounded up to whole pages) of zeroed memory, backed by huge pages where the system
    /// gives them. Pages are committed when first written.
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn new(bytes: usize) -> Result<Self, SlabError> {
        let wrap = |source| SlabError { bytes, source };
        let len = bytes.max(1).next_multiple_of(PAGE);
        let map_len = len
            .checked_add(HUGE)
            .ok_or_else(|| wrap(std::io::ErrorKind::OutOfMemory.into()))?;
        let mut map = MmapMut::map_anon(map_len).map_err(wrap)?;
        let huge_pages = map.advise(Advice::HugePage).is_ok();
        let start = map.as_mut_ptr();
        let skip = start.align_offset(HUGE).min(HUGE);
        // SAFETY: `skip <= HUGE` and the mapping is `len + HUGE` bytes long, so `start + skip` and the
        // `len` bytes behind it lie inside the mapping.
        let base = unsafe { NonNull::new_unchecked(start.add(skip)) };
        Ok(Self {
            region: Arc::new(Region {
                _map: map,
                base,
                len,
            }),
            used: 0,
            huge_pages,
        })
    }

    /// Cuts the next `bytes` (rounded up to whole pages) off the region.
    ///
    /// Returns `None` when the region is used up: the caller's plan was wrong.
    pub fn carve(&mut self, bytes: usize) -> Option<Slot> {
        let len = bytes.max(1).next_multiple_of(PAGE);
        let end = self.used.checked_add(len)?;
        if end > self.region.len {
            return None;
        }
        // SAFETY: `used + len <= region.len`, so the slot lies inside the mapping; `used` only grows, so
        // no other slot covers these bytes.
        let ptr = unsafe { self.region.base.add(self.used) };
        self.used = end;
        Some(Slot {
            region: Arc::clone(&self.region),
            ptr,
            len,
        })
    }

    /// Bytes not carved yet.
    pub fn remaining(&self) -> usize {
        self.region.len - self.used
    }

    /// Whether the system accepted the advice to use huge pages.
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }
}

/// Unique handle to a page-aligned piece of the slab; dereferences to its bytes.
#[derive(Debug)]
pub struct Slot {
    region: Arc<Region>,
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: a slot is the only handle to its bytes (it is not `Clone`), so moving it moves the access.
unsafe impl Send for Slot {}
// SAFETY: `&Slot` only gives `&[u8]`, and writing needs `&mut Slot`.
unsafe impl Sync for Slot {}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        debug_assert!(Arc::strong_count(&self.region) > 0);
        // SAFETY: the slot owns these initialised (zeroed by mmap) bytes, and the region lives as long as
        // the slot's `Arc`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_disjoint_aligned_and_outlive_the_slab() {
        let mut slab = Slab::new(3 * PAGE).expect("small mapping");
        let mut slots: Vec<Slot> = std::iter::from_fn(|| slab.carve(100)).collect();
        assert_eq!(slots.len(), 3);
        assert_eq!(slab.remaining(), 0);
        drop(slab);
        for (i, s) in slots.iter_mut().enumerate() {
            assert_eq!(s.len(), PAGE);
            assert_eq!(s.as_ptr() as usize % PAGE, 0);
            assert!(s.iter().all(|&b| b == 0));
            s.fill(i as u8 + 1);
        }
        for (i, s) in slots.iter().enumerate() {
            assert!(s.iter().all(|&b| b == i as u8 + 1));
        }
    }

    #[test]
    fn impossible_size_is_an_error() {
        assert!(Slab::new(usize::MAX - PAGE * 2).is_err());
    }
}
