//! The expert cache of one core: cells that hold clusters of experts as a whole.
//!
//! A cell's bytes are a slot that is moved: while a cluster is read the I/O actor has it, while it is computed its
//! flight. In between it is here, and may be given to another cluster.

mod flights;
mod resize;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use forebay_queues::slab::Slot;

use crate::cache::{NeuronCache, PolicyKind};

pub use flights::ExpertFlights;

/// Where the bytes of a cell are.
#[derive(Debug)]
enum Cell {
    /// Here.
    Here(Slot),
    /// A read of them is due.
    Due(Slot),
    /// The I/O actor has them.
    Coming,
    /// A flight has them.
    Lent,
    /// They are a part of the idle memory.
    Idle,
}

/// Memory of an expert cache.
#[derive(Debug, Default)]
pub struct ExpertMemory {
    /// Cells.
    pub cells: Vec<Slot>,
    /// Clusters that may be cached.
    pub clusters: usize,
    /// Keys of clusters whose bytes are in the first cells already, best first.
    pub preloaded: Vec<u32>,
}

/// A read to be started.
#[derive(Debug)]
pub struct ExpertRead {
    /// Number of the cell, for [`ExpertStore::arrived`].
    pub cell: usize,
    /// Number of the cluster among the core's.
    pub key: usize,
    /// Whether it is only guessed that the cluster will be wanted.
    pub guessed: bool,
    /// Buffer to fill.
    pub slot: Slot,
}

/// What became of guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuessCounts {
    /// Clusters that were read because it was guessed that they would be wanted.
    pub read: u64,
    /// Those of them that were wanted before they were evicted.
    pub wanted: u64,
}

/// The expert cache of one core.
#[derive(Debug)]
pub struct ExpertStore {
    cache: NeuronCache,
    cells: Vec<Cell>,
    /// By cell, the key of its cluster, the flow id of the read that brought it if it was not used since, and whether
    /// that failed.
    keys: Vec<usize>,
    flows: Vec<u64>,
    failed: Vec<bool>,
    /// By cell, whether it is held for a flight that is still to come.
    ahead: Vec<bool>,
    /// By cell, whether it is being read although no flight wants it yet: then the read itself holds it.
    guessed: Vec<bool>,
    /// Clusters that may be wanted soon, the likeliest first.
    guesses: VecDeque<usize>,
    /// What became of guesses since that was last taken.
    pub guess_counts: GuessCounts,
    /// Cells with a read that is due.
    due: VecDeque<usize>,
    /// Clusters that are wanted and have no cell yet, first come first served.
    blocked: VecDeque<usize>,
    /// Reads in flight, and those of them that are only guesses.
    reading: usize,
    guessing: usize,
    cell_bytes: usize,
    /// Cells in use: those after them have no memory.
    used: usize,
    /// The memory of those, given back to the system.
    idle: Option<Slot>,
}

/// Reads of a core that may be in flight.
pub const MOST_READS: usize = 64;

impl ExpertStore {
    /// A cache with this memory, for at most `flights` clusters that are wanted at once.
    pub fn new(memory: ExpertMemory, policy: PolicyKind, flights: usize) -> Self {
        let n = memory.cells.len();
        let mut cache = NeuronCache::new(policy, memory.clusters, n);
        let mut keys = vec![0; n];
        for (place, &key) in memory.preloaded.iter().enumerate() {
            match cache.preload(key as usize) {
                Some(cell) if cell == place => keys[cell] = key as usize,
                Some(cell) => cache.disown(cell),
                None => break,
            }
        }
        Self {
            cache,
            cell_bytes: memory.cells.first().map_or(0, |cell| cell.len()),
            cells: memory.cells.into_iter().map(Cell::Here).collect(),
            keys,
            flows: vec![0; n],
            failed: vec![false; n],
            ahead: vec![false; n],
            guessed: vec![false; n],
            guesses: VecDeque::with_capacity(flights),
            guess_counts: GuessCounts::default(),
            due: VecDeque::with_capacity(n),
            blocked: VecDeque::with_capacity(flights),
            reading: 0,
            guessing: 0,
            used: n,
            idle: None,
        }
    }

