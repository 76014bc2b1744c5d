//! The I/O actor: the only reader of the packed file.
//!
//! Flash has one command queue, and several issuing cores slow it down (PowerInfer-2 measured up to 40%), so all reads
//! pass through this state machine. It owns no thread and no clock: its caller calls [`IoActor::turn`], and
//! [`IoActor::wait`] when a turn had nothing to do.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use forebay_stages::contract::Turn;
use forebay_traces::record::Reason;

use super::assembly::{self, Assembly};
use super::driver::Driver;
use super::op::{self, FaultKind, ReadDone, ReadOp};
use super::queue::FairQueue;
use super::tally::IoTally;
use super::waker::Waker;

/// Default of [`IoLimits::chunk_bytes`]. At depth 16 the development machine's disk gives 2.4 GB/s in reads of 512 KiB,
/// close to its best, and UFS 4.0 reaches its peak at this size; longer reads would only make urgent ones wait longer.
pub const CHUNK_BYTES: u32 = 512 << 10;

/// Default of [`IoLimits::bytes`]: with half of it, prompts of experts were 5% slower; with a quarter, streaming 4%.
pub const BYTES_IN_FLIGHT: u64 = 16 << 20;

/// Where requests come from.
pub trait RequestSource {
    /// The next read that a client waits for (a miss), without waiting.
    fn next_urgent(&mut self) -> Option<ReadOp>;

    /// The next read that will be needed later, without waiting.
    fn next_prefetch(&mut self) -> Option<ReadOp>;

    /// Whether no request can come any more, except those that are queued.
    fn closed(&self) -> bool;
}

/// Where finished reads go.
pub trait CompletionSink {
    /// Hands a finished read, which is counted in `so_far`, to the client named in it. The sink has room for every read
    /// in flight.
    ///
    /// # Errors
    /// It has no room, which is a bug in its size.
    fn complete(&mut self, done: ReadDone, so_far: &IoTally) -> io::Result<()>;
}

/// The actor's limits: each is fixed at start-up, and all memory is allocated then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoLimits {
    /// Maximum number of reads in flight.
    pub depth: usize,
    /// Maximum number of them for prefetching. Less than `depth` keeps places free for urgent reads, which would
    /// otherwise wait for a whole queue of long reads.
    pub prefetch_depth: usize,
    /// So many bytes in flight are enough; prefetching has three quarters of them. A read waits for all that were given
    /// to the disk before it.
    pub bytes: u64,
    /// Longest single read, bytes; rounded down to a multiple of [`op::ALIGNMENT`], at least one.
    pub chunk_bytes: u32,
    /// Number of clients; requests name one of `0..clients`.
    pub clients: usize,
    /// Maximum number of requests per priority that are taken from the source and not yet started; further ones stay
    /// there.
    pub pending: usize,
    /// Longest expected request, bytes: longer ones work, but allocate.
    pub longest_request: u32,
}

impl IoLimits {
    /// The limits for `clients` clients and `depth` reads in flight, a quarter of them (at least one if `depth > 1`)
    /// kept free of prefetching.
    pub fn new(clients: usize, depth: usize) -> Self {
        let reserved = (depth / 4).max(1);
        Self {
            depth,
            prefetch_depth: depth.saturating_sub(reserved).max(1),
            bytes: BYTES_IN_FLIGHT,
            chunk_bytes: CHUNK_BYTES,
            clients,
            pending: 4 * depth.max(16),
            longest_request: 16 * CHUNK_BYTES,
        }
    }
}

/// One priority: what waits, and the operation whose chunks are being issued.
struct Level {
    waiting: FairQueue,
    issuing: Option<u16>,
}

/// The single reader.
pub struct IoActor<D, R, S> {
    driver: D,
    source: R,
    sink: S,
    limits: IoLimits,
    urgent: Level,
    prefetch: Level,
    /// Operations in progress. Each has a chunk in flight or is the one being issued at its level.
    assemblies: Vec<Assembly>,
    free: Vec<u16>,
    /// Chunks to be tried again; they keep their place among the reads in flight.
    retries: VecDeque<ReadOp>,
    finished: Vec<ReadDone>,
    prefetch_in_flight: usize,
    /// Bytes in flight, and those of them that are prefetched.
    bytes: u64,
    prefetch_bytes: u64,
    statistics: IoTally,
}

