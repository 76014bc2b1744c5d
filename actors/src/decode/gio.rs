//! The GIO actor: keeps the stream window full and hands arrived clusters on.

use std::collections::VecDeque;

use forebay_models::bundle::checksum;
use forebay_queues::slab::Slot;
use forebay_stages::gio::{Gio, WindowTally};

use super::context::{CoreContext, Flight};
use super::program::Item;
use crate::fault::Fault;
use crate::io::ReadFault;
use crate::io_link::{IoLink, ReadTag};

#[derive(Debug)]
pub(super) struct GioActor {
    window: Gio,
    /// Cluster by ordinal.
    stream: Vec<u32>,
    /// Flow id of the latest read by ordinal.
    flows: Vec<u64>,
    /// Whether the ordinal's checksum has been verified in this process, or since the last fault.
    verified: Vec<bool>,
    /// What was wrong with the latest read by ordinal.
    failed: Vec<Option<ReadFault>>,
    waiting: VecDeque<Flight>,
    /// How reads are named.
    tag: fn(usize) -> ReadTag,
}

impl GioActor {
    /// The window over the clusters `stream`; `tag` names the read of one.
    pub fn new(
        stream: Vec<u32>,
        buffers: Vec<Slot>,
        max_waiting: usize,
        tag: fn(usize) -> ReadTag,
    ) -> Self {
        let n = stream.len();
        Self {
            tag,
            window: Gio::new(n, buffers),
            stream,
            flows: vec![0; n],
            verified: vec![false; n],
            failed: vec![None; n],
            waiting: VecDeque::with_capacity(max_waiting),
        }
    }

    /// A step begins that takes the first `clusters` of the cycle. After a fault (`read_anew`) nothing that
    /// was read ahead is used, and everything is checked again.
    pub fn begin_step(&mut self, clusters: usize, read_anew: bool) {
        if read_anew {
            self.window.restart();
            self.verified.fill(false);
        }
        self.window.begin_pass(clusters);
    }

    /// No cluster of this cycle is wanted any more: reads that are under way come home, and none begins.
    pub fn close(&mut self) {
        self.window.restart();
        self.window.stop_before(0);
    }

    /// Whether a read is under way, or somebody waits for one.
    pub fn is_busy(&self) -> bool {
        self.window.is_reading() || !self.waiting.is_empty()
    }

    /// The window, for who lends it its buffers.
    pub fn window(&mut self) -> &mut Gio {
        &mut self.window
    }

    /// A flight that needs its cluster from the window.
    pub fn wait_for(&mut self, flight: Flight) {
        self.waiting.push_back(flight);
    }

    /// The window's buffers, and the clusters that wait for theirs.
    pub fn tally(&self) -> (WindowTally, usize) {
        (self.window.tally(), self.waiting.len())
    }

    /// Clusters that have been read and not been used yet.
    pub fn ready(&self) -> usize {
        self.window.ready()
    }

    /// Reads no further than the streamed clusters of the present phase, `items`; none of them before the
    /// step's first phase.
    pub fn confine(&mut self, items: &[Item]) {
        let ordinals = items.iter().filter_map(|item| item.source.ordinal());
        if let Some(last) = ordinals.max() {
            self.window.stop_before(last + 1);
        } else if items.is_empty() {
            self.window.stop_before(0);
        }
    }

    /// Whether a read is under way.
    pub fn is_reading(&self) -> bool {
        self.window.is_reading()
    }

    /// Starts as many reads as there are free buffers.
    pub fn start_reads(&mut self, cx: &CoreContext, io: &mut IoLink) {
        while let Some((ordinal, slot)) = self.window.next_read() {
            let entry = cx.shared.entry(self.stream[ordinal]);
            let tag = (self.tag)(ordinal);
            self.flows[ordinal] = io.prefetch(tag, entry.offset, entry.padded_len(), slot);
        }
        io.flush();
    }

    /// A read came back. If it failed, the step that needs the cluster says so: a read ahead of a step
    /// that never comes is nobody's fault.
    pub fn arrived(&mut self, ordinal: usize, slot: Slot, result: Result<(), ReadFault>) {
        if self.window.arrived(ordinal, slot) {
            self.failed[ordinal] = result.err();
        }
    }

    /// The next waiting flight whose cluster is here, in order of arrival rather than of index.
    pub fn turn(&mut self, cx: &CoreContext) -> Option<Flight> {
        let found = self.waiting.iter().enumerate().find_map(|(i, flight)| {
            let ordinal = flight.item.source.ordinal()?;
            self.window.take(ordinal).map(|slot| (i, ordinal, slot))
        });
        let (i, ordinal, slot) = found?;
        let mut flight = self.waiting.remove(i)?;
        self.verify(cx, ordinal, &slot);
        flight.flow = self.flows[ordinal];
        flight.buffer = Some(slot);
        Some(flight)
    }

    /// A cluster's bytes are checked once per process: flash that returned them right once and wrong
    /// later would be beyond what a file format can guard against.
    fn verify(&mut self, cx: &CoreContext, ordinal: usize, slot: &Slot) {
        let cluster = self.stream[ordinal];
        let entry = cx.shared.entry(cluster);
        if let Some(fault) = self.failed[ordinal].take() {
            let (what, offset) = (cx.shared.describe(cluster), entry.offset);
            return cx.fault(Fault::Read {
                what,
                offset,
                fault,
            });
        }
        if std::mem::replace(&mut self.verified[ordinal], true) {
            return;
        }
        if checksum(&slot[..entry.len as usize]) != entry.sum {
            self.verified[ordinal] = false;
            let (what, offset) = (cx.shared.describe(cluster), entry.offset);
            cx.fault(Fault::Corrupt { what, offset });
        }
    }

    /// Takes back the buffer of a flight that is done.
    pub fn release(&mut self, flight: &mut Flight) {
        if let (Some(ordinal), Some(slot)) = (flight.item.source.ordinal(), flight.buffer.take()) {
            self.window.release(ordinal, slot);
        }
    }
}
