//! Where something is on a device, as all cores see it.

use std::sync::atomic::{AtomicU32, Ordering};

use forebay_devices::SegmentId;

/// Where something is on a device; nowhere while the budget is smaller. Changed by core 0 between two steps only.
#[derive(Debug)]
pub(super) struct SegmentCell(AtomicU32);

impl SegmentCell {
    pub(super) fn new(segment: Option<SegmentId>) -> Self {
        let segment = segment.unwrap_or(SegmentId::NONE);
        Self(AtomicU32::new(segment.number()))
    }

    pub(super) fn get(&self) -> Option<SegmentId> {
        let segment = SegmentId::of_number(self.0.load(Ordering::Relaxed));
        (segment != SegmentId::NONE).then_some(segment)
    }

    pub(super) fn set(&self, segment: Option<SegmentId>) {
        let number = segment.unwrap_or(SegmentId::NONE).number();
        // The cores get their next step after this one's reports.
        self.0.store(number, Ordering::Relaxed);
    }
}
