//! The interface between the I/O actor and the system: what a way of reading files must offer.

use std::fmt;
use std::io;
use std::time::Duration;

use super::op::{ReadDone, ReadOp};
use super::waker::Waker;

/// A way to read one file asynchronously. Times are nanoseconds on the caller's clock.
///
/// A driver owns the slots of the reads in flight, and frees none before the kernel is done with it. It is used by one
/// thread: it may be made on one thread and moved to another before the first [`flush`](Self::flush),
/// [`poll`](Self::poll) or [`wait`](Self::wait), not after.
pub trait Driver: Send {
    /// Maximum number of reads in flight.
    fn capacity(&self) -> usize;

    /// Accepts a read; it starts at the next [`flush`](Self::flush) at the latest. An invalid operation is also
    /// accepted, and completes with a fault.
    ///
    /// # Errors
    /// Gives the operation back when [`capacity`](Self::capacity) reads are in flight.
    fn submit(&mut self, op: ReadOp, now_ns: u64) -> Result<(), ReadOp>;

    /// Passes submitted reads to the kernel; costs nothing when there are none.
    ///
    /// # Errors
    /// The driver is broken, or used by a second thread.
    fn flush(&mut self) -> io::Result<()>;

    /// Appends the finished reads to `out` without waiting, and returns how many. Allocates nothing
    /// while `out` has room for [`capacity`](Self::capacity) more.
    fn poll(&mut self, now_ns: u64, out: &mut Vec<ReadDone>) -> usize;

    /// Sleeps until a read finishes, the [`waker`](Self::waker) is used, or `timeout` passes; may return
    /// early. A wake-up since the last `wait` makes it return at once.
    ///
    /// # Errors
    /// The driver is broken, or used by a second thread.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Interrupts [`wait`](Self::wait) from any thread.
    fn waker(&self) -> Waker;

    /// Reads accepted and not yet returned by [`poll`](Self::poll).
    fn in_flight(&self) -> usize;

    /// Short name for statistics and `doctor`.
    fn name(&self) -> &'static str;
}

impl<D: Driver + ?Sized> Driver for Box<D> {
    fn capacity(&self) -> usize {
        (**self).capacity()
    }

    fn submit(&mut self, op: ReadOp, now_ns: u64) -> Result<(), ReadOp> {
        (**self).submit(op, now_ns)
    }

    fn flush(&mut self) -> io::Result<()> {
        (**self).flush()
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<ReadDone>) -> usize {
        (**self).poll(now_ns, out)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        (**self).wait(timeout)
    }

    fn waker(&self) -> Waker {
        (**self).waker()
    }

    fn in_flight(&self) -> usize {
        (**self).in_flight()
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }
}

/// Which driver to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DriverChoice {
    /// io_uring if the system allows it, threads otherwise.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Threads that call `pread`.
    Pread,
}

/// What was opened, and which faster ways the system refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverInfo {
    /// [`Driver::name`].
    pub driver: &'static str,
    /// Maximum number of reads in flight.
    pub depth: usize,
    /// Length of the file when it was opened, bytes.
    pub file_bytes: u64,
    /// Whether reads bypass the page cache.
    pub direct: bool,
    /// Bytes of memory registered with the kernel (pinned once instead of at each read).
    pub registered_bytes: usize,
    /// Ring flags in use, empty for the thread driver.
    pub ring_flags: &'static str,
    /// Each refusal, with its remedy.
    pub notes: Vec<String>,
}

impl fmt::Display for DriverInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = if self.direct { "direct" } else { "buffered" };
        write!(f, "{} ({cache}, depth {}", self.driver, self.depth)?;
        if !self.ring_flags.is_empty() {
            write!(f, ", {}", self.ring_flags)?;
        }
        if self.registered_bytes > 0 {
            write!(f, ", {} bytes registered", self.registered_bytes)?;
        }
        write!(f, ")")?;
        self.notes
            .iter()
            .try_for_each(|note| write!(f, "\n  {note}"))
    }
}
