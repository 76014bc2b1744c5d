//! The lanes between a client (a core, or the engine thread) and the single I/O actor.
//!
//! Requests are sent by value: an operation owns the buffer that it fills, and the completion returns it. Lanes have
//! room for as many reads as their clients have buffers, so a send never waits and never fails. If the sizes are wrong
//! nevertheless, the read returns to its client as a failed one, with its buffer.

use std::io;
use std::sync::Arc;

use forebay_queues::capacity::Capacity;
use forebay_queues::doorbell::{Bell, Ringer, Spin, doorbell};
use forebay_queues::lane::{LaneRx, LaneTx, SendError, lane};
use forebay_queues::slab::Slot;
use forebay_traces::lane::TraceLane;
use forebay_traces::record::{Counter, Record, Residency};

use crate::io::{CompletionSink, FaultKind, IoTally, ReadDone, ReadOp, RequestSource, Waker};
use crate::io_counters::Published;

/// What a read is for; encoded in the operation's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadTag {
    /// A cluster of the stream window.
    Stream {
        /// Position in the cycle of reads.
        ordinal: usize,
    },
    /// A cluster of the prefill graph's window.
    Preload {
        /// Position in the cycle of reads.
        ordinal: usize,
    },
    /// A cluster for the expert cache.
    Expert {
        /// Number of the cell.
        cell: usize,
    },
    /// Neurons for the cache.
    Neurons {
        /// The stage's number of the read.
        id: usize,
    },
    /// The embedding of a token.
    Embedding {
        /// Which of the tokens that are embedded together.
        token_index: usize,
    },
}

/// The low bits of a tag: the kind of read in the upper part, its number in the lower. The rest of the tag is a
/// sequence number.
const LOW_BITS: u32 = 32;
const NUMBER_BITS: u32 = 29;
const KIND: u64 = 7;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;

impl ReadTag {
    fn encode(self, sequence: u64) -> u64 {
        let (kind, number) = match self {
            Self::Stream { ordinal } => (0, ordinal),
            Self::Preload { ordinal } => (1, ordinal),
            Self::Neurons { id } => (2, id),
            Self::Embedding { token_index } => (3, token_index),
            Self::Expert { cell } => (4, cell),
        };
        debug_assert!(number as u64 <= NUMBER, "{self:?} does not fit into a tag");
        sequence << LOW_BITS | kind << NUMBER_BITS | number as u64
    }

    /// The tag of a completed operation.
    pub fn decode(tag: u64) -> Self {
        let number = (tag & NUMBER) as usize;
        match tag >> NUMBER_BITS & KIND {
            0 => Self::Stream { ordinal: number },
            1 => Self::Preload { ordinal: number },
            2 => Self::Neurons { id: number },
            4 => Self::Expert { cell: number },
            _ => Self::Embedding {
                token_index: number,
            },
        }
    }
}

/// Names a read in the trace: unique over clients and time.
fn flow_id(client: u16, tag: u64) -> u64 {
    (u64::from(client) + 1) << LOW_BITS | tag >> LOW_BITS
}

/// A client's end.
#[derive(Debug)]
pub struct IoLink {
    client: u16,
    sequence: u64,
    urgent: LaneTx<ReadOp, Waker>,
    prefetch: LaneTx<ReadOp, Waker>,
    done: LaneRx<ReadDone>,
    /// How many reads may be in flight.
    capacity: Capacity,
    /// Reads whose completion has not been received: the lane of completions is only looked at, which takes its lock,
    /// while there are some.
    awaited: usize,
    /// Reads that found their lane full.
    refused: Vec<ReadDone>,
    /// The client's own bell.
    ringer: Ringer,
    unsent: bool,
    /// Whether reads that are waited for have been given to the I/O actor since that was last asked.
    gave_urgent: bool,
}

