//! Pinned clusters that are streamed while the budget is smaller, and pinned again when it grows.
//!
//! It happens between two steps. The stream window comes to rest, since the cycle of streamed clusters changes; what is
//! pinned again is read into its place, checked as everything that is streamed; then the core has another work list. A
//! core that streamed nothing takes a window out of the memory that is given up. Kernels, owners and sums are the same,
//! so no result depends on it.

use std::ops::Range;

use forebay_plans::giving_way::WINDOW;
use forebay_plans::residency::{Pipeline, Residency};
use forebay_queues::slab::Slot;
use forebay_stages::live_mask::LiveMask;
use forebay_traces::record::Reason;

use super::context::Flight;
use super::core_parts::max_phase;
use super::gio::GioActor;
use super::prefill::Route;
use super::program::{Item, Program, Source};
use super::sequencer::{Phase, Sequencer};
use super::shared::{Resident, Step};
use crate::contract::Turn;
use crate::io_link::ReadTag;
use crate::memory::GivingMemory;

/// A cluster's bytes in the store.
#[derive(Clone, Copy, Debug)]
struct Held {
    cluster: u32,
    start: usize,
    len: usize,
}

impl Held {
    fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// The clusters of one core that may give way.
#[derive(Debug, Default)]
pub(super) struct GivingClusters {
    /// In the order of their bytes: the last one gives way first.
    held: Vec<Held>,
    /// When each of them gives way: its place in the order of all cores' clusters.
    places: Vec<u32>,
    /// By cluster, to look one up.
    sorted: Vec<Held>,
    /// Memory of the first `pinned` clusters, and of the others, which has gone back to the system.
    store: Option<Slot>,
    idle: Option<Slot>,
    pinned: usize,
    /// How many will be pinned after the change under way, and how many of them have been read so far.
    target: usize,
    here: usize,
    /// Whether that change has got the window's buffers, and what has been read since it was last taken in.
    changing: bool,
    arrived: Vec<Slot>,
    /// Buffers of the core's own stream window, while they are not in use.
    window: Vec<Slot>,
    /// Most reads under way at a time.
    buffers: usize,
    /// Whether the stream window is taken from what was given up, and how many buffers of it are for now.
    borrows: bool,
    borrowed: usize,
}

impl GivingClusters {
    /// All of them are pinned. The core has `buffers` buffers of its own to stream with.
    pub fn new(memory: GivingMemory, buffers: usize) -> Self {
        let mut start = 0;
        let held = memory.clusters.iter().map(|c| {
            let held = Held {
                cluster: c.cluster,
                start,
                len: c.bytes,
            };
            start += c.bytes;
            held
        });
        let held: Vec<Held> = held.collect();
        let mut sorted = held.clone();
        sorted.sort_unstable_by_key(|h| h.cluster);
        Self {
            pinned: held.len(),
            target: held.len(),
            places: memory.clusters.iter().map(|c| c.place).collect(),
            held,
            sorted,
            store: memory.store,
            buffers: if buffers == 0 { WINDOW } else { buffers },
            borrows: buffers == 0,
            ..Self::default()
        }
    }

    /// Bytes of a pinned cluster, wherever it lies; empty where it has given way.
    pub fn bytes<'a>(&'a self, resident: &'a Resident, cluster: u32) -> &'a [u8] {
        let at = self.sorted.binary_search_by_key(&cluster, |h| h.cluster);
        match at.map(|at| self.sorted[at]) {
            Ok(held) => {
                let store = self.store.as_deref().unwrap_or_default();
                store.get(held.range()).unwrap_or_default()
            }
            Err(_) => resident.bytes(cluster as usize),
        }
    }

    /// Clusters that are streamed for now.
    pub fn streamed(&self) -> impl Iterator<Item = u32> + '_ {
        self.held[self.pinned..].iter().map(|h| h.cluster)
    }

    /// Buffers of the window that are taken from what was given up.
    pub fn borrowed(&self) -> usize {
        self.borrowed
    }

    /// Whether clusters give way or come back just now.
    pub fn is_changing(&self) -> bool {
        self.changing
    }

    /// How many are pinned while the first `given` of all cores' clusters give way.
    fn kept(&self, given: u32) -> usize {
        self.places.partition_point(|&place| place >= given)
    }

    /// Where the memory of the first `n` ends.
    fn end(&self, n: usize) -> usize {
        let last = self.held[..n].last();
        last.map_or(0, |held| held.range().end)
    }

    /// Takes the buffers back that the stream window had, and makes the memory whole.
    fn begin(&mut self, window: Vec<Slot>) {
        (self.here, self.changing) = (self.pinned, true);
        if !self.borrows {
            self.window = window;
            self.join(Vec::new());
        } else {
            self.borrowed = 0;
            self.join(window);
        }
    }

    /// What has been read is a part of the memory again.
    fn take_in(&mut self) {
        let arrived = std::mem::take(&mut self.arrived);
        self.join(arrived);
    }

    /// Puts `parts` of the memory between the store and the idle rest; all of it is one piece afterwards.
    fn join(&mut self, mut parts: Vec<Slot>) {
        parts.sort_unstable_by_key(|part| part.span().addr());
        if let Some(idle) = &mut self.idle {
            idle.take_up();
        }
        let mut whole = self.store.take();
        for part in parts.into_iter().chain(self.idle.take()) {
            whole = Some(match whole {
                None => part,
                Some(mut front) => {
                    assert!(front.join(part).is_ok(), "it was cut off there");
                    front
                }
            });
        }
        self.store = whole;
    }

