//! UDIO: bringing Up and Down of live neurons into the neuron cache.
//!
//! A cluster goes on to UDC when all its live neurons are in the cache. Missing neighbours are read
//! together where their pages touch. When slots run out, only the first waiting cluster holds any, so two
//! clusters can never wait for each other.

use std::collections::VecDeque;

use forebay_models::bundle::{FfnGeometry, checksum};
use forebay_queues::slab::{PAGE, Slot};

use crate::cache::TwoQueue;
use crate::live_mask::LiveMask;

/// Neurons per cluster in the neuron layout: the width of a mask word.
const CLUSTER: usize = 64;
/// Marks a neuron of a flight that holds no slot.
const NO_SLOT: u32 = u32::MAX;

/// A cluster whose live neurons are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The core's number for this piece of work, unique while it is under way.
    pub flight: usize,
    /// Index of the cluster's first neuron among the core's cached neurons.
    pub base: usize,
    /// Offset of the cluster in the file.
    pub file_offset: u64,
    /// Live neurons, counted within the cluster.
    pub live: LiveMask,
    /// Storage of the layer's FFN.
    pub geometry: FfnGeometry,
    /// Directory index of the cluster.
    pub cluster: usize,
}

/// A read of one or more neighbouring neurons.
#[derive(Clone, Copy, Debug)]
struct Span {
    flight: usize,
    /// Neurons (within the cluster) whose Up and Down this span brings.
    neurons: u64,
    offset: u64,
    len: usize,
}

/// A read to be started.
#[derive(Debug)]
pub struct NeuronRead {
    /// Names the read when it completes.
    pub id: usize,
    /// Offset in the file, page-aligned.
    pub offset: u64,
    /// Bytes, a multiple of the page.
    pub len: usize,
    /// Buffer to fill.
    pub slot: Slot,
}

/// A neuron whose bytes do not match its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptNeuron {
    /// Directory index of its cluster.
    pub cluster: usize,
    /// Neuron within the cluster.
    pub neuron: usize,
    /// The flight that thereby has no reads left, if any.
    pub ready: Option<usize>,
}

#[derive(Clone, Debug)]
struct Flight {
    wanted: Option<Wanted>,
    /// Live neurons whose slots are not filled yet.
    missing: u64,
    /// Cache slot by neuron of the cluster, `[64]`.
    slots: [u32; CLUSTER],
}

const NO_FLIGHT: Flight = Flight {
    wanted: None,
    missing: 0,
    slots: [NO_SLOT; CLUSTER],
};

/// Cache statistics of one core, in neurons.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheCounts {
    /// Live neurons found in memory.
    pub hits: u64,
    /// Live neurons that had to be read.
    pub misses: u64,
}

/// The neuron cache and its pending reads on one core.
#[derive(Debug)]
pub struct Udio {
    cache: TwoQueue,
    /// Cached rows, `[slots, slot_bytes]`.
    store: Option<Slot>,
    slot_bytes: usize,
    flights: Vec<Flight>,
    /// Flights that wait for free slots, first come first served. Only the first one holds any.
    blocked: VecDeque<usize>,
    spans: VecDeque<Span>,
    reads: Vec<Option<Span>>,
    free_reads: Vec<usize>,
    buffers: Vec<Slot>,
    buffer_bytes: usize,
    counts: CacheCounts,
}

/// Memory of a core's neuron cache.
#[derive(Debug, Default)]
pub struct NeuronStore {
    /// Neurons that may be cached: those with pinned Gate rows on this core.
    pub neurons: usize,
    /// Slots of the cache.
    pub slots: usize,
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// `[slots, slot_bytes]`; absent where no neuron is cached.
    pub store: Option<Slot>,
    /// Read buffers.
    pub buffers: Vec<Slot>,
}

impl Udio {
    /// A cache with the given memory for at most `flights` clusters under way at once.
    pub fn new(memory: NeuronStore, flights: usize) -> Self {
        let reads = memory.buffers.len();
        Self {
            cache: TwoQueue::new(memory.neurons, memory.slots),
            store: memory.store,
            slot_bytes: memory.slot_bytes,
            flights: vec![NO_FLIGHT; flights],
            blocked: VecDeque::with_capacity(flights),
            spans: VecDeque::with_capacity(flights * CLUSTER),
            reads: vec![None; reads],
            free_reads: (0..reads).collect(),
            buffer_bytes: memory.buffers.first().map_or(0, |b| b.len()),
            buffers: memory.buffers,
            counts: CacheCounts::default(),
        }
    }

    /// Asks for the live neurons of a cluster; true when all are in memory already.
    pub fn want(&mut self, wanted: Wanted) -> bool {
        let flight = wanted.flight;
        self.flights[flight] = Flight {
            wanted: Some(wanted),
            ..NO_FLIGHT
        };
        if self.blocked.is_empty()
            && let Some(ready) = self.acquire(flight)
        {
            return ready;
        }
        self.blocked.push_back(flight);
        false
    }

    /// Retries clusters that waited for slots; returns one that became ready without any read.
    pub fn retry_blocked(&mut self) -> Option<usize> {
        while let Some(&flight) = self.blocked.front() {
            let ready = self.acquire(flight)?;
            self.blocked.pop_front();
            if ready {
                return Some(flight);
            }
        }
        None
    }

