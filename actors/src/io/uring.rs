//! Reading through io_uring: one system call starts many reads and collects many completions.
//!
//! The table of reads in flight owns their slots. A slot leaves it only when the kernel has reported the
//! read's end; dropping the driver waits for the reads, closes the ring and then frees the table.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::driver::{Driver, DriverInfo};
use super::file::ReadFile;
use super::op::{self, ReadDone, ReadOp};
use super::progress::{Progress, Step};
use super::refusal::UringRefusal;
use super::registration::{MAX_BUFFER, Registered};
use super::table::Table;
use super::waker::{Bell, Waker};

/// The packed file's index in the ring's table of registered files.
const BUNDLE: Fixed = Fixed(0);
/// Marks the completion of the bell's poll operation; reads are marked by their index in the table.
const BELL: u64 = u64::MAX;
/// How long dropping the driver waits for the reads in flight. A disk answers within milliseconds; storage that hangs
/// for longer must not keep the program from ending, so its slots are leaked instead.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// The ring's modes, best first; older kernels refuse the first ones with `EINVAL`.
///
/// `DEFER_TASKRUN` (Linux 6.1) runs completions only when the driver asks, so that they never interrupt
/// it; `COOP_TASKRUN` (5.19) runs them at its next system call, without an inter-processor interrupt. On a busy 2-core
/// machine all three cost the same per 4 KiB read within the noise (about 4 µs of CPU time), so the order follows the
/// kernel's advice. SQPOLL is deliberately omitted: its polling thread occupies a core, and it was measured to be far
/// slower.
const MODES: [&str; 3] = [
    "SINGLE_ISSUER | DEFER_TASKRUN",
    "SINGLE_ISSUER | COOP_TASKRUN",
    "",
];

/// Makes a ring that is still disabled, so that the thread that first uses it becomes its only issuer.
fn build_ring(entries: u32, mode: &str) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork();
    match mode {
        "SINGLE_ISSUER | DEFER_TASKRUN" => builder.setup_defer_taskrun(),
        "SINGLE_ISSUER | COOP_TASKRUN" => builder.setup_coop_taskrun(),
        _ => return builder.setup_r_disabled().build(entries),
    };
    builder
        .setup_single_issuer()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_r_disabled()
        .build(entries)
}

/// The best ring that the kernel provides, and its mode.
pub(super) fn best_ring(entries: u32) -> Result<(IoUring, &'static str), UringRefusal> {
    let mut refusal = UringRefusal::Missing;
    for mode in MODES {
        match build_ring(entries, mode) {
            Ok(ring) if ring.params().is_feature_ext_arg() => return Ok((ring, mode)),
            Ok(_) => return Err(UringRefusal::TooOld),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => refusal = e.into(),
            Err(e) => return Err(e.into()),
        }
    }
    Err(refusal)
}

/// A read that the kernel may be writing to.
#[derive(Debug)]
struct Flight {
    op: ReadOp,
    progress: Progress,
    started_ns: u64,
}

/// The io_uring driver.
///
/// Fields are dropped in this order: the ring is closed before the slots are freed.
pub struct UringDriver {
    ring: IoUring,
    file: ReadFile,
    flights: Table<Flight>,
    /// Invalid operations, waiting for the next poll.
    refused: VecDeque<ReadDone>,
    /// Completions taken from the ring and not yet applied to the table: `(user_data, result)`.
    reaped: Vec<(u64, i32)>,
    registered: Registered,
    registration_note: Option<String>,
    mode: &'static str,
    bell: Bell,
    bell_armed: bool,
    enabled: bool,
}

impl UringDriver {
    /// Sets up a ring for `depth` reads of `file` in flight, with the memory of `spans` registered if
    /// the system allows it.
    ///
    /// # Errors
    /// Returns the file with the reason why io_uring cannot be used.
    pub(super) fn new(
        file: ReadFile,
        depth: u16,
        spans: &[forebay_queues::slab::Span],
    ) -> Result<Self, (UringRefusal, ReadFile)> {
        // One entry per read, and one for the bell.
        let entries = (u32::from(depth) + 1).next_power_of_two();
        let setup = || -> Result<_, UringRefusal> {
            let (ring, mode) = best_ring(entries)?;
            ring.submitter().register_files(&[file.file.as_raw_fd()])?;
            Ok((ring, mode, Bell::new()?))
        };
        let (ring, mode, bell) = match setup() {
            Ok(parts) => parts,
            Err(refusal) => return Err((refusal, file)),
        };
        let (registered, registration_note) = register(&ring, spans);
        Ok(Self {
            ring,
            file,
            flights: Table::new(depth),
            refused: VecDeque::with_capacity(usize::from(depth)),
            reaped: Vec::with_capacity(2 * entries as usize),
            registered,
            registration_note,
            mode,
            bell,
            bell_armed: false,
            enabled: false,
        })
    }