impl<D: Driver, R: RequestSource, S: CompletionSink> IoActor<D, R, S> {
    /// Puts the actor together; the depth is at most the driver's.
    pub fn new(driver: D, source: R, sink: S, limits: IoLimits) -> Self {
        let depth = limits.depth.clamp(1, driver.capacity());
        let chunk_bytes =
            (limits.chunk_bytes - limits.chunk_bytes % op::ALIGNMENT).max(op::ALIGNMENT);
        let limits = IoLimits {
            depth,
            prefetch_depth: limits.prefetch_depth.clamp(1, depth),
            chunk_bytes,
            bytes: limits.bytes.max(1),
            pending: limits.pending.max(1),
            ..limits
        };
        let level = || Level {
            waiting: FairQueue::new(limits.clients, limits.pending),
            issuing: None,
        };
        // One per read in flight, and one being issued at each level.
        let places = depth + 2;
        let pieces = limits.longest_request.div_ceil(chunk_bytes) as usize;
        Self {
            urgent: level(),
            prefetch: level(),
            assemblies: (0..places).map(|_| Assembly::new(pieces)).collect(),
            free: (0..places as u16).rev().collect(),
            retries: VecDeque::with_capacity(depth),
            finished: Vec::with_capacity(driver.capacity()),
            prefetch_in_flight: 0,
            bytes: 0,
            prefetch_bytes: 0,
            statistics: IoTally::default(),
            driver,
            source,
            sink,
            limits,
        }
    }

    /// Returns finished reads, takes requests and starts as many as the depth allows. Never waits: [`Turn::Blocked`]
    /// asks for [`IoActor::wait`].
    ///
    /// # Errors
    /// The driver is broken, or a client has no room for its read; the reads in flight are then lost.
    pub fn turn(&mut self, now_ns: u64) -> io::Result<Turn> {
        // Checked first: what was sent before the closing is taken below.
        let closed = self.source.closed();
        let collected = self.collect(now_ns)?;
        let taken = self.take_requests(now_ns)?;
        let started = self.start(now_ns);
        self.driver.flush()?;
        self.statistics.observe(self.driver.in_flight(), now_ns);
        if collected || taken || started {
            return Ok(Turn::Progress);
        }
        let idle = self.free.len() == self.assemblies.len()
            && self.urgent.waiting.is_empty()
            && self.prefetch.waiting.is_empty();
        Ok(if closed && idle {
            Turn::Finished
        } else {
            Turn::Blocked(Reason::Idle)
        })
    }

