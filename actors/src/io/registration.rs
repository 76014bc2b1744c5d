//! Finds the registered buffer, if any, to which a piece of memory belongs.

use forebay_queues::slab::Span;

/// Largest buffer that the kernel registers as one.
pub(super) const MAX_BUFFER: usize = 1 << 30;
/// Maximum number of buffers that a ring can register.
const MAX_BUFFERS: usize = 1 << 14;

/// The memory registered with a ring, kept mapped.
#[derive(Debug, Default)]
pub(super) struct Registered {
    _spans: Vec<Span>,
    /// Address and length of each buffer, by address; the index in this list is the buffer's index.
    pieces: Vec<(usize, usize)>,
}

impl Registered {
    /// Sorts the spans, merges neighbours and cuts what is too long for one buffer.
    pub(super) fn new(spans: &[Span]) -> Self {
        let mut ranges: Vec<(usize, usize)> = spans
            .iter()
            .filter(|s| !s.is_empty())
            .map(|s| (s.addr(), s.addr() + s.len()))
            .collect();
        ranges.sort_unstable();
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (start, end) in ranges {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        let pieces = merged
            .into_iter()
            .flat_map(|(start, end)| {
                (start..end)
                    .step_by(MAX_BUFFER)
                    .map(move |a| (a, MAX_BUFFER.min(end - a)))
            })
            .take(MAX_BUFFERS)
            .collect();
        Self {
            _spans: spans.to_vec(),
            pieces,
        }
    }

    /// Bytes registered.
    pub(super) fn bytes(&self) -> usize {
        self.pieces.iter().map(|p| p.1).sum()
    }

    /// Address and length of each buffer.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (usize, usize)> {
        self.pieces.iter().copied()
    }

    /// The buffer that holds all of `target`.
    pub(super) fn index_of(&self, target: &[u8]) -> Option<u16> {
        let start = target.as_ptr() as usize;
        let after = self.pieces.partition_point(|p| p.0 <= start);
        let index = after.checked_sub(1)?;
        let (addr, len) = self.pieces[index];
        (start + target.len() <= addr + len)
            .then(|| u16::try_from(index).ok())
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_queues::slab::{PAGE, Slab};

    #[test]
    fn neighbours_merge_and_strangers_have_no_index() {
        let mut slab = Slab::new(6 * PAGE).expect("small mapping");
        let slots: Vec<_> = (0..6).filter_map(|_| slab.carve(PAGE)).collect();
        let spans = [4, 1, 0].map(|i: usize| slots[i].span());
        let registered = Registered::new(&spans);
        assert_eq!(registered.pieces().count(), 2);
        assert_eq!(registered.bytes(), 3 * PAGE);
        let index = |i: usize| registered.index_of(&slots[i]);
        assert_eq!([0, 1, 4].map(index), [Some(0), Some(0), Some(1)]);
        assert_eq!([2, 3, 5].map(index), [None; 3]);
        assert_eq!(Registered::default().index_of(&slots[0]), None);
    }

    #[test]
    fn long_spans_are_cut_at_the_kernels_limit() {
        // Only reserved, never touched.
        let slab = Slab::new(MAX_BUFFER + 2 * PAGE).expect("address space");
        let registered = Registered::new(&[slab.span()]);
        let lens: Vec<usize> = registered.pieces().map(|p| p.1).collect();
        assert_eq!(lens, [MAX_BUFFER, 2 * PAGE]);
    }
}
