//! Neurons that are read one by one: the neuron-granular half of GIO and UDIO.
//!
//! A neuron's bundle has two *parts*, Gate and Up-Down. Where Gate rows are pinned, slots hold the second
//! part only; else they hold whole bundles, brought by one read (`Loading::Bundle`), by two of which the
//! second is made only for live neurons (`Loading::Split`, PowerInfer-2 section 4.4), or row by row
//! (`Loading::Rows`, the baseline without bundles). A cluster goes on when the wanted part of all its
//! neurons is here.
//!
//! When slots run out, only the first waiting cluster holds any without having all, so two clusters can
//! never wait for each other.

#[cfg(test)]
mod fixture;
mod join;
mod lend;
mod parts;
mod queries;
mod resize;
mod tally;

use std::collections::VecDeque;
use std::ops::Range;

use forebay_models::bundle::{FfnGeometry, MAX_BUNDLES, NeuronSums, checksum};
use forebay_plans::residency::Loading;
use forebay_queues::slab::{PAGE, Slot};

use crate::cache::NeuronCache;
use crate::live_mask::LiveMask;

pub use join::{JoinRule, JoinedRead};
pub use parts::{
    CacheCounts, CorruptNeuron, NeuronMemory, NeuronRead, NeuronRules, Parts, Place, Wanted,
};
pub use tally::StoreTally;

/// Marks a neuron of a flight that holds no slot.
const NO_SLOT: u32 = u32::MAX;
/// Maximum number of reads for one neuron's part (`Loading::Rows`: Up and Down).
const PIECES: usize = 2;

/// A read of the same piece of one or more neighbouring neurons.
#[derive(Clone, Copy, Debug)]
struct Span {
    flight: usize,
    piece: usize,
    /// Neurons (within the cluster) of which this span reads a piece.
    neurons: LiveMask,
    offset: u64,
    len: usize,
}

#[derive(Clone, Debug)]
struct Flight {
    wanted: Option<Wanted>,
    /// Neurons whose piece has not been read yet.
    missing: [LiveMask; PIECES],
    /// Cache slot by neuron of the cluster.
    slots: [u32; MAX_BUNDLES],
}

const NO_FLIGHT: Flight = Flight {
    wanted: None,
    missing: [LiveMask::NONE; PIECES],
    slots: [NO_SLOT; MAX_BUNDLES],
};

impl Flight {
    fn is_ready(&self) -> bool {
        self.missing.iter().all(LiveMask::is_empty)
    }
}

/// The neuron cache and its pending reads on one core.
#[derive(Debug)]
pub struct NeuronStore {
    rules: NeuronRules,
    cache: NeuronCache,
    /// The parts in each slot, `[slots]`.
    parts: Vec<Parts>,
    /// Cached rows, `[slots, slot_bytes]`.
    store: Option<Slot>,
    slot_bytes: usize,
    /// Slots in use: those after them have no memory.
    used: usize,
    /// The memory of those, given back to the system.
    idle: Option<Slot>,
    /// First slot whose memory is borrowed.
    lent_from: Option<usize>,
    flights: Vec<Flight>,
    /// Flights that wait for free slots, first come first served. Only the first one holds any.
    blocked: VecDeque<usize>,
    /// Reads that are due.
    spans: VecDeque<Span>,
    /// Those under way.
    reads: Vec<Option<Span>>,
    free_reads: Vec<usize>,
    buffers: Vec<Slot>,
    buffer_bytes: usize,
    counts: CacheCounts,
}

impl NeuronStore {
    /// A cache with the given memory for at most `flights` clusters of up to `neurons` under way at once.
    pub fn new(
        memory: NeuronMemory,
        rules: NeuronRules,
        (flights, neurons): (usize, usize),
    ) -> Self {
        let reads = memory.buffers.len();
        let mut cache = NeuronCache::new(rules.policy, memory.neurons, memory.slots);
        let mut parts = vec![Parts::NONE; memory.slots];
        for (place, &neuron) in memory.preloaded.iter().enumerate() {
            match cache.preload(neuron as usize) {
                Some(slot) if slot == place => parts[slot] = Parts::BUNDLE,
                // A policy that keeps nothing, or has its slots in another order.
                Some(slot) => cache.disown(slot),
                None => break,
            }
        }
        Self {
            rules,
            cache,
            parts,
            store: memory.store,
            slot_bytes: memory.slot_bytes,
            used: memory.slots,
            idle: None,
            lent_from: None,
            flights: vec![NO_FLIGHT; flights],
            blocked: VecDeque::with_capacity(flights),
            spans: VecDeque::with_capacity(flights * neurons * PIECES),
            reads: vec![None; reads],
            free_reads: (0..reads).collect(),
            buffer_bytes: memory.buffers.first().map_or(0, |b| b.len()),
            buffers: memory.buffers,
            counts: CacheCounts::default(),
        }
    }