impl IoLink {
    /// Queues a read that the client waits for, into `slot` from this byte of it on; [`IoLink::flush`] tells the I/O
    /// actor. Returns its flow id.
    pub fn urgent(&mut self, tag: ReadTag, offset: u64, len: usize, slot: (Slot, usize)) -> u64 {
        let op = self.op(tag, offset, len, slot);
        let flow = flow_id(self.client, op.tag);
        let sent = self.urgent.send_quiet(op);
        self.check_sent(sent);
        self.gave_urgent = true;
        flow
    }

    /// Queues a read ahead of its use.
    pub fn prefetch(&mut self, tag: ReadTag, offset: u64, len: usize, slot: (Slot, usize)) -> u64 {
        let op = self.op(tag, offset, len, slot);
        let flow = flow_id(self.client, op.tag);
        let sent = self.prefetch.send_quiet(op);
        self.check_sent(sent);
        flow
    }

    fn op(&mut self, tag: ReadTag, offset: u64, len: usize, (slot, at): (Slot, usize)) -> ReadOp {
        self.sequence += 1;
        self.unsent = true;
        let tag = tag.encode(self.sequence);
        ReadOp {
            client: self.client,
            tag,
            offset,
            len: len as u32,
            slot,
            slot_offset: at as u32,
        }
    }

    /// A read that found its lane full is returned as a failed one, so that its buffer is not lost.
    fn check_sent(&mut self, sent: Result<(), SendError<ReadOp>>) {
        match sent {
            Ok(()) => self.awaited += 1,
            Err(SendError::Full { value, capacity }) => {
                let places = capacity.total();
                let fault = Err(FaultKind::LaneFull { places });
                self.refused.push(ReadDone::of(value, fault, (0, 0), 0));
                // The client may be about to sleep.
                self.ringer.ring();
            }
            // The I/O actor has ended before its clients. It reported its own fault first and released the waiting
            // clients; this buffer is lost with those that it held.
            Err(SendError::Closed { .. }) => {}
        }
    }

    /// Wakes the I/O actor if anything was queued since the last call: one wake-up per batch.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unsent) {
            // Both lanes wake the same receiver.
            self.urgent.ring();
        }
    }

    /// Whether reads that are waited for have been given to the I/O actor since the last call.
    pub fn take_gave_urgent(&mut self) -> bool {
        std::mem::take(&mut self.gave_urgent)
    }

    /// The next completed read.
    pub fn try_done(&mut self) -> Option<ReadDone> {
        if let Some(refused) = self.refused.pop() {
            return Some(refused);
        }
        if self.awaited == 0 {
            return None;
        }
        let done = self.done.try_recv()?;
        self.awaited -= 1;
        Some(done)
    }

    /// How many reads may be in flight, with the reasons.
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
    }
}

/// The engine thread's end, for embedding rows: it may wait, which a compute core never does.
#[derive(Debug)]
pub struct RowLink {
    link: IoLink,
    bell: Bell,
}

impl RowLink {
    /// Queues the read of a row; [`RowLink::flush`] tells the I/O actor.
    pub fn read(&mut self, token_index: usize, offset: u64, len: usize, slot: Slot) {
        let tag = ReadTag::Embedding { token_index };
        self.link.urgent(tag, offset, len, (slot, 0));
    }

    /// Wakes the I/O actor if anything was queued since the last call.
    pub fn flush(&mut self) {
        self.link.flush();
    }

    /// The next completed read, and the index of its token.
    pub fn try_done(&mut self) -> Option<(usize, ReadDone)> {
        let done = self.link.try_done()?;
        Some(((done.tag & NUMBER) as usize, done))
    }

    /// Waits for the next completed read. `None` if the I/O actor has ended.
    pub fn wait_done(&mut self) -> Option<(usize, ReadDone)> {
        loop {
            let seen = self.bell.epoch();
            let done = self.try_done();
            if done.is_some() || self.link.done.is_closed() {
                return done;
            }
            self.bell.wait(seen, Spin::NONE, None);
        }
    }
}

/// The I/O actor's ends of all lanes.
#[derive(Debug)]
pub struct IoLanes {
    requests: Requests,
    completions: Completions,
}