    /// Cuts the memory behind byte `at`.
    fn cut(&mut self, at: usize) -> Option<Slot> {
        match at {
            0 => self.store.take(),
            _ => self.store.as_mut()?.split_off(at),
        }
    }

    /// The next clusters to read, each with its own place in memory; none once all are here.
    fn next_batch(&mut self) -> (Vec<u32>, Vec<Slot>) {
        let end = self.target.min(self.here + self.buffers);
        let batch: Vec<Held> = self.held[self.here.min(end)..end].to_vec();
        let mut slots = Vec::with_capacity(batch.len());
        if !batch.is_empty() {
            self.idle = self.cut(self.end(end));
            // From the last one back to the first.
            slots.extend(batch.iter().rev().filter_map(|held| self.cut(held.start)));
            slots.reverse();
        }
        self.here = end.max(self.here);
        (batch.iter().map(|held| held.cluster).collect(), slots)
    }

    /// The change is over, or has `failed`: what is not pinned goes back to the system. Returns the stream window.
    fn end_change(&mut self, failed: bool) -> Vec<Slot> {
        if !failed {
            self.pinned = self.target;
        }
        (self.target, self.changing) = (self.pinned, false);
        self.idle = self.cut(self.end(self.pinned));
        let largest = self.held[self.pinned..].iter().map(|held| held.len).max();
        if let (true, Some(bytes)) = (self.borrows, largest) {
            self.borrow(bytes);
        }
        if let Some(idle) = &mut self.idle {
            // Memory that the system does not take stays with the process: nothing uses it all the same.
            let _ = idle.give_back();
        }
        std::mem::take(&mut self.window)
    }

    /// Takes buffers of `bytes` each from the idle memory, which has room for one at least.
    fn borrow(&mut self, bytes: usize) {
        while self.window.len() < WINDOW {
            let Some(mut buffer) = self.idle.take_if(|idle| idle.len() >= bytes) else {
                break;
            };
            self.idle = buffer.split_off(bytes);
            self.window.push(buffer);
        }
        self.borrowed = self.window.len();
    }
}

impl Sequencer {
    /// A step without tokens: the caches get their new size, if nothing holds their slots, and clusters give way or
    /// come back.
    pub(super) fn begin_resize(&mut self, step: &Step) -> Turn {
        let store = self.actors.neurons.store();
        // A prompt that was cut short may still have a part of the cache's memory.
        self.routes.begin_step(step, store);
        store.resize(self.cache_slots);
        let given = step.resize.map_or(0, |sizes| sizes.given_clusters);
        let giving = &mut self.cx.giving;
        giving.target = giving.kept(given);
        if giving.target == giving.pinned {
            self.report();
            return Turn::Progress;
        }
        self.routes.now_mut().gio.close();
        self.phase = Phase::Resize;
        Turn::Progress
    }

    /// The window comes to rest, then clusters that are pinned again are read, then there is a new cycle.
    pub(super) fn resize_turn(&mut self) -> Turn {
        let gio = &mut self.routes.now_mut().gio;
        if let Some(flight) = gio.turn(&self.cx) {
            self.cx.giving.arrived.extend(flight.buffer);
            return Turn::Progress;
        }
        if gio.is_busy() {
            return Turn::Blocked(Reason::IoGate);
        }
        let giving = &mut self.cx.giving;
        if giving.changing {
            giving.take_in();
        } else {
            giving.begin(gio.window().free().drain(..).collect());
        }
        // After a fault what was read may be wrong, and everything stays as it was.
        let failed = giving.target > giving.pinned && self.cx.shared.faults.is_set();
        if !failed {
            let (clusters, slots) = giving.next_batch();
            if !clusters.is_empty() {
                *gio = loader(&clusters, slots);
                return Turn::Progress;
            }
        }
        let window = giving.end_change(failed);
        self.new_route(window);
        self.phase = Phase::Idle;
        self.report();
        Turn::Progress
    }

    /// The work list and the cycle of what is streamed now, over the buffers `window`.
    fn new_route(&mut self, window: Vec<Slot>) {
        let (shared, rank) = (&self.cx.shared, self.cx.rank);
        let mut plan = shared.plan.clone();
        for cluster in self.cx.giving.streamed() {
            plan.residency[cluster as usize] = Residency::Streamed;
        }
        let mut program = Program::new(&shared.bundle, &plan, rank);
        if shared.looks_ahead() {
            program.look_ahead();
        }
        let waiting = program.max_flights().max(max_phase(&program));
        let mut gio = GioActor::new(program.stream.clone(), window, waiting, stream_tag);
        if shared.neurons.pipeline != Pipeline::Cluster {
            gio.confine(&[]);
        }
        *self.routes.now_mut() = Route { program, gio };
    }
}

/// Reads each of `clusters` into the slot of the same number.
fn loader(clusters: &[u32], slots: Vec<Slot>) -> GioActor {
    let mut gio = GioActor::new(clusters.to_vec(), slots, clusters.len(), stream_tag);
    gio.window().set_wraps(false);
    for (number, &cluster) in clusters.iter().enumerate() {
        let ordinal = number as u32;
        gio.wait_for(Flight {
            item: Item {
                cluster,
                source: Source::Streamed { ordinal },
            },
            number,
            count: 0,
            live: LiveMask::default(),
            gated: false,
            buffer: None,
            flow: 0,
        });
    }
    gio
}

/// How the reads of the stream window are named.
pub(super) fn stream_tag(ordinal: usize) -> ReadTag {
    ReadTag::Stream { ordinal }
}
