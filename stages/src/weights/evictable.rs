//! Pinned clusters that may be evicted while the engine runs: they are streamed while the budget is smaller, and pinned
//! again when it grows.
//!
//! They are adjacent, so that the memory of the last ones can go back to the system in one piece. A core that streams
//! nothing takes a stream window out of the memory that is evicted. Except for changes, their memory is published to
//! all cores ([`SharedEvictables`]).

use std::sync::Arc;

use forebay_plans::giving_way::WINDOW;
use forebay_queues::slab::Slot;

use super::views::{EvictableMemory, Held, SharedEvictables};

/// The clusters of one core that may be evicted.
#[derive(Debug)]
pub struct Evictable {
    /// In the order of their bytes: the last one is evicted first.
    held: Vec<Held>,
    /// When each of them is evicted: its index in the order of all cores' clusters.
    places: Vec<u32>,
    /// Where the memory of those that are pinned is published, and as whose.
    shared: Arc<SharedEvictables>,
    rank: usize,
    /// During a change, the memory of the first `pinned` clusters, and of the others, which has gone back to the
    /// system.
    store: Option<Slot>,
    idle: Option<Slot>,
    pinned: usize,
    /// How many will be pinned after the current change, and how many of them have been read so far.
    target: usize,
    here: usize,
    /// Whether that change has received the window's buffers, and what has been read and not yet taken in.
    changing: bool,
    arrived: Vec<Slot>,
    /// Buffers of the core's own stream window, while they are not in use.
    window: Vec<Slot>,
    /// Maximum number of reads in flight.
    buffers: usize,
    /// Whether the stream window is taken from evicted memory, and how many buffers currently are.
    borrows: bool,
    borrowed: usize,
}

impl Evictable {
    /// All of core `rank`'s are pinned, and published. It has `buffers` buffers of its own for streaming.
    pub fn new(
        memory: &EvictableMemory,
        (shared, rank): (Arc<SharedEvictables>, usize),
        buffers: usize,
    ) -> Self {
        let held: Vec<Held> = memory.held().collect();
        Self {
            pinned: held.len(),
            target: held.len(),
            places: memory.clusters.iter().map(|c| c.place).collect(),
            held,
            shared,
            rank,
            store: None,
            idle: None,
            here: 0,
            changing: false,
            arrived: Vec::new(),
            window: Vec::new(),
            buffers: if buffers == 0 { WINDOW } else { buffers },
            borrows: buffers == 0,
            borrowed: 0,
        }
    }

    /// Clusters that are currently streamed.
    pub fn streamed(&self) -> impl Iterator<Item = u32> + '_ {
        self.held[self.pinned..].iter().map(|h| h.cluster)
    }

    /// Number of the window's buffers that are taken from evicted memory.
    pub fn borrowed(&self) -> usize {
        self.borrowed
    }

    /// Whether clusters are being evicted or read back.
    pub fn is_changing(&self) -> bool {
        self.changing
    }

    /// From now on the first `evicted` of all cores' clusters are to be streamed; false if that changes nothing here.
    pub fn retarget(&mut self, evicted: u32) -> bool {
        self.target = self.places.partition_point(|&place| place >= evicted);
        self.target != self.pinned
    }

    /// Whether clusters are to be pinned again, so that what is read has to be right.
    pub fn grows(&self) -> bool {
        self.target > self.pinned
    }

    /// Takes a cluster that has been read into its place.
    pub fn take(&mut self, buffer: Slot) {
        self.arrived.push(buffer);
    }

    /// Continues a change: `window` returns the stream window's buffers when it begins. False if it cannot begin yet,
    /// since another core still looks at the memory.
    pub fn proceed(&mut self, window: impl FnOnce() -> Vec<Slot>) -> bool {
        if self.changing {
            self.take_in();
            return true;
        }
        let Ok(store) = self.shared.stores.retract(self.rank) else {
            return false;
        };
        self.store = store;
        self.begin(window());
        true
    }

    /// Where the memory of the first `n` ends.
    fn end(&self, n: usize) -> usize {
        let last = self.held[..n].last();
        last.map_or(0, |held| held.range.end)
    }

    /// Takes back the buffers of the stream window, and joins the memory again.
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

    /// Joins what has been read to the memory again.
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

    /// Splits the memory at byte `at`.
    fn cut(&mut self, at: usize) -> Option<Slot> {
        match at {
            0 => self.store.take(),
            _ => self.store.as_mut()?.split_off(at),
        }
    }

    /// The next clusters to read, each with its own place in memory; none once all have been read.
    pub fn next_batch(&mut self) -> (Vec<u32>, Vec<Slot>) {
        let end = self.target.min(self.here + self.buffers);
        let batch: Vec<Held> = self.held[self.here.min(end)..end].to_vec();
        let mut slots = Vec::with_capacity(batch.len());
        if !batch.is_empty() {
            self.idle = self.cut(self.end(end));
            // From the last one back to the first.
            slots.extend(
                batch
                    .iter()
                    .rev()
                    .filter_map(|held| self.cut(held.range.start)),
            );
            slots.reverse();
        }
        self.here = end.max(self.here);
        (batch.iter().map(|held| held.cluster).collect(), slots)
    }

    /// The change is over, or has `failed`: what is not pinned goes back to the system. Returns the stream window.
    pub fn end_change(&mut self, failed: bool) -> Vec<Slot> {
        if !failed {
            self.pinned = self.target;
        }
        (self.target, self.changing) = (self.pinned, false);
        self.idle = self.cut(self.end(self.pinned));
        let largest = self.held[self.pinned..]
            .iter()
            .map(|held| held.range.len())
            .max();
        if let (true, Some(bytes)) = (self.borrows, largest) {
            self.borrow(bytes);
        }
        if let Some(idle) = &mut self.idle {
            // Memory that the system does not take stays with the process, but nothing uses it.
            let _ = idle.give_back();
        }
        self.shared.stores.publish(self.rank, self.store.take());
        std::mem::take(&mut self.window)
    }

    /// Takes buffers of `bytes` each from the idle memory, which has room for at least one.
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
