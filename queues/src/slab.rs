//! One anonymous mapping, cut into owned slots.
//!
//! All weights, cache slots and read buffers are in one preallocated region (LLM in a Flash, section 3.3: preallocated
//! DRAM; nothing is allocated or freed while tokens are generated). A [`Slot`] is the unique handle to its bytes: its
//! holder owns the memory, so buffers pass between cores by moving.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapMut};

use crate::pages::try_give_back;

/// Alignment of every slot and granularity of its length: the unit of `O_DIRECT` reads.
pub const PAGE: usize = 4096;

/// Assumed size of huge pages, for the alignment of the region's start.
const HUGE: usize = 2 << 20;

/// Largest page of the supported systems: only whole pages are given back.
const LARGEST_PAGE: usize = 64 << 10;

/// The slab could not be mapped.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reserve {bytes} bytes of memory for the weight slab: {source}; try a smaller budget"
)]
pub struct SlabError {
    bytes: usize,
    source: std::io::Error,
}

#[derive(Debug)]
struct Region {
    map: MmapMut,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the region's bytes are only reached through `Slot`s, which are disjoint by construction
// (`Slab::carve` only moves forward) and each owned by one thread at a time.
unsafe impl Send for Region {}
// SAFETY: as above; the region itself offers no access to its bytes.
unsafe impl Sync for Region {}

/// A preallocated region that is cut into slots once, at start-up.
#[derive(Debug)]
pub struct Slab {
    region: Arc<Region>,
    used: usize,
    huge_pages: bool,
}

impl Slab {
    /// Maps `bytes` (rounded up to whole pages) of zeroed memory, backed by huge pages if the system provides them.
    /// Pages are committed when first written.
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
        // SAFETY: `skip <= HUGE` and the mapping is `len + HUGE` bytes long, so `start + skip` and the `len` bytes
        // after it are inside the mapping.
        let base = unsafe { NonNull::new_unchecked(start.add(skip)) };
        Ok(Self {
            region: Arc::new(Region { map, base, len }),
            used: 0,
            huge_pages,
        })
    }

    /// Cuts the next `bytes` (rounded up to whole pages) off the region.
    ///
    /// Returns `None` if the region is used up: the caller's plan was wrong.
    pub fn carve(&mut self, bytes: usize) -> Option<Slot> {
        let len = bytes.max(1).next_multiple_of(PAGE);
        let end = self.used.checked_add(len)?;
        if end > self.region.len {
            return None;
        }
        // SAFETY: `used + len <= region.len`, so the slot is inside the mapping; `used` only grows, so no other slot
        // covers these bytes.
        let ptr = unsafe { self.region.base.add(self.used) };
        self.used = end;
        Some(Slot {
            region: Arc::clone(&self.region),
            ptr,
            len,
        })
    }

