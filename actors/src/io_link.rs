//! The lanes between a client (a core, or the driver) and the single I/O actor.
//!
//! Requests cross by value: an operation owns the buffer it fills, and the completion brings it back.
//! Lanes are as long as the client has buffers, so a send never waits and never fails.

use flume::{Receiver, Sender};
use forebay_queues::doorbell::Ringer;
use forebay_queues::slab::Slot;
use forebay_traces::lane::TraceLane;
use forebay_traces::record::{Counter, Record, Residency};

use crate::io::{CompletionSink, ReadDone, ReadOp, RequestSource, Waker};

/// What a read was for; travels as the operation's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadTag {
    /// A cluster of the stream window.
    Stream {
        /// Place in the cycle.
        ordinal: usize,
    },
    /// A cluster of the prefill graph's window.
    Preload {
        /// Place in the cycle.
        ordinal: usize,
    },
    /// Neurons for the cache.
    Neurons {
        /// The stage's number of the read.
        id: usize,
    },
}

/// Bit of a tag that marks neuron reads.
const NEURONS: u64 = 1 << 31;
/// Bit of a tag that marks reads of the prefill graph.
const PRELOAD: u64 = 1 << 30;
/// Low bits of a tag: ordinal or id, with [`NEURONS`] and [`PRELOAD`]. The rest is a sequence number.
const LOW: u64 = (1 << 32) - 1;

impl ReadTag {
    fn encode(self, sequence: u64) -> u64 {
        let low = match self {
            Self::Stream { ordinal } => ordinal as u64,
            Self::Preload { ordinal } => ordinal as u64 | PRELOAD,
            Self::Neurons { id } => id as u64 | NEURONS,
        };
        sequence << 32 | low
    }

    /// The tag of a completed operation.
    pub fn decode(tag: u64) -> Self {
        let low = tag & LOW;
        let number = (low & !(NEURONS | PRELOAD)) as usize;
        match (low & NEURONS != 0, low & PRELOAD != 0) {
            (true, _) => Self::Neurons { id: number },
            (false, true) => Self::Preload { ordinal: number },
            (false, false) => Self::Stream { ordinal: number },
        }
    }
}

/// Names a read in the trace: unique over clients and time.
fn flow_id(client: u16, tag: u64) -> u64 {
    (u64::from(client) + 1) << 32 | tag >> 32
}

/// A client's end.
#[derive(Debug)]
pub struct IoLink {
    client: u16,
    sequence: u64,
    urgent: Sender<ReadOp>,
    prefetch: Sender<ReadOp>,
    done: Receiver<ReadDone>,
    waker: Waker,
    unsent: bool,
}

impl IoLink {
    /// Queues a read that somebody waits for; [`IoLink::flush`] tells the I/O actor. Returns its flow id.
    pub fn urgent(&mut self, tag: ReadTag, offset: u64, len: usize, slot: Slot) -> u64 {
        let op = self.op(tag, offset, len, slot);
        let flow = flow_id(self.client, op.tag);
        // Cannot be full (see the module's text); if the I/O actor is gone its own fault says so.
        let _ = self.urgent.try_send(op);
        flow
    }

    /// Queues a read ahead of its use.
    pub fn prefetch(&mut self, tag: ReadTag, offset: u64, len: usize, slot: Slot) -> u64 {
        let op = self.op(tag, offset, len, slot);
        let flow = flow_id(self.client, op.tag);
        let _ = self.prefetch.try_send(op);
        flow
    }

    fn op(&mut self, tag: ReadTag, offset: u64, len: usize, slot: Slot) -> ReadOp {
        self.sequence += 1;
        self.unsent = true;
        let tag = tag.encode(self.sequence);
        ReadOp {
            client: self.client,
            tag,
            offset,
            len: len as u32,
            slot,
            slot_offset: 0,
        }
    }