    /// What is read first of a neuron of which nothing is pinned.
    pub fn first_parts(&self) -> Parts {
        match self.rules.loading {
            Loading::Bundle => Parts::BUNDLE,
            Loading::Split | Loading::Rows => Parts::GATE,
        }
    }

    /// Asks for a part of a cluster's neurons; true when all of it is in memory already. A second call for
    /// the same flight wants more of the neurons it holds; those that are not wanted any more are let go.
    pub fn want(&mut self, wanted: Wanted) -> bool {
        let flight = wanted.flight;
        let entry = &mut self.flights[flight];
        entry.wanted = Some(wanted);
        for (neuron, slot) in entry.slots.iter_mut().enumerate() {
            if *slot != NO_SLOT && !wanted.live.has(neuron) {
                self.cache.release(*slot as usize);
                *slot = NO_SLOT;
            }
        }
        let holds_all = wanted.live.iter().all(|n| entry.slots[n] != NO_SLOT);
        if !holds_all {
            let base = wanted.place.base;
            self.cache.warm(wanted.live.iter().map(|n| base + n));
        }
        if (self.blocked.is_empty() || holds_all)
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

    /// Holds or gets a slot for each wanted neuron and queues reads for what is missing; true if nothing
    /// is. `None` if slots ran out: those got so far stay held, and the rest comes later.
    fn acquire(&mut self, flight: usize) -> Option<bool> {
        let entry = &mut self.flights[flight];
        let wanted = entry.wanted?;
        let base = wanted.place.base;
        for neuron in wanted.live.iter() {
            if entry.slots[neuron] != NO_SLOT {
                continue;
            }
            let slot = match self.cache.hold(base + neuron) {
                Some(slot) => slot,
                None => {
                    let slot = self.cache.admit(base + neuron)?;
                    self.parts[slot] = Parts::NONE;
                    slot
                }
            };
            entry.slots[neuron] = slot as u32;
        }
        let mut missing = LiveMask::NONE;
        for neuron in wanted.live.iter() {
            let slot = entry.slots[neuron] as usize;
            let parts = self.parts[slot];
            // A second want finds what the first brought: that was a miss.
            let first = wanted.parts != Parts::UP_DOWN || !self.rules.whole;
            if !parts.has(wanted.parts) {
                missing.set(neuron);
                self.counts.misses += 1;
            } else if first {
                self.counts.hits += 1;
            }
        }
        let pieces = self.pieces(&wanted.place.geometry, wanted.parts);
        for (piece, range) in pieces.into_iter().enumerate() {
            if let Some(range) = range {
                self.flights[flight].missing[piece] = missing;
                self.queue_spans(&wanted, piece, range, &missing);
            }
        }
        Some(self.flights[flight].is_ready())
    }

    /// The slot's bytes are not its neuron's data: they must never be found again.
    fn forget(&mut self, slot: usize) {
        self.cache.disown(slot);
        self.parts[slot] = Parts::NONE;
    }

    /// Byte ranges of the bundle whose reading brings `parts`.
    fn pieces(&self, g: &FfnGeometry, parts: Parts) -> [Option<Range<usize>>; PIECES] {
        let (up, end) = (g.up_offset(), g.bundle_bytes());
        if self.rules.loading == Loading::Rows {
            let (gate, down) = (0..g.gate_row(), g.down_offset()..end);
            return match parts.has(Parts::GATE) {
                true => [Some(gate), None],
                // With what lies between them: the checksum covers it, and a slot that was lent has something else
                // there.
                false => {
                    let between = up..g.down_offset();
                    [(!between.is_empty()).then_some(between), Some(down)]
                }
            };
        }
        // Where bundles fill pages, the halves meet on a page boundary, and the first may have some of Up.
        let split = match g.bundle_stride().is_multiple_of(PAGE) {
            true => g.gate_row().next_multiple_of(PAGE).min(end),
            false => up,
        };
        let range = match parts {
            Parts::GATE => 0..split,
            Parts::UP_DOWN if self.rules.whole => split..end,
            Parts::UP_DOWN => up..end,
            _ => 0..end,
        };
        [(!range.is_empty()).then_some(range), None]
    }

    /// Cuts a piece of the missing neurons of a cluster into page-aligned reads, joining neighbours.
    fn queue_spans(
        &mut self,
        wanted: &Wanted,
        piece: usize,
        range: Range<usize>,
        missing: &LiveMask,
    ) {
        let rule = JoinRule {
            stride: wanted.place.geometry.bundle_stride(),
            range,
            buffer: self.buffer_bytes,
            joins: self.rules.loading != Loading::Rows,
        };
        let mut open: Option<(JoinedRead, LiveMask)> = None;
        let span = |(read, neurons): (JoinedRead, LiveMask)| Span {
            flight: wanted.flight,
            piece,
            neurons,
            offset: wanted.place.file_offset + read.start as u64,
            len: read.end - read.start,
        };
        for neuron in missing.iter() {
            if let Some((read, neurons)) = &mut open
                && rule.join(read, neuron)
            {
                neurons.set(neuron);
                continue;
            }
            self.spans.extend(open.map(span));
            open = Some((rule.read(neuron), LiveMask::only(neuron)));
        }
        self.spans.extend(open.map(span));
    }

    /// Whether a read is due and a buffer is free.
    pub fn can_read(&self) -> bool {
        !self.spans.is_empty() && !self.buffers.is_empty() && !self.free_reads.is_empty()
    }

    /// Whether a read is due or in flight.
    pub fn is_reading(&self) -> bool {
        !self.spans.is_empty() || self.free_reads.len() < self.reads.len()
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
            flight: span.flight,
        })
    }

    /// Takes a completed read: its neurons' bytes are copied into their slots, and checked once a part is
    /// whole. `sums_of` gives the checksums of a neuron, by directory index of the cluster and neuron
    /// within it.
    ///
    /// # Errors
    /// The cluster whose neuron does not match its checksum. The flight still gets ready, so that the
    /// step can come to its end and report the fault.
    pub fn arrived(
        &mut self,
        id: usize,
        buffer: Slot,
        read_ok: bool,
        sums_of: impl Fn(usize, usize) -> Option<NeuronSums>,
    ) -> Result<Option<usize>, CorruptNeuron> {
        let Some(span) = self.reads[id].take() else {
            return Ok(None);
        };
        self.free_reads.push(id);
        let Some(wanted) = self.flights[span.flight].wanted else {
            return Ok(None);
        };
        let g = wanted.place.geometry;
        let range = self.pieces(&g, wanted.parts)[span.piece].clone();
        let range = range.unwrap_or_default();
        let mut fault = None;
        for neuron in span.neurons.iter() {
            let at = wanted.place.file_offset + (neuron * g.bundle_stride() + range.start) as u64;
            let at = (at - span.offset) as usize;
            let slot = self.flights[span.flight].slots[neuron] as usize;
            let to = slot * self.slot_bytes + range.start - self.origin(&g);
            if let Some(store) = &mut self.store {
                store[to..to + range.len()].copy_from_slice(&buffer[at..at + range.len()]);
            }
            let flight = &mut self.flights[span.flight];
            flight.missing[span.piece].clear(neuron);
            let whole = !flight.missing.iter().any(|m| m.has(neuron));
            let sums = sums_of(wanted.place.cluster, neuron);
            if !read_ok || whole && !self.complete(&g, wanted.parts, slot, range.end, sums) {
                self.forget(slot);
                fault = fault.or(read_ok.then_some(neuron));
            }
        }
        self.buffers.push(buffer);
        let ready = self.flights[span.flight].is_ready().then_some(span.flight);
        match fault {
            Some(neuron) => Err(CorruptNeuron {
                cluster: wanted.place.cluster,
                neuron,
                ready,
            }),
            None => Ok(ready),
        }
    }

    /// All reads of a neuron are here, the last up to byte `end` of its bundle: what has become whole is
    /// checked and noted; false if it is damaged.
    fn complete(
        &mut self,
        g: &FfnGeometry,
        parts: Parts,
        slot: usize,
        end: usize,
        sums: Option<NeuronSums>,
    ) -> bool {
        let mut fresh = parts;
        if end >= g.bundle_bytes() {
            // The first half of a small bundle may be all of it.
            fresh = fresh.with(Parts::UP_DOWN);
        }
        let at = slot * self.slot_bytes;
        let Some((store, sums)) = self.store.as_ref().zip(sums) else {
            return false;
        };
        let bytes = |range: Range<usize>| {
            let origin = if self.rules.whole { 0 } else { g.up_offset() };
            checksum(&store[at + range.start - origin..at + range.end - origin]) as u32
        };
        let gate_ok = !fresh.has(Parts::GATE) || bytes(0..g.gate_row()) == sums.gate;
        let up_down = g.up_offset()..g.bundle_bytes();
        let up_down_ok = !fresh.has(Parts::UP_DOWN) || bytes(up_down) == sums.up_down;
        self.parts[slot] = self.parts[slot].with(fresh);
        gate_ok && up_down_ok
    }

    /// Offset in a bundle of the start of a slot's content.
    fn origin(&self, g: &FfnGeometry) -> usize {
        if self.rules.whole { 0 } else { g.up_offset() }
    }

    /// Bytes `range` of the bundle of a wanted neuron of a ready flight.
    pub fn bytes(
        &self,
        g: &FfnGeometry,
        flight: usize,
        neuron: usize,
        range: Range<usize>,
    ) -> &[u8] {
        let at = self.flights[flight].slots[neuron] as usize * self.slot_bytes;
        let origin = self.origin(g);
        self.store.as_ref().map_or(&[], |store| {
            &store[at + range.start - origin..at + range.end - origin]
        })
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

    /// A step of one or more tokens is over.
    pub fn end_step(&mut self) {
        self.cache.end_token();
    }

    /// Returns the counts since the last call.
    pub fn take_counts(&mut self) -> CacheCounts {
        std::mem::take(&mut self.counts)
    }
}
