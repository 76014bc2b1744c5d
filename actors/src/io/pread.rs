//! Reading with threads that call `pread`, for systems without io_uring.
//!
//! A slot moves to a worker with its operation and back with the completion, so the borrow checker proves what the
//! io_uring driver has to argue.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use flume::{Receiver, Sender};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::driver::Driver;
use super::file::ReadFile;
use super::op::{self, FaultKind, ReadDone, ReadOp};
use super::progress::{Progress, Step};
use super::waker::{Bell, Waker};

/// Most worker threads: each carries one read at a time, and past 32 the switches between threads cost
/// more than a deeper disk queue brings.
pub const MAX_READERS: usize = 32;
/// A worker's stack, bytes: it calls one system call from a shallow loop.
const WORKER_STACK: usize = 128 << 10;

/// A checked operation on its way to a worker.
struct Job {
    op: ReadOp,
    wanted: u32,
    started_ns: u64,
}

/// A finished job.
struct Finished {
    op: ReadOp,
    result: Result<(), FaultKind>,
    started_ns: u64,
    worker: u16,
}

/// The thread driver.
pub struct PreadDriver {
    jobs: Option<Sender<Job>>,
    finished: Receiver<Finished>,
    /// Also used for invalid operations.
    refused: Sender<Finished>,
    workers: Vec<JoinHandle<()>>,
    closing: Arc<AtomicBool>,
    file_bytes: u64,
    capacity: usize,
    in_flight: usize,
    bell: Bell,
}

impl PreadDriver {
    /// Starts the workers for `depth` reads of `file` in flight.
    ///
    /// # Errors
    /// The system gives no more threads or descriptors.
    pub(super) fn new(file: ReadFile, depth: u16) -> io::Result<Self> {
        // No more than are under way at once: what waits for a worker cannot be overtaken by urgent reads.
        let capacity = usize::from(depth).min(MAX_READERS);
        // Both channels hold every read that can be in flight: sending never waits. They are not lanes, since the
        // workers share one of them and block on it.
        let (jobs, job_source) = flume::bounded(capacity);
        let (done, finished) = flume::bounded(capacity);
        let bell = Bell::new()?;
        let mut driver = Self {
            jobs: Some(jobs),
            finished,
            refused: done,
            workers: Vec::with_capacity(capacity),
            closing: Arc::new(AtomicBool::new(false)),
            file_bytes: file.bytes,
            capacity,
            in_flight: 0,
            bell,
        };
        let file = Arc::new(file);
        for index in 0..capacity {
            let worker = Worker {
                index: index as u16,
                file: Arc::clone(&file),
                jobs: job_source.clone(),
                done: driver.refused.clone(),
                waker: driver.bell.waker(),
                closing: Arc::clone(&driver.closing),
            };
            let handle = thread::Builder::new()
                .name(format!("forebay-read-{index}"))
                .stack_size(WORKER_STACK)
                .spawn(move || worker.run())?;
            driver.workers.push(handle);
        }
        Ok(driver)
    }
}

struct Worker {
    index: u16,
    file: Arc<ReadFile>,
    jobs: Receiver<Job>,
    done: Sender<Finished>,
    waker: Waker,
    closing: Arc<AtomicBool>,
}

impl Worker {
    fn run(self) {
        while let Ok(mut job) = self.jobs.recv() {
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            let result = read(&self.file, &mut job.op, job.wanted);
            let finished = Finished {
                op: job.op,
                result,
                started_ns: job.started_ns,
                worker: self.index,
            };
            if self.done.send(finished).is_err() {
                return;
            }
            self.waker.wake();
        }
    }
}

/// Does one checked operation.
fn read(file: &ReadFile, op: &mut ReadOp, wanted: u32) -> Result<(), FaultKind> {
    let range = op::slot_range(op)?;
    let mut progress = Progress::new(wanted);
    let result = loop {
        let from = progress.resume_at();
        let target = &mut op.slot[range.start + from as usize..range.end];
        let attempt = match file.file.read_at(target, op.offset + u64::from(from)) {
            Ok(bytes) => Ok(bytes as u32),
            Err(e) => Err(e.raw_os_error().unwrap_or(libc::EIO)),
        };
        if let Step::Finished(result) = progress.step(attempt) {
            break result;
        }
    };
    file.forget(op.offset, op.len);
    if result.is_ok() {
        op::zero_tail(op, wanted);
    }
    result
}

impl Driver for PreadDriver {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn submit(&mut self, op: ReadOp, now_ns: u64) -> Result<(), ReadOp> {
        let Some(jobs) = self
            .jobs
            .as_ref()
            .filter(|_| self.in_flight < self.capacity)
        else {
            return Err(op);
        };
        let checked =
            op::slot_range(&op).and_then(|_| op::wanted(op.offset, op.len, self.file_bytes));
        let sent = match checked {
            Ok(wanted) => {
                let started_ns = now_ns;
                let job = Job {
                    op,
                    wanted,
                    started_ns,
                };
                jobs.try_send(job).map_err(|e| e.into_inner().op)
            }
            Err(kind) => {
                let finished = Finished {
                    op,
                    result: Err(kind),
                    started_ns: now_ns,
                    worker: 0,
                };
                self.refused
                    .try_send(finished)
                    .map_err(|e| e.into_inner().op)
            }
        };
        sent?;
        self.in_flight += 1;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<ReadDone>) -> usize {
        let before = out.len();
        out.extend(self.finished.try_iter().map(|f| {
            let times = (f.started_ns, now_ns);
            ReadDone::of(f.op, f.result, times, f.worker)
        }));
        let count = out.len() - before;
        self.in_flight -= count;
        count
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.bell.prepare_wait() {
            return Ok(());
        }
        let slept = if self.finished.is_empty() {
            sleep(&self.bell, timeout)
        } else {
            Ok(())
        };
        self.bell.resume();
        slept
    }

    fn waker(&self) -> Waker {
        self.bell.waker()
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn name(&self) -> &'static str {
        "pread"
    }
}

/// Sleeps until the bell rings or `timeout` has passed.
fn sleep(bell: &Bell, timeout: Option<Duration>) -> io::Result<()> {
    // A timeout beyond the clock's range means none.
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    let mut fds = [PollFd::new(bell, PollFlags::IN)];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Ok(()),
        Ok(_) => {
            bell.silence();
            Ok(())
        }
        Err(e) => Err(e.into()),
    }
}

impl Drop for PreadDriver {
    fn drop(&mut self) {
        // Workers finish their current read, and drop the jobs after it.
        self.closing.store(true, Ordering::Release);
        self.jobs = None;
        for worker in self.workers.drain(..) {
            // A worker that panicked has nothing more to return.
            let _ = worker.join();
        }
    }
}