    /// Flights will want the clusters `keys` in this step: those in memory are held, so that none of them makes room
    /// for another, and reads of the others are due, as far as there are cells; but not of those that are marked, which
    /// are left out unless they are in memory.
    pub fn want_ahead(&mut self, keys: impl Iterator<Item = (usize, bool)> + Clone) {
        for (key, _) in keys.clone() {
            if self.cache.slot_of(key).is_some() && self.acquire(key) {
                self.hold_ahead(key);
            }
        }
        for (key, is_minor) in keys {
            if is_minor || self.cache.slot_of(key).is_some() {
                continue;
            }
            if !self.blocked.is_empty() || !self.acquire(key) {
                break;
            }
            self.hold_ahead(key);
        }
    }

    /// The next layer may want the clusters `keys`, the likeliest first. They are read while nothing else is; those that
    /// were named before and have not been read yet are given up.
    pub fn guess(&mut self, keys: impl Iterator<Item = usize>) {
        self.guesses.clear();
        let room = self.guesses.capacity();
        let absent = keys.filter(|&key| self.cache.slot_of(key).is_none());
        self.guesses.extend(absent.take(room));
    }

    fn hold_ahead(&mut self, key: usize) {
        if let Some(cell) = self.cache.slot_of(key) {
            self.ahead[cell] = true;
        }
    }

    /// A flight wants the cluster `key`, and will take it once: a cell is found for it, and a read is due if it is not
    /// in memory. If all cells are in use, that happens when one is returned.
    pub fn want(&mut self, key: usize) {
        // One that was held ahead does not queue: what is before it may wait for its cell.
        if self.take_over(key) {
            return;
        }
        if !self.blocked.is_empty() || !self.acquire(key) {
            self.blocked.push_back(key);
        }
    }

    /// Whether a cell was held ahead for `key`; it is the caller's from now on.
    fn take_over(&mut self, key: usize) -> bool {
        let cell = self.cache.slot_of(key);
        cell.is_some_and(|cell| std::mem::take(&mut self.ahead[cell]))
    }

    /// Holds a cell for `key`; false if none is free.
    fn acquire(&mut self, key: usize) -> bool {
        let here = self.cache.slot_of(key);
        if let Some(cell) = here.filter(|&cell| std::mem::take(&mut self.guessed[cell])) {
            // The hold is the flight's from now on.
            debug_assert!(matches!(self.cells[cell], Cell::Coming));
            self.guessing -= 1;
            self.guess_counts.wanted += 1;
            return true;
        }
        if let Some(cell) = self.cache.hold(key) {
            // What a flight uses for the first time was read for a guess.
            self.guess_counts.wanted += u64::from(self.flows[cell] != 0);
            return true;
        }
        self.admit(key).is_some()
    }

    /// Finds a cell for the absent `key`, holds it, and makes a read due.
    fn admit(&mut self, key: usize) -> Option<usize> {
        let cell = self.cache.admit(key)?;
        (self.keys[cell], self.failed[cell]) = (key, false);
        let before = std::mem::replace(&mut self.cells[cell], Cell::Coming);
        debug_assert!(matches!(before, Cell::Here(_)), "cell {cell} was in use");
        if let Cell::Here(slot) = before {
            self.cells[cell] = Cell::Due(slot);
            self.due.push_back(cell);
        }
        Some(cell)
    }

    /// The next read to start: of a guess only if no other is due or in flight.
    pub fn next_read(&mut self) -> Option<ExpertRead> {
        if self.reading >= MOST_READS {
            return None;
        }
        if self.due.is_empty() && self.reading == self.guessing {
            self.admit_guess();
        }
        let cell = self.due.pop_front()?;
        match std::mem::replace(&mut self.cells[cell], Cell::Coming) {
            Cell::Due(slot) => {
                self.reading += 1;
                Some(ExpertRead {
                    cell,
                    key: self.keys[cell],
                    guessed: self.guessed[cell],
                    slot,
                })
            }
            other => {
                self.cells[cell] = other;
                None
            }
        }
    }

