//! The interface between the engine and a device.

use std::ops::Range;
use std::sync::Arc;

use forebay_queues::slab::Slot;

use crate::fault::DeviceFault;
use crate::job::{DeviceDone, DeviceJob, SegmentId};

/// A device that computes. Times are nanoseconds on the caller's clock.
///
/// Results have the bits of the CPU's kernels if [`probe::check`](crate::probe::check) has found no difference.
pub trait DeviceDriver: Send + std::fmt::Debug {
    /// Name for messages and statistics.
    fn name(&self) -> &str;

    /// Maximum number of jobs in flight.
    fn capacity(&self) -> usize;

    /// Copies weights to the device, and waits for that. Each part begins at the first whole word behind the one
    /// before. Not all of them are on their way at once.
    ///
    /// # Errors
    /// No memory for them, more than the device allows in one piece, or no device any more.
    fn load_parts(&mut self, parts: &[&[u8]]) -> Result<SegmentId, DeviceFault>;

    /// The same with all weights in one part.
    ///
    /// # Errors
    /// As [`load_parts`](Self::load_parts).
    fn load(&mut self, bytes: &[u8]) -> Result<SegmentId, DeviceFault> {
        self.load_parts(&[bytes])
    }

    /// Whether it computes with weights where the CPU has them: then [`import`](Self::import) takes the place of
    /// [`load`](Self::load).
    fn imports(&self) -> bool;

    /// Makes a segment of weights in the CPU's memory, of which nothing is copied: `range` in `memory`, whole pages.
    /// The driver keeps `memory` as long as the device may read it.
    ///
    /// # Errors
    /// It does not import memory, that is more than the device allows in one piece, or the device fails.
    fn import(&mut self, memory: &Arc<Slot>, range: Range<usize>)
    -> Result<SegmentId, DeviceFault>;

    /// Makes a segment of `bytes` bytes whose weights come later.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn reserve(&mut self, bytes: u64) -> Result<SegmentId, DeviceFault>;

    /// Copies `bytes` into a segment, from byte `at` on, which begins a word. Jobs that were submitted before have the
    /// old ones, later jobs the new ones. It does not wait for the device.
    ///
    /// # Errors
    /// There is no such segment, they do not fit it, or the device fails.
    fn write(&mut self, segment: SegmentId, at: usize, bytes: &[u8]) -> Result<(), DeviceFault>;

    /// Gives a segment's memory back, as soon as the jobs that use it are over. Unknown segments are ignored.
    fn unload(&mut self, segment: SegmentId);

    /// Whether its memory is the CPU's, so that weights on it take the process's budget.
    fn shares_memory(&self) -> bool;

    /// Bytes of the device's memory in use, as far as this driver has asked for them.
    fn memory_bytes(&self) -> u64;

    /// Accepts a job, without waiting. A job that cannot be done is also accepted, and completes with a fault.
    ///
    /// # Errors
    /// Gives the job back when [`capacity`](Self::capacity) jobs are in flight.
    #[expect(
        clippy::result_large_err,
        reason = "the job is given back, not an error"
    )]
    fn submit(&mut self, job: DeviceJob, now_ns: u64) -> Result<(), DeviceJob>;

    /// Appends the finished jobs to `out` without waiting, and returns how many.
    fn poll(&mut self, now_ns: u64, out: &mut Vec<DeviceDone>) -> usize;

    /// Jobs accepted and not yet returned by [`poll`](Self::poll).
    fn in_flight(&self) -> usize;
}

impl<D: DeviceDriver + ?Sized> DeviceDriver for Box<D> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn capacity(&self) -> usize {
        (**self).capacity()
    }

    fn load_parts(&mut self, parts: &[&[u8]]) -> Result<SegmentId, DeviceFault> {
        (**self).load_parts(parts)
    }

    fn imports(&self) -> bool {
        (**self).imports()
    }

    fn import(
        &mut self,
        memory: &Arc<Slot>,
        range: Range<usize>,
    ) -> Result<SegmentId, DeviceFault> {
        (**self).import(memory, range)
    }

    fn reserve(&mut self, bytes: u64) -> Result<SegmentId, DeviceFault> {
        (**self).reserve(bytes)
    }

    fn write(&mut self, segment: SegmentId, at: usize, bytes: &[u8]) -> Result<(), DeviceFault> {
        (**self).write(segment, at, bytes)
    }

    fn unload(&mut self, segment: SegmentId) {
        (**self).unload(segment);
    }

    fn shares_memory(&self) -> bool {
        (**self).shares_memory()
    }

    fn memory_bytes(&self) -> u64 {
        (**self).memory_bytes()
    }

    fn submit(&mut self, job: DeviceJob, now_ns: u64) -> Result<(), DeviceJob> {
        (**self).submit(job, now_ns)
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<DeviceDone>) -> usize {
        (**self).poll(now_ns, out)
    }

    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }
}

/// Bytes of a segment of these parts.
pub(crate) fn bytes_of_parts(parts: &[&[u8]]) -> usize {
    let padded = |part: &&[u8]| part.len().next_multiple_of(4);
    parts.iter().map(padded).sum()
}