    /// Holds or gets a slot for each live neuron and queues reads for the missing ones; true if none
    /// is missing. `None` if slots ran out: those got so far stay held, and the rest comes later.
    fn acquire(&mut self, flight: usize) -> Option<bool> {
        let entry = &mut self.flights[flight];
        let wanted = entry.wanted?;
        for neuron in wanted.live.iter() {
            if entry.slots[neuron] != NO_SLOT {
                continue;
            }
            let slot = match self.cache.hold(wanted.base + neuron) {
                Some(slot) => {
                    self.counts.hits += 1;
                    slot
                }
                None => {
                    let slot = self.cache.admit(wanted.base + neuron)?;
                    self.counts.misses += 1;
                    entry.missing |= 1 << neuron;
                    slot
                }
            };
            entry.slots[neuron] = slot as u32;
        }
        let missing = entry.missing;
        self.queue_spans(&wanted, missing);
        Some(missing == 0)
    }

    /// Cuts the missing neurons of a cluster into page-aligned reads, joining those that touch.
    fn queue_spans(&mut self, wanted: &Wanted, missing: u64) {
        let g = &wanted.geometry;
        let mut open: Option<Span> = None;
        for neuron in wanted.live.iter().filter(|n| missing >> n & 1 == 1) {
            let start = neuron * g.bundle_stride() + g.up_offset();
            let (first, end) = (
                start / PAGE * PAGE,
                (start + g.up_down_bytes()).next_multiple_of(PAGE),
            );
            if let Some(span) = &mut open {
                let span_start = (span.offset - wanted.file_offset) as usize;
                if first <= span_start + span.len && end - span_start <= self.buffer_bytes {
                    span.len = end - span_start;
                    span.neurons |= 1 << neuron;
                    continue;
                }
                self.spans.push_back(*span);
            }
            open = Some(Span {
                flight: wanted.flight,
                neurons: 1 << neuron,
                offset: wanted.file_offset + first as u64,
                len: end - first,
            });
        }
        self.spans.extend(open);
    }

    /// Whether a read is due and a buffer is free.
    pub fn can_read(&self) -> bool {
        !self.spans.is_empty() && !self.buffers.is_empty() && !self.free_reads.is_empty()
    }

    /// The next read to start, if one is due and a buffer is free.
    pub fn next_read(&mut self) -> Option<NeuronRead> {
        if !self.can_read() {
            return None;
        }
        let span = self.spans.pop_front()?;
        let (slot, id) = (self.buffers.pop()?, self.free_reads.pop()?);
        self.reads[id] = Some(span);
        Some(NeuronRead {
            id,
            offset: span.offset,
            len: span.len,
            slot,
        })
    }

    /// Takes a completed read: its neurons' rows are checked and copied into their slots. `sum_of`
    /// gives the checksum of a neuron, by directory index of the cluster and neuron within it.
    ///
    /// # Errors
    /// The cluster whose neuron does not match its checksum. The flight still gets ready, so that the
    /// step can come to its end and report the fault.
    pub fn arrived(
        &mut self,
        id: usize,
        buffer: Slot,
        read_ok: bool,
        sum_of: impl Fn(usize, usize) -> Option<u32>,
    ) -> Result<Option<usize>, CorruptNeuron> {
        let Some(span) = self.reads[id].take() else {
            return Ok(None);
        };
        self.free_reads.push(id);
        let flight = &mut self.flights[span.flight];
        let Some(wanted) = flight.wanted else {
            return Ok(None);
        };
        let (g, len) = (wanted.geometry, wanted.geometry.up_down_bytes());
        let mut fault = None;
        for neuron in (0..CLUSTER).filter(|n| span.neurons >> n & 1 == 1) {
            let at = wanted.file_offset + (neuron * g.bundle_stride() + g.up_offset()) as u64;
            let at = (at - span.offset) as usize;
            let rows = &buffer[at..at + len];
            if read_ok && sum_of(wanted.cluster, neuron) != Some(checksum(rows) as u32) {
                fault = Some(neuron);
            }
            let to = flight.slots[neuron] as usize * self.slot_bytes;
            if let Some(store) = &mut self.store {
                store[to..to + len].copy_from_slice(rows);
            }
        }
        flight.missing &= !span.neurons;
        let ready = (flight.missing == 0).then_some(span.flight);
        if !read_ok || fault.is_some() {
            // Never to be found again: what lies in these slots is not the neurons' data.
            for neuron in (0..CLUSTER).filter(|n| span.neurons >> n & 1 == 1) {
                self.cache.disown(flight.slots[neuron] as usize);
            }
        }
        self.buffers.push(buffer);
        match fault {
            Some(neuron) => Err(CorruptNeuron {
                cluster: wanted.cluster,
                neuron,
                ready,
            }),
            None => Ok(ready),
        }
    }

    /// Up and Down rows of a live neuron of a ready flight.
    pub fn rows(&self, flight: usize, neuron: usize) -> &[u8] {
        let at = self.flights[flight].slots[neuron] as usize * self.slot_bytes;
        self.store
            .as_ref()
            .map_or(&[], |store| &store[at..at + self.slot_bytes])
    }

    /// Ends the use of a flight's neurons.
    pub fn release(&mut self, flight: usize) {
        for slot in &mut self.flights[flight].slots {
            if *slot != NO_SLOT {
                self.cache.release(*slot as usize);
                *slot = NO_SLOT;
            }
        }
    }

    /// The flight that a read in progress belongs to.
    pub fn flight_of(&self, id: usize) -> Option<usize> {
        self.reads[id].map(|span| span.flight)
    }

    /// Reads that wait for a buffer.
    pub fn queued(&self) -> usize {
        self.spans.len()
    }

    /// Neurons in the cache.
    pub fn cached(&self) -> usize {
        self.cache.len()
    }

    /// Takes the counts since the last call.
    pub fn take_counts(&mut self) -> CacheCounts {
        std::mem::take(&mut self.counts)
    }
}
