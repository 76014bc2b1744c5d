//! Whole clusters through a window: what GIO and Preload have in common.

use std::collections::VecDeque;

use forebay_models::bundle::checksum;
use forebay_plans::program::Item;
use forebay_queues::slab::Slot;
use forebay_traces::record::{Residency as Hit, Stage};

use super::window::Window;
use crate::contract::{Outbox, Port, Slice, StageFault};
use crate::flight::{Flight, RowFlight};
use crate::frame::Frame;

/// A read to be started.
#[derive(Debug)]
pub struct WindowRead {
    /// Position in the cycle.
    pub ordinal: usize,
    /// Directory index of the cluster.
    pub cluster: u32,
    /// Buffer to fill.
    pub slot: Slot,
}

/// A message that waits for its cluster.
#[derive(Debug)]
enum Waiter {
    Rows(Item),
    Neurons(Box<Flight>),
}

impl Waiter {
    fn ordinal(&self) -> Option<usize> {
        match self {
            Self::Rows(item) => item.source.ordinal(),
            Self::Neurons(flight) => flight.item.source.ordinal(),
        }
    }
}

/// The streamed clusters of one core.
#[derive(Debug)]
pub struct Reader {
    window: Window,
    /// Cluster by ordinal.
    stream: Vec<u32>,
    /// Flow id of the latest read by ordinal.
    flows: Vec<u64>,
    /// Whether the latest read failed, by ordinal.
    failed: Vec<bool>,
    waiting: VecDeque<Waiter>,
}

impl Reader {
    /// Reads the clusters `stream` in this order into `buffers`, repeatedly.
    pub fn new(stream: Vec<u32>, buffers: Vec<Slot>, max_waiting: usize) -> Self {
        let n = stream.len();
        Self {
            window: Window::new(n, buffers),
            stream,
            flows: vec![0; n],
            failed: vec![false; n],
            waiting: VecDeque::with_capacity(max_waiting),
        }
    }

    /// After a fault, nothing that was read ahead is used.
    pub fn distrust(&mut self) {
        self.window.restart();
    }

    /// No cluster of this cycle is wanted any more: reads in flight finish, and none starts.
    pub fn close(&mut self) {
        self.window.restart();
        self.window.stop_before(0);
    }

    /// Whether a read is in flight or waited for.
    pub fn is_busy(&self) -> bool {
        self.window.is_reading() || !self.waiting.is_empty()
    }

    /// The window.
    pub fn window(&mut self) -> &mut Window {
        &mut self.window
    }

    /// The window, for reading.
    pub fn window_ref(&self) -> &Window {
        &self.window
    }

    /// Number of waiting messages.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A flight that needs its cluster from the window.
    pub fn wait_for(&mut self, flight: Box<Flight>) {
        self.waiting.push_back(Waiter::Neurons(flight));
    }

    /// Rows that are needed.
    pub fn wait_for_rows(&mut self, item: Item) {
        self.waiting.push_back(Waiter::Rows(item));
    }

    /// Reads no further than the streamed clusters of the current phase, `items`; none before the step's first phase.
    pub fn confine(&mut self, items: &[Item]) {
        let ordinals = items.iter().filter_map(|item| item.source.ordinal());
        if let Some(last) = ordinals.max() {
            self.window.stop_before(last + 1);
        } else if items.is_empty() {
            self.window.stop_before(0);
        }
    }

    /// The cluster at a place of the cycle.
    pub fn cluster(&self, ordinal: usize) -> u32 {
        self.stream[ordinal]
    }

    /// The next read to start, if a buffer is free; [`Reader::started`] is told its flow id.
    pub fn next_read(&mut self) -> Option<WindowRead> {
        let (ordinal, slot) = self.window.next_read()?;
        Some(WindowRead {
            ordinal,
            cluster: self.stream[ordinal],
            slot,
        })
    }

    /// The read of `ordinal` has started.
    pub fn started(&mut self, ordinal: usize, flow: u64) {
        self.flows[ordinal] = flow;
    }

    /// A read has finished. If it failed, the step that needs the cluster reports it: a read ahead for a step that
    /// never comes is not reported.
    pub fn arrived(&mut self, ordinal: usize, slot: Slot, is_ok: bool) {
        if self.window.arrived(ordinal, slot) {
            self.failed[ordinal] = !is_ok;
        }
    }

    /// Passes on the next waiting message whose cluster is in memory, in order of arrival rather than of index; false
    /// if there is none.
    pub fn hand_on(&mut self, frame: &Frame<'_>, stage: Stage, out: &mut Outbox) -> bool {
        let found = self.waiting.iter().enumerate().find_map(|(i, waiter)| {
            let ordinal = waiter.ordinal()?;
            self.window.take(ordinal).map(|slot| (i, ordinal, slot))
        });
        let Some((i, ordinal, buffer)) = found else {
            return false;
        };
        self.verify(frame, ordinal, &buffer, out);
        let flow = self.flows[ordinal];
        let slice = Slice::plain(stage, self.stream[ordinal], 1);
        out.record(Slice {
            bytes: u64::from(frame.entry(slice.cluster).len),
            hit: Hit::Miss,
            ..slice
        });
        match self.waiting.remove(i) {
            Some(Waiter::Rows(item)) => out.rows.push_back(RowFlight { item, buffer, flow }),
            Some(Waiter::Neurons(mut flight)) => {
                (flight.flow, flight.buffer) = (flow, Some(buffer));
                out.send(Port::Here, flight);
            }
            None => {}
        }
        true
    }

    /// Bytes are checked at every read, because the file may be overwritten while it is in use. That brings
    /// them into the cache of the core that computes with them next.
    fn verify(&mut self, frame: &Frame<'_>, ordinal: usize, bytes: &[u8], out: &mut Outbox) {
        let cluster = self.stream[ordinal];
        if std::mem::take(&mut self.failed[ordinal]) {
            return out.faults.push(StageFault::Unread { cluster });
        }
        let entry = frame.entry(cluster);
        if checksum(&bytes[..entry.len as usize]) != entry.sum {
            let neuron = None;
            out.faults.push(StageFault::Corrupt { cluster, neuron });
        }
    }

    /// Takes back the buffer of a cluster that is done.
    pub fn release(&mut self, item: Item, buffer: Slot) {
        if let Some(ordinal) = item.source.ordinal() {
            self.window.release(ordinal, buffer);
        }
    }
}