/// Makes the lanes for the `cores`, each with the number of its buffers and the bell to ring, and for the engine thread
/// with `rows` buffers; `traces` has one trace lane per place in the I/O queue.
pub fn io_lanes(
    cores: Vec<(Capacity, Ringer)>,
    rows: Capacity,
    waker: &Waker,
    traces: Vec<TraceLane>,
) -> (Vec<IoLink>, RowLink, IoLanes) {
    let total: Capacity = cores.iter().map(|core| &core.0).chain([&rows]).sum();
    let (urgent, urgent_rx) = lane(&total, waker.clone());
    let (prefetch, prefetch_rx) = lane(&total, waker.clone());
    let mut clients = Vec::new();
    let mut link = |(capacity, ringer): (Capacity, Ringer)| {
        let (done_tx, done) = lane(&capacity, ringer.clone());
        clients.push(done_tx);
        IoLink {
            client: (clients.len() - 1) as u16,
            sequence: 0,
            urgent: urgent.clone(),
            prefetch: prefetch.clone(),
            done,
            awaited: 0,
            refused: Vec::with_capacity(capacity.total()),
            capacity,
            ringer,
            unsent: false,
            gave_urgent: false,
        }
    };
    let links = cores.into_iter().map(&mut link).collect();
    let (bell, ringer) = doorbell();
    let rows = RowLink {
        link: link((rows, ringer)),
        bell,
    };
    let lanes = IoLanes {
        requests: Requests {
            urgent: urgent_rx,
            prefetch: prefetch_rx,
        },
        completions: Completions {
            clients,
            traces,
            published: Arc::default(),
        },
    };
    (links, rows, lanes)
}

impl IoLanes {
    /// Splits into the I/O actor's source and sink.
    pub fn split(self) -> (Requests, Completions) {
        (self.requests, self.completions)
    }
}

/// Requests of all clients.
#[derive(Debug)]
pub struct Requests {
    urgent: LaneRx<ReadOp>,
    prefetch: LaneRx<ReadOp>,
}

impl RequestSource for Requests {
    fn next_urgent(&mut self) -> Option<ReadOp> {
        self.urgent.try_recv()
    }

    fn next_prefetch(&mut self) -> Option<ReadOp> {
        self.prefetch.try_recv()
    }

    fn closed(&self) -> bool {
        self.urgent.is_closed() && self.prefetch.is_closed()
    }
}

/// Completions to all clients, recorded in the trace.
#[derive(Debug)]
pub struct Completions {
    clients: Vec<LaneTx<ReadDone>>,
    traces: Vec<TraceLane>,
    published: Arc<Published>,
}

impl Completions {
    /// Number of clients.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// What has been read so far, for other threads.
    pub(crate) fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published)
    }

    /// Records how many reads are in flight, in the first trace lane: a counter has its own track.
    pub fn record_in_flight(&mut self, reads: usize, now_ns: u64) {
        if let Some(lane) = self.traces.first_mut() {
            lane.push(Record::counter(
                Counter::InFlightReads,
                reads as u64,
                now_ns,
            ));
        }
    }

    /// The trace lanes, at the end.
    pub fn take_traces(&mut self) -> Vec<TraceLane> {
        std::mem::take(&mut self.traces)
    }
}

impl CompletionSink for Completions {
    fn complete(&mut self, done: ReadDone, so_far: &IoTally) -> io::Result<()> {
        self.published.set(so_far);
        if let Some(lane) = self.traces.get_mut(usize::from(done.io_slot)) {
            let number = (done.tag & NUMBER) as u32;
            let read = Record::read(u16::MAX, u64::from(done.len), done.started_ns, done.done_ns);
            let read = read.with_clusters(number, 1, Residency::Miss);
            lane.push(read.with_flow(flow_id(done.client, done.tag)));
        }
        let Some(client) = self.clients.get(usize::from(done.client)) else {
            return Ok(());
        };
        match client.send(done) {
            // A client that is gone no longer needs its buffer.
            Ok(()) | Err(SendError::Closed { .. }) => Ok(()),
            Err(full @ SendError::Full { .. }) => Err(io::Error::other(full.to_string())),
        }
    }
}

#[cfg(test)]
mod tests;