    /// Fills in what this driver knows.
    pub(super) fn describe(&self, info: &mut DriverInfo) {
        info.driver = self.name();
        info.ring_flags = self.mode;
        info.registered_bytes = self.registered.bytes();
        info.notes.extend(self.registration_note.clone());
    }

    /// Makes the calling thread the ring's issuer, the first time.
    fn enable(&mut self) -> io::Result<()> {
        if !self.enabled {
            self.ring.submitter().register_enable_rings()?;
            self.enabled = true;
        }
        Ok(())
    }

    /// Passes queued entries to the kernel and, with `want > 0`, sleeps until that many completions have arrived or
    /// `timeout` has passed.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        let timespec = timeout.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        let submitter = self.ring.submitter();
        let entered = if want > 0 {
            submitter.submit_with_args(want, &args)
        } else {
            submitter.submit()
        };
        match entered {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                Some(libc::ETIME | libc::EINTR) => Ok(()),
                // The kernel is short of memory for requests, or completions must be fetched first: the entries stay
                // queued until the next call.
                Some(libc::EAGAIN | libc::EBUSY) => {
                    std::thread::yield_now();
                    Ok(())
                }
                Some(libc::EEXIST) => Err(io::Error::other(
                    "the I/O driver is used by a second thread; keep it on the one that used it first",
                )),
                _ => Err(e),
            },
        }
    }

    /// Queues the next attempt at the read at index `place`.
    fn queue(&mut self, place: u16) {
        let Some(flight) = self.flights.get_mut(place) else {
            return;
        };
        let from = flight.progress.resume_at();
        let len = flight.op.len - from;
        let offset = flight.op.offset + u64::from(from);
        let start = (flight.op.slot_offset + from) as usize;
        let target = &mut flight.op.slot[start..start + len as usize];
        let fixed = self.registered.index_of(target);
        let target = target.as_mut_ptr();
        let entry = match fixed {
            Some(index) => opcode::ReadFixed::new(BUNDLE, target, len, index)
                .offset(offset)
                .build(),
            None => opcode::Read::new(BUNDLE, target, len)
                .offset(offset)
                .build(),
        };
        self.push(&entry.user_data(u64::from(place)));
    }

    /// Puts an entry into the submission queue.
    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: a read entry's target lies inside the slot that the table owns and keeps until the kernel reports
        // this entry's end (`poll`), or until the ring has no read in flight any more (`drop`, which leaks the slot
        // otherwise). The bell's entry has no memory.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // The queue has room for every table entry and the bell, each queued at most once.
        debug_assert!(pushed.is_ok());
    }

    /// Moves completions out of the ring.
    fn reap(&mut self) -> io::Result<()> {
        if self.enabled && self.ring.submission().taskrun() {
            self.enter(0, None)?;
        }
        let results = |c: cqueue::Entry| (c.user_data(), c.result());
        self.reaped.extend(self.ring.completion().map(results));
        Ok(())
    }

    /// Applies one completion of a read; returns the finished read.
    fn advance(&mut self, place: u16, result: i32, now_ns: u64) -> Option<ReadDone> {
        let flight = self.flights.get_mut(place)?;
        let result = match u32::try_from(result) {
            Ok(bytes) => Ok(bytes),
            Err(_) => Err(-result),
        };
        match flight.progress.step(result) {
            Step::Again => {
                self.queue(place);
                None
            }
            Step::Finished(result) => {
                let Flight {
                    mut op,
                    progress,
                    started_ns,
                } = self.flights.remove(place)?;
                self.file.forget(op.offset, op.len);
                if result.is_ok() {
                    op::zero_tail(&mut op, progress.wanted());
                }
                Some(ReadDone::of(op, result, (started_ns, now_ns), place))
            }
        }
    }
}