    /// Wakes the I/O actor if anything was queued since the last call: one wake-up per batch.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unsent) {
            self.waker.wake();
        }
    }

    /// The next completed read.
    pub fn try_done(&self) -> Option<ReadDone> {
        self.done.try_recv().ok()
    }

    /// Waits for a completed read; for the driver, never for a compute core. `None` if the I/O actor
    /// has ended.
    pub fn wait_done(&self) -> Option<ReadDone> {
        self.done.recv().ok()
    }
}

/// The I/O actor's ends of all lanes.
#[derive(Debug)]
pub struct IoLanes {
    urgent: Receiver<ReadOp>,
    prefetch: Receiver<ReadOp>,
    clients: Vec<(Sender<ReadDone>, Option<Ringer>)>,
    /// One trace lane per I/O slot.
    traces: Vec<TraceLane>,
}

/// Makes the lanes for `clients`, each with the number of buffers it may have under way and the bell to
/// ring, and one trace lane per I/O slot.
pub fn io_lanes(
    clients: Vec<(usize, Option<Ringer>)>,
    waker: &Waker,
    traces: Vec<TraceLane>,
) -> (Vec<IoLink>, IoLanes) {
    let total: usize = clients.iter().map(|c| c.0).sum();
    let (urgent, urgent_rx) = flume::bounded(total.max(1));
    let (prefetch, prefetch_rx) = flume::bounded(total.max(1));
    let mut links = Vec::new();
    let mut senders = Vec::new();
    for (client, (buffers, ringer)) in clients.into_iter().enumerate() {
        let (done_tx, done) = flume::bounded(buffers.max(1));
        senders.push((done_tx, ringer));
        links.push(IoLink {
            client: client as u16,
            sequence: 0,
            urgent: urgent.clone(),
            prefetch: prefetch.clone(),
            done,
            waker: waker.clone(),
            unsent: false,
        });
    }
    let lanes = IoLanes {
        urgent: urgent_rx,
        prefetch: prefetch_rx,
        clients: senders,
        traces,
    };
    (links, lanes)
}

impl IoLanes {
    /// Splits into what the I/O actor takes from and what it gives to.
    pub fn split(self) -> (Requests, Completions) {
        let requests = Requests {
            urgent: self.urgent,
            prefetch: self.prefetch,
        };
        (
            requests,
            Completions {
                clients: self.clients,
                traces: self.traces,
            },
        )
    }
}

/// Requests of all clients.
#[derive(Debug)]
pub struct Requests {
    urgent: Receiver<ReadOp>,
    prefetch: Receiver<ReadOp>,
}

impl RequestSource for Requests {
    fn next_urgent(&mut self) -> Option<ReadOp> {
        self.urgent.try_recv().ok()
    }

    fn next_prefetch(&mut self) -> Option<ReadOp> {
        self.prefetch.try_recv().ok()
    }

    fn closed(&self) -> bool {
        self.urgent.is_disconnected() && self.prefetch.is_disconnected()
    }
}

/// Completions to all clients, recorded in the trace.
#[derive(Debug)]
pub struct Completions {
    clients: Vec<(Sender<ReadDone>, Option<Ringer>)>,
    traces: Vec<TraceLane>,
}

impl Completions {
    /// Number of clients.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Records how many reads are in flight, on the first slot's lane: a counter is a track of its own.
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
    fn complete(&mut self, done: ReadDone) {
        if let Some(lane) = self.traces.get_mut(usize::from(done.io_slot)) {
            let number = (done.tag & LOW & !NEURONS) as u32;
            let read = Record::read(u16::MAX, u64::from(done.len), done.started_ns, done.done_ns);
            let read = read.with_clusters(number, 1, Residency::Miss);
            lane.push(read.with_flow(flow_id(done.client, done.tag)));
        }
        if let Some((sender, ringer)) = self.clients.get(usize::from(done.client)) {
            // As long as the client's buffers, so never full; a client that is gone needs no buffer.
            let _ = sender.try_send(done);
            if let Some(ringer) = ringer {
                ringer.ring();
            }
        }
    }
}