    /// The whole region, kept mapped: what a driver registers with the kernel.
    pub fn span(&self) -> Span {
        Span {
            addr: self.region.base.as_ptr() as usize,
            len: self.region.len,
            region: Arc::clone(&self.region),
        }
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

/// An address range of the slab that stays mapped while the span lives; gives no access to the bytes.
///
/// A driver that registers memory with the kernel holds spans, so that a registered address can
/// never come to belong to another mapping.
#[derive(Debug, Clone)]
pub struct Span {
    region: Arc<Region>,
    addr: usize,
    len: usize,
}

impl Span {
    /// First address.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the span covers no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Has the system commit the span's pages as the first write would. No byte changes, so their owner may use them
    /// meanwhile.
    pub fn commit(&self) {
        let map = &self.region.map;
        let at = self.addr - map.as_ptr() as usize;
        // Systems before Linux 5.14 refuse: then the first write does it.
        let _ = map.advise_range(Advice::PopulateWrite, at, self.len);
    }
}

impl Slot {
    /// Splits the slot at byte `at`: keeps the front and returns the back, so that two reads may fill one slot at the
    /// same time. [`join`](Self::join) puts the parts together again.
    ///
    /// `None` (and the slot unchanged) unless `at` is a multiple of [`PAGE`] strictly inside the slot.
    pub fn split_off(&mut self, at: usize) -> Option<Slot> {
        if at == 0 || at >= self.len || !at.is_multiple_of(PAGE) {
            return None;
        }
        // SAFETY: `at < len`, so the address is inside this slot and so inside the mapping.
        let ptr = unsafe { self.ptr.add(at) };
        let back = Slot {
            region: Arc::clone(&self.region),
            ptr,
            len: self.len - at,
        };
        self.len = at;
        Some(back)
    }

    /// Appends the slot that starts where this one ends.
    ///
    /// # Errors
    /// Returns `next` if it does not follow directly in the same slab.
    pub fn join(&mut self, next: Slot) -> Result<(), Slot> {
        let end = self.ptr.as_ptr() as usize + self.len;
        if !Arc::ptr_eq(&self.region, &next.region) || end != next.ptr.as_ptr() as usize {
            return Err(next);
        }
        self.len += next.len;
        Ok(())
    }

    /// Gives the slot's memory back to the system, as far as it covers whole pages; afterwards its bytes are zero or
    /// unchanged. It stays mapped, and writing commits it again. Returns how many bytes were given back.
    ///
    /// # Errors
    /// The system refuses, for instance because the process has locked its memory. The memory is kept then.
    pub fn give_back(&mut self) -> std::io::Result<usize> {
        let Some((at, len)) = self.whole_pages() else {
            return Ok(0);
        };
        // Otherwise the system might make a huge page of the slot's beginning and what is before it, and so commit it
        // again.
        let _ = self.region.map.advise_range(Advice::NoHugePage, at, len);
        let start = at - (self.ptr.as_ptr() as usize - self.region.map.as_ptr() as usize);
        try_give_back(&mut self[start..][..len])
    }

    /// Requests huge pages again after [`Slot::give_back`] turned them off.
    pub fn take_up(&mut self) {
        if let Some((at, len)) = self.whole_pages() {
            // Only speed depends on it, and `Slab::huge_pages` has told whether the system has any.
            let _ = self.region.map.advise_range(Advice::HugePage, at, len);
        }
    }

    /// Offset in the mapping and length of the range of whole largest pages in the slot.
    fn whole_pages(&self) -> Option<(usize, usize)> {
        let start = (self.ptr.as_ptr() as usize).next_multiple_of(LARGEST_PAGE);
        let end = (self.ptr.as_ptr() as usize + self.len) / LARGEST_PAGE * LARGEST_PAGE;
        let at = start.checked_sub(self.region.map.as_ptr() as usize)?;
        (end > start).then(|| (at, end - start))
    }

    /// The slot's address range, kept mapped.
    pub fn span(&self) -> Span {
        Span {
            region: Arc::clone(&self.region),
            addr: self.ptr.as_ptr() as usize,
            len: self.len,
        }
    }
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
        assert_eq!(slab.used, slab.region.len);
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
    fn split_parts_are_disjoint_and_join_back() {
        let mut slab = Slab::new(5 * PAGE).expect("small mapping");
        let mut front = slab.carve(4 * PAGE).expect("four pages");
        let other = slab.carve(PAGE).expect("one page");
        let whole = front.span();
        for at in [0, 1, PAGE + 1, 4 * PAGE, 5 * PAGE] {
            assert!(front.split_off(at).is_none(), "{at}");
        }
        let mut back = front.split_off(3 * PAGE).expect("inside");
        let middle = front.split_off(PAGE).expect("inside");
        assert_eq!(
            (front.len(), middle.len(), back.len()),
            (PAGE, 2 * PAGE, PAGE)
        );
        back.fill(7);
        let back = front.join(back).expect_err("the middle is missing");
        let other = front.join(other).expect_err("not a neighbour");
        front.join(middle).expect("neighbours");
        front.join(back).expect("neighbours");
        assert_eq!(
            (front.span().addr(), front.len()),
            (whole.addr(), whole.len())
        );
        assert!(front[..3 * PAGE].iter().all(|&b| b == 0));
        assert!(front[3 * PAGE..].iter().all(|&b| b == 7));
        front
            .join(other)
            .expect("the next carved slot is a neighbour");
    }

    #[test]
    fn memory_given_back_is_zero_and_its_neighbours_are_untouched() {
        let mut slab = Slab::new(8 * LARGEST_PAGE).expect("small mapping");
        let mut front = slab.carve(LARGEST_PAGE + PAGE).expect("room");
        let mut middle = slab.carve(4 * LARGEST_PAGE).expect("room");
        let mut back = slab.carve(PAGE).expect("room");
        for slot in [&mut front, &mut middle, &mut back] {
            slot.fill(7);
        }
        assert_eq!(middle.give_back().expect("granted"), 3 * LARGEST_PAGE);
        let kept = middle.iter().filter(|&&b| b == 7).count();
        assert_eq!(kept, LARGEST_PAGE);
        let zeros = middle.iter().filter(|&&b| b == 0).count();
        assert_eq!(zeros, 3 * LARGEST_PAGE);
        assert!(front.iter().chain(&back[..]).all(|&b| b == 7));
        assert_eq!(
            front
                .split_off(PAGE)
                .expect("inside")
                .give_back()
                .expect("nothing to do"),
            0
        );
        middle.take_up();
        middle.fill(9);
        assert!(middle.iter().all(|&b| b == 9));
    }

    #[test]
    fn slots_of_two_slabs_never_join() {
        let mut slabs = [Slab::new(PAGE), Slab::new(PAGE)].map(|s| s.expect("small mapping"));
        let [mut a, b] = slabs.each_mut().map(|s| s.carve(PAGE).expect("one page"));
        assert!(a.join(b).is_err());
    }

    #[test]
    fn a_span_outlives_slab_and_slots() {
        let mut slab = Slab::new(2 * PAGE).expect("small mapping");
        let slot = slab.carve(PAGE).expect("one page");
        let (all, one) = (slab.span(), slot.span());
        drop((slab, slot));
        assert_eq!(
            (all.addr(), all.len(), one.len()),
            (one.addr(), 2 * PAGE, PAGE)
        );
        assert!(!one.is_empty());
    }

    /// Bytes of the mapping with this address that are in memory.
    fn in_memory(addr: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("readable");
        let mut lines = maps.lines().skip_while(|line| {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let range = range.map(|(a, b)| [a, b].map(|a| usize::from_str_radix(a, 16)));
            !matches!(range, Some([Ok(first), Ok(end)]) if (first..end).contains(&addr))
        });
        let size = lines.find_map(|line| line.strip_prefix("Rss:"));
        let kib = size.and_then(|size| size.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.parse::<usize>().ok())
            .expect("a size")
            << 10
    }

    #[test]
    fn what_is_committed_is_in_memory_and_keeps_its_bytes() {
        let mut slab = Slab::new(16 * HUGE).unwrap();
        let mut slot = slab.carve(8 * HUGE).unwrap();
        slot[5] = 7;
        let span = slot.span();
        let before = in_memory(span.addr());
        assert!(before < span.len() / 2, "{before} bytes");
        span.commit();
        let after = in_memory(span.addr());
        assert!(after >= span.len(), "{after} bytes; before Linux 5.14?");
        let is_kept = |(i, &byte): (usize, &u8)| byte == if i == 5 { 7 } else { 0 };
        assert!(slot.iter().enumerate().all(is_kept));
    }

    #[test]
    fn impossible_size_is_an_error() {
        assert!(Slab::new(usize::MAX - PAGE * 2).is_err());
    }
}