/// Registers `spans` with the ring, or returns why not.
fn register(ring: &IoUring, spans: &[forebay_queues::slab::Span]) -> (Registered, Option<String>) {
    let registered = Registered::new(spans);
    if registered.bytes() == 0 {
        return (Registered::default(), None);
    }
    let buffers: Vec<libc::iovec> = registered
        .pieces()
        .map(|(addr, len)| libc::iovec {
            iov_base: addr as *mut libc::c_void,
            iov_len: len,
        })
        .collect();
    debug_assert!(buffers.iter().all(|b| b.iov_len <= MAX_BUFFER));
    // SAFETY: `registered` holds the spans, which keep these addresses mapped, and lives in the driver
    // until the ring is closed.
    match unsafe { ring.submitter().register_buffers(&buffers) } {
        Ok(()) => (registered, None),
        Err(e) => {
            let note = format!(
                "{} bytes of buffers could not be registered ({e}): pinning them at each read; raise \
                 `ulimit -l` for somewhat cheaper reads",
                registered.bytes()
            );
            (Registered::default(), Some(note))
        }
    }
}

impl Driver for UringDriver {
    fn capacity(&self) -> usize {
        self.flights.capacity()
    }

    fn submit(&mut self, op: ReadOp, now_ns: u64) -> Result<(), ReadOp> {
        if self.in_flight() >= self.capacity() {
            return Err(op);
        }
        let checked =
            op::slot_range(&op).and_then(|_| op::wanted(op.offset, op.len, self.file.bytes));
        let wanted = match checked {
            Ok(wanted) => wanted,
            Err(kind) => {
                let times = (now_ns, now_ns);
                self.refused
                    .push_back(ReadDone::of(op, Err(kind), times, 0));
                return Ok(());
            }
        };
        let flight = Flight {
            op,
            progress: Progress::new(wanted),
            started_ns: now_ns,
        };
        let place = self.flights.insert(flight).map_err(|flight| flight.op)?;
        self.queue(place);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.enable()?;
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        self.enter(0, None)
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<ReadDone>) -> usize {
        let before = out.len();
        out.extend(self.refused.drain(..));
        // What cannot be reaped now is reported by the next flush or wait.
        if self.reap().is_ok() {
            let mut reaped = mem::take(&mut self.reaped);
            for (data, result) in reaped.drain(..) {
                if data == BELL {
                    self.bell_armed = false;
                    self.bell.silence();
                } else if let Ok(place) = u16::try_from(data) {
                    out.extend(self.advance(place, result, now_ns));
                }
            }
            self.reaped = reaped;
        }
        out.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.enable()?;
        if !self.bell.prepare_wait() {
            return Ok(());
        }
        let ready = !self.refused.is_empty() || !self.ring.completion().is_empty();
        let slept = if ready {
            Ok(())
        } else {
            if !self.bell_armed {
                let poll = opcode::PollAdd::new(
                    io_uring::types::Fd(self.bell.raw_fd()),
                    libc::POLLIN as u32,
                );
                self.push(&poll.build().user_data(BELL));
                self.bell_armed = true;
            }
            self.enter(1, timeout)
        };
        self.bell.resume();
        slept
    }

    fn waker(&self) -> Waker {
        self.bell.waker()
    }

    fn in_flight(&self) -> usize {
        self.flights.len() + self.refused.len()
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}

impl UringDriver {
    /// Waits for the reads in flight, as long as a disk that works may take; false if some have not ended.
    fn drain(&mut self) -> bool {
        // Never enabled: the kernel has seen none of the queued reads.
        if !self.enabled {
            return true;
        }
        let end = Instant::now() + DRAIN_LIMIT;
        loop {
            // Completions first: the ring may already hold the last ones.
            if self.reap().is_err() {
                break;
            }
            for (data, _) in mem::take(&mut self.reaped) {
                if let Ok(place) = u16::try_from(data) {
                    drop(self.flights.remove(place));
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if self.flights.len() == 0 || left.is_zero() || self.enter(1, Some(left)).is_err() {
                break;
            }
        }
        let all = self.flights.len() == 0;
        // The kernel may still write for these reads: their memory must stay mapped for ever.
        self.flights.drain().for_each(mem::forget);
        all
    }
}

impl Drop for UringDriver {
    fn drop(&mut self) {
        // The kernel would wait for a read that hangs.
        if self.drain() && self.registered.bytes() > 0 {
            // A closed ring lets go of its buffers some time later. Until then, memory that the process has unmapped
            // still counts for its control group, which then has no room for what is allocated next.
            let _ = self.ring.submitter().unregister_buffers();
        }
    }
}