    /// Makes the read of the likeliest absent guess due.
    fn admit_guess(&mut self) {
        while let Some(key) = self.guesses.pop_front() {
            if self.cache.slot_of(key).is_some() {
                continue;
            }
            if let Some(cell) = self.admit(key) {
                self.guessed[cell] = true;
                self.guessing += 1;
                self.guess_counts.read += 1;
            }
            return;
        }
    }

    /// The read of a cell has started.
    pub fn started(&mut self, cell: usize, flow: u64) {
        self.flows[cell] = flow;
    }

    /// A read has finished; returns the key of its cluster, if a flight wants it. If it failed, that flight is told; a
    /// guess that failed is forgotten.
    pub fn arrived(&mut self, cell: usize, slot: Slot, is_ok: bool) -> Option<usize> {
        debug_assert!(matches!(self.cells[cell], Cell::Coming));
        self.cells[cell] = Cell::Here(slot);
        self.failed[cell] = !is_ok;
        self.reading -= 1;
        if !std::mem::take(&mut self.guessed[cell]) {
            return Some(self.keys[cell]);
        }
        self.guessing -= 1;
        if !is_ok {
            self.cache.disown(cell);
        }
        self.release(cell);
        None
    }

    /// Takes the bytes of a wanted cluster, with the flow id of the read that brought them (0 if they were in memory)
    /// and whether that went well; `None` if they are not here yet.
    pub fn take(&mut self, key: usize) -> Option<(Slot, u64, bool)> {
        let cell = self.cache.slot_of(key)?;
        match std::mem::replace(&mut self.cells[cell], Cell::Lent) {
            Cell::Here(slot) => Some((slot, self.flows[cell], !self.failed[cell])),
            other => {
                self.cells[cell] = other;
                None
            }
        }
    }

    /// The bytes of `key` are not those of its cluster: they must not be found again.
    pub fn forget(&mut self, key: usize) {
        if let Some(cell) = self.cache.slot_of(key) {
            self.cache.disown(cell);
        }
    }

    /// Returns the bytes of a cluster that is done.
    pub fn give_back(&mut self, key: usize, slot: Slot) {
        let is_of_key =
            |cell: &usize| self.keys[*cell] == key && matches!(self.cells[*cell], Cell::Lent);
        // One that was forgotten is not in the cache any more.
        let found = self.cache.slot_of(key).filter(is_of_key);
        let found = found.or_else(|| (0..self.cells.len()).find(is_of_key));
        let Some(cell) = found else {
            debug_assert!(false, "no cell of cluster {key} is lent");
            return;
        };
        self.cells[cell] = Cell::Here(slot);
        self.flows[cell] = 0;
        self.release(cell);
    }

    /// Ends a hold of a cell, and finds cells for those who wait for one.
    fn release(&mut self, cell: usize) {
        self.cache.release(cell);
        while let Some(&key) = self.blocked.front() {
            if !self.acquire(key) {
                break;
            }
            self.blocked.pop_front();
        }
    }

    /// Whether the cluster `key` is in memory, or on its way there.
    pub fn has(&self, key: usize) -> bool {
        self.cache.slot_of(key).is_some()
    }

    /// Whether a read that is more than a guess is due or in flight.
    pub fn is_reading(&self) -> bool {
        self.reading > self.guessing || !self.due.is_empty()
    }

    /// Number of cells whose bytes are neither read nor used.
    pub fn cells_here(&self) -> usize {
        let here = |cell: &&Cell| matches!(cell, Cell::Here(_) | Cell::Idle);
        self.cells.iter().filter(here).count()
    }

    /// Holds on cells that are in use.
    pub fn holds(&self) -> usize {
        // Those out of use are held once, so that nothing gets them.
        self.cache.holds() - (self.cells.len() - self.used)
    }

    /// Keys of the clusters in the cache, best first.
    pub fn contents(&self, out: &mut Vec<u32>) {
        self.cache.contents(out);
    }

    /// A step of one or more tokens is over.
    pub fn end_step(&mut self) {
        self.cache.end_token();
    }
}
