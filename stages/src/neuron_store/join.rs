//! Which neighbours share a read.

use std::ops::Range;

use forebay_models::bundle::ALIGN;

/// A read that joins neighbours is at most this many times as long as what is wanted of it; its length is
/// limited by the read buffers as well.
const MERGE_AMPLIFICATION: usize = 2;

/// How pieces of a cluster's neurons are cut into page-aligned reads.
#[derive(Clone, Debug)]
pub struct JoinRule {
    /// Bytes from one neuron to the next.
    pub stride: usize,
    /// The piece that is read, within a neuron.
    pub range: Range<usize>,
    /// Bytes of a read buffer.
    pub buffer: usize,
    /// Whether neighbours share reads at all.
    pub joins: bool,
}

/// A read, in bytes from the cluster's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedRead {
    /// First byte, on a page.
    pub start: usize,
    /// The end, on a page boundary.
    pub end: usize,
    useful: usize,
}

impl JoinRule {
    /// The read of one neuron.
    pub fn read(&self, neuron: usize) -> JoinedRead {
        let start = neuron * self.stride + self.range.start;
        JoinedRead {
            start: start / ALIGN * ALIGN,
            end: (start + self.range.len()).next_multiple_of(ALIGN),
            useful: self.range.len(),
        }
    }

    /// Adds a later neuron to `read` unless that reads too much that is not wanted; false if it needs its own.
    pub fn join(&self, read: &mut JoinedRead, neuron: usize) -> bool {
        let own = self.read(neuron);
        let (len, useful) = (own.end - read.start, read.useful + own.useful);
        let joins = self.joins
            && len <= self.buffer
            && len <= MERGE_AMPLIFICATION * useful.next_multiple_of(ALIGN);
        if joins {
            (read.end, read.useful) = (own.end, useful);
        }
        joins
    }

    /// Number and bytes of the reads of these neurons of a cluster, ascending.
    pub fn reads(&self, missing: impl Iterator<Item = usize>) -> (u64, u64) {
        let (mut reads, mut bytes) = (0, 0);
        let mut open: Option<JoinedRead> = None;
        let len = |read: &JoinedRead| (read.end - read.start) as u64;
        for neuron in missing {
            if open.as_mut().is_some_and(|read| self.join(read, neuron)) {
                continue;
            }
            bytes += open.as_ref().map_or(0, len);
            reads += 1;
            open = Some(self.read(neuron));
        }
        (reads, bytes + open.as_ref().map_or(0, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_a_read_and_strangers_do_not() {
        let rule = JoinRule {
            stride: 8192,
            range: 0..7000,
            buffer: 64 << 10,
            joins: true,
        };
        let page = 8192;
        assert_eq!(rule.reads([].into_iter()), (0, 0));
        assert_eq!(rule.reads([3].into_iter()), (1, page));
        assert_eq!(rule.reads([3, 4, 5].into_iter()), (1, 3 * page));
        // One unwanted neuron in between is read; two would be more than is wanted.
        assert_eq!(rule.reads([3, 5].into_iter()), (1, 3 * page));
        assert_eq!(rule.reads([3, 9].into_iter()), (2, 2 * page));
        // Nine neighbours need more than a buffer.
        assert_eq!(rule.reads(0..9), (2, 9 * page));
        let singly = JoinRule {
            joins: false,
            ..rule
        };
        assert_eq!(singly.reads([3, 4].into_iter()), (2, 2 * page));
    }

    #[test]
    fn a_piece_takes_the_pages_it_touches() {
        let rule = JoinRule {
            stride: 6000,
            range: 2000..6000,
            buffer: 64 << 10,
            joins: true,
        };
        // Bytes 2000..6000: two pages; 8000..12000: pages 1 and 2.
        assert_eq!(
            rule.read(0),
            JoinedRead {
                start: 0,
                end: 8192,
                useful: 4000
            }
        );
        assert_eq!(rule.reads([0, 1].into_iter()), (1, 12288));
    }
}