    /// Sleeps until a read finishes, the waker is used, or `timeout` passes.
    ///
    /// # Errors
    /// The driver is broken.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.driver.wait(timeout)
    }

    /// What clients use after putting a request into the source.
    pub fn waker(&self) -> Waker {
        self.driver.waker()
    }

    /// Counters since the start.
    pub fn statistics(&self) -> &IoTally {
        &self.statistics
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Where finished reads went.
    pub fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }

    /// Where requests come from.
    pub fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }

    fn collect(&mut self, now_ns: u64) -> io::Result<bool> {
        let mut finished = std::mem::take(&mut self.finished);
        self.driver.poll(now_ns, &mut finished);
        let any = !finished.is_empty();
        for chunk in finished.drain(..) {
            self.take_back(chunk, now_ns)?;
        }
        self.finished = finished;
        Ok(any)
    }

    /// One chunk has finished: it is tried again once after a transient fault, else put into its
    /// operation.
    fn take_back(&mut self, chunk: ReadDone, now_ns: u64) -> io::Result<()> {
        let place = assembly::place_of(chunk.tag);
        let urgent = self.assemblies[usize::from(place)].is_urgent();
        self.bytes -= u64::from(chunk.len);
        if !urgent {
            self.prefetch_in_flight -= 1;
            self.prefetch_bytes -= u64::from(chunk.len);
        }
        let chunk = match chunk.result {
            Err(fault) if fault.kind.is_transient() => match assembly::retry(chunk) {
                Ok(again) => {
                    self.statistics.retries += 1;
                    self.retries.push_back(again);
                    return Ok(());
                }
                Err(chunk) => chunk,
            },
            _ => chunk,
        };
        let assembly = &mut self.assemblies[usize::from(place)];
        assembly.accept(chunk);
        if assembly.is_issued() {
            // A fault ends an operation before its last chunk is issued.
            for level in [&mut self.urgent, &mut self.prefetch] {
                level.issuing.take_if(|issuing| *issuing == place);
            }
        }
        let Some(done) = assembly.finish(now_ns) else {
            return Ok(());
        };
        self.free.push(place);
        self.statistics.count(&done, urgent);
        self.sink.complete(done, &self.statistics)
    }

    fn take_requests(&mut self, now_ns: u64) -> io::Result<bool> {
        let mut any = false;
        while self.urgent.waiting.has_room() {
            let Some(op) = self.source.next_urgent() else {
                break;
            };
            any = true;
            self.admit(op, true, now_ns)?;
        }
        while self.prefetch.waiting.has_room() {
            let Some(op) = self.source.next_prefetch() else {
                break;
            };
            any = true;
            self.admit(op, false, now_ns)?;
        }
        Ok(any)
    }

    /// Queues a request, or completes it at once if it is invalid.
    fn admit(&mut self, op: ReadOp, urgent: bool, now_ns: u64) -> io::Result<()> {
        let level = if urgent {
            &mut self.urgent
        } else {
            &mut self.prefetch
        };
        let (op, kind) = match op::slot_range(&op) {
            Err(kind) => (op, kind),
            Ok(_) => match level.waiting.push(op) {
                Ok(()) => return Ok(()),
                Err(op) => {
                    let kind = FaultKind::UnknownClient(op.client);
                    (op, kind)
                }
            },
        };
        let done = ReadDone::of(op, Err(kind), (now_ns, now_ns), 0);
        self.statistics.count(&done, urgent);
        self.sink.complete(done, &self.statistics)
    }

    fn start(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        while self.driver.in_flight() < self.limits.depth && self.bytes < self.limits.bytes {
            let Some((chunk, urgent)) = self.next_chunk(now_ns) else {
                break;
            };
            let bytes = u64::from(chunk.len);
            if let Err(chunk) = self.driver.submit(chunk, now_ns) {
                // The driver has less room than it reported; the chunk goes first next time.
                self.retries.push_front(chunk);
                break;
            }
            self.bytes += bytes;
            if !urgent {
                self.prefetch_in_flight += 1;
                self.prefetch_bytes += bytes;
            }
            any = true;
        }
        any
    }

    /// What to read next: failed reads, then misses, then prefetching within its limit.
    fn next_chunk(&mut self, now_ns: u64) -> Option<(ReadOp, bool)> {
        if let Some(chunk) = self.retries.pop_front() {
            let place = assembly::place_of(chunk.tag);
            let urgent = self.assemblies[usize::from(place)].is_urgent();
            return Some((chunk, urgent));
        }
        if let Some(chunk) = self.next_of(true, now_ns) {
            return Some((chunk, true));
        }
        let most_bytes = (self.limits.bytes / 4 * 3).max(1);
        if self.prefetch_in_flight >= self.limits.prefetch_depth
            || self.prefetch_bytes >= most_bytes
        {
            return None;
        }
        self.next_of(false, now_ns).map(|chunk| (chunk, false))
    }

    /// The next chunk of one level.
    fn next_of(&mut self, urgent: bool, now_ns: u64) -> Option<ReadOp> {
        let level = if urgent {
            &mut self.urgent
        } else {
            &mut self.prefetch
        };
        let place = match level.issuing {
            Some(place) => place,
            None => {
                let place = *self.free.last()?;
                let op = level.waiting.pop()?;
                self.free.pop();
                self.assemblies[usize::from(place)].begin(op, urgent, now_ns);
                place
            }
        };
        let assembly = &mut self.assemblies[usize::from(place)];
        let chunk = assembly.next_chunk(place, self.limits.chunk_bytes);
        level.issuing = (!assembly.is_issued()).then_some(place);
        chunk
    }
}
