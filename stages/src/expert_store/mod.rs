//! The expert cache of one core: cells that hold clusters of experts, as a whole or in part.
//!
//! A cell's bytes are a slot that is moved: while a cluster is read the I/O actor has it, while it is computed its
//! flight. In between it is here, and may be given to another cluster.
//!
//! Where neurons are stored one by one, the Gates of a cluster may be read alone, and then the pairs of Up and Down of
//! those neurons that are alive: the cell keeps what was read, and the next token that wants more of it adds to that.

mod guesses;
mod parts;
mod resize;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;

use forebay_queues::slab::Slot;

use crate::cache::{NeuronCache, PolicyKind};
use crate::live_mask::LiveMask;

pub use guesses::GuessCounts;
use guesses::Reach;
pub(crate) use parts::check;
pub use parts::{Held, Request, Spans};

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
    /// Bytes of the cluster to read, which have the same place in the buffer.
    pub range: Range<usize>,
    /// Whether it is only guessed that the cluster will be wanted.
    pub guessed: bool,
    /// Buffer to fill.
    pub slot: Slot,
}

/// The bytes of a cluster that a flight has taken.
#[derive(Debug)]
pub struct Taken {
    /// The cell's.
    pub slot: Slot,
    /// Flow id of the last read that brought some of them since they were last used; 0 if there was none.
    pub flow: u64,
    /// Whether these reads went well.
    pub is_ok: bool,
    /// What was read since, and is to be checked.
    pub spans: Spans,
    /// What was there before.
    pub held: Held,
    /// Whether it was read for a guess, maybe long ago.
    pub guessed: bool,
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
    /// By cell, what has been checked of its cluster, and what is read of it.
    held: Vec<Held>,
    spans: Vec<Spans>,
    /// By cell, whether it is held for a flight that is still to come.
    ahead: Vec<bool>,
    /// By cell, whether it is being read although no flight wants it yet: then the read itself holds it.
    guessed: Vec<bool>,
    /// By cell, whether what was read since it was last used began as a guess, whether a flight wants it by now or not.
    began_as_guess: Vec<bool>,
    /// By cell, whether it has a token's guess that nobody has wanted yet. What a prompt reads ahead is not counted: it
    /// is hardly a guess.
    counted: Vec<bool>,
    /// Clusters that may be wanted soon, the likeliest first.
    guesses: VecDeque<Request>,
    /// Whether what is guessed is a prompt's: it is held until its layer is over, as nearly all of it will be wanted.
    keeps: bool,
    /// Cells that are held for this and the next layer of a prompt, and which layer of its that was.
    kept: Vec<(usize, u32)>,
    layer: u32,
    reach: Reach,
    /// What became of guesses since that was last taken.
    pub guess_counts: GuessCounts,
    /// Cells with a read that is due.
    due: VecDeque<usize>,
    /// Clusters that are wanted and have no cell yet, first come first served.
    blocked: VecDeque<Request>,
    /// Reads in flight, and those of them that are only guesses.
    reading: usize,
    guessing: usize,
    cell_bytes: usize,
    /// Cells in use: those after them have no memory.
    used: usize,
    /// The memory of those, given back to the system.
    idle: Option<Slot>,
    /// Whether a token that is generated reads Gates first, where that is possible.
    pub gates_first: bool,
}

/// Reads of a core that may be in flight.
pub const MOST_READS: usize = 64;

impl ExpertStore {
    /// A cache with this memory, for at most `flights` clusters that are wanted at once, and `in_layer` of a layer:
    /// those of two are named ahead.
    pub fn new(
        memory: ExpertMemory,
        policy: PolicyKind,
        (flights, in_layer): (usize, usize),
    ) -> Self {
        let n = memory.cells.len();
        let mut cache = NeuronCache::new(policy, memory.clusters, n);
        let mut keys = vec![0; n];
        let mut held = vec![Held::Nothing; n];
        for (place, &key) in memory.preloaded.iter().enumerate() {
            match cache.preload(key as usize) {
                Some(cell) if cell == place => {
                    (keys[cell], held[cell]) = (key as usize, Held::All);
                }
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
            held,
            spans: vec![Spans::default(); n],
            ahead: vec![false; n],
            guessed: vec![false; n],
            began_as_guess: vec![false; n],
            counted: vec![false; n],
            guesses: VecDeque::with_capacity(2 * in_layer),
            keeps: false,
            kept: Vec::with_capacity(n / guesses::KEPT_SHARE),
            layer: 0,
            reach: Reach::default(),
            guess_counts: GuessCounts::default(),
            due: VecDeque::with_capacity(n),
            blocked: VecDeque::with_capacity(flights),
            reading: 0,
            guessing: 0,
            used: n,
            idle: None,
            gates_first: false,
        }
    }

    /// Flights will want these clusters in this step: those in memory are held, so that none of them makes room
    /// for another, and reads of the others are due, as far as there are cells; but not of those that are marked, which
    /// are left out unless they are in memory.
    pub fn want_ahead(&mut self, wanted: impl Iterator<Item = (Request, bool)> + Clone) {
        for (request, _) in wanted.clone() {
            if self.has(request.key) && (self.take_over(request) || self.acquire(request)) {
                self.hold_ahead(request.key);
            }
        }
        for (request, is_minor) in wanted {
            if is_minor || self.has(request.key) {
                continue;
            }
            if !self.blocked.is_empty() || !self.acquire(request) {
                break;
            }
            self.hold_ahead(request.key);
        }
    }

    fn hold_ahead(&mut self, key: usize) {
        if let Some(cell) = self.cache.slot_of(key) {
            self.ahead[cell] = true;
        }
    }

    /// A flight wants a cluster, and will take it once: a cell is found for it, and a read is due if it is not in
    /// memory. If all cells are in use, that happens when one is returned.
    pub fn want(&mut self, request: Request) {
        self.unname(request.key);
        // One that was held ahead does not queue: what is before it may wait for its cell. Nor does one that is on its
        // way as a guess: it would be taken when it has come, without a hold.
        if self.take_over(request) || self.has(request.key) && self.acquire(request) {
            return;
        }
        if !self.blocked.is_empty() || !self.acquire(request) {
            self.blocked.push_back(request);
        }
    }

    /// Whether a cell was held ahead for this cluster; it is the caller's from now on. What was held may be a part, as
    /// a token's guess that a prompt keeps is.
    fn take_over(&mut self, request: Request) -> bool {
        let cell = self.cache.slot_of(request.key);
        let Some(cell) = cell.filter(|&cell| std::mem::take(&mut self.ahead[cell])) else {
            return false;
        };
        if let Some(i) = self.kept.iter().position(|kept| kept.0 == cell) {
            self.kept.swap_remove(i);
        }
        self.count_wanted(cell);
        self.complete(cell, request);
        true
    }

    /// Holds a cell for a cluster; false if none is free.
    fn acquire(&mut self, request: Request) -> bool {
        let here = self.cache.slot_of(request.key);
        if let Some(cell) = here.filter(|&cell| std::mem::take(&mut self.guessed[cell])) {
            // The hold is the flight's from now on.
            debug_assert!(matches!(self.cells[cell], Cell::Coming));
            self.guessing -= 1;
            self.count_wanted(cell);
            self.complete(cell, request);
            return true;
        }
        if let Some(cell) = self.cache.hold(request.key) {
            self.count_wanted(cell);
            self.complete(cell, request);
            return true;
        }
        self.admit(request).is_some()
    }

    /// If all of a cluster is wanted of which a part is here or comes: makes the read of the rest due.
    fn complete(&mut self, cell: usize, request: Request) {
        let is_all = matches!(self.held[cell], Held::All) || self.spans[cell].reach(request.len);
        if !request.whole || is_all {
            return;
        }
        self.spans[cell].push(request.gates, request.len);
        match std::mem::replace(&mut self.cells[cell], Cell::Coming) {
            Cell::Here(slot) => self.make_due(cell, slot),
            other => self.cells[cell] = other,
        }
    }

    fn make_due(&mut self, cell: usize, slot: Slot) {
        self.cells[cell] = Cell::Due(slot);
        self.due.push_back(cell);
    }

    /// Finds a cell for an absent cluster, holds it, and makes a read due.
    fn admit(&mut self, request: Request) -> Option<usize> {
        let cell = self.cache.admit(request.key)?;
        (self.keys[cell], self.failed[cell]) = (request.key, false);
        (self.began_as_guess[cell], self.counted[cell]) = (false, false);
        let end = if request.whole {
            request.len
        } else {
            request.gates
        };
        (self.held[cell], self.spans[cell]) = (Held::Nothing, Spans::one(0, end));
        let before = std::mem::replace(&mut self.cells[cell], Cell::Coming);
        debug_assert!(matches!(before, Cell::Here(_)), "cell {cell} was in use");
        if let Cell::Here(slot) = before {
            self.make_due(cell, slot);
        }
        Some(cell)
    }

    /// The next read to start: of a guess only if no other is due, and few are in flight.
    pub fn next_read(&mut self) -> Option<ExpertRead> {
        if self.reading >= MOST_READS {
            return None;
        }
        if self.due.is_empty() && self.reading - self.guessing <= guesses::BESIDE {
            self.admit_guess();
        }
        let cell = self.due.pop_front()?;
        let range = self.spans[cell].next();
        match (
            std::mem::replace(&mut self.cells[cell], Cell::Coming),
            range,
        ) {
            (Cell::Due(slot), Some((start, end))) => {
                self.reading += 1;
                Some(ExpertRead {
                    cell,
                    key: self.keys[cell],
                    range: start..end,
                    guessed: self.guessed[cell],
                    slot,
                })
            }
            (other, _) => {
                debug_assert!(false, "cell {cell} is not due");
                self.cells[cell] = other;
                None
            }
        }
    }

    /// The read of a cell has started.
    pub fn started(&mut self, cell: usize, flow: u64) {
        self.flows[cell] = flow;
    }

    /// A read has finished; returns the key of its cluster, if a flight wants it. The next part of the cluster is due,
    /// if there is another. If the read failed, the flight is told. A guess that failed is forgotten, or read again if
    /// a flight wants it by now: it may be an earlier generation's, whose fault it was.
    pub fn arrived(&mut self, cell: usize, slot: Slot, is_ok: bool) -> Option<usize> {
        debug_assert!(matches!(self.cells[cell], Cell::Coming));
        self.reading -= 1;
        if !is_ok && !self.guessed[cell] && std::mem::take(&mut self.began_as_guess[cell]) {
            self.make_due(cell, slot);
            return None;
        }
        self.failed[cell] = !is_ok;
        self.spans[cell].advance();
        match is_ok && self.spans[cell].next().is_some() {
            true => self.make_due(cell, slot),
            false => self.cells[cell] = Cell::Here(slot),
        }
        if !std::mem::take(&mut self.guessed[cell]) {
            return Some(self.keys[cell]);
        }
        self.guessing -= 1;
        if is_ok && self.keeps && self.kept.len() < self.most_kept() {
            self.ahead[cell] = true;
            self.kept.push((cell, self.layer));
            return None;
        }
        if !is_ok {
            self.cache.disown(cell);
        }
        self.release(cell);
        None
    }

    /// Takes the bytes of a wanted cluster; `None` if they are not here yet.
    pub fn take(&mut self, key: usize) -> Option<Taken> {
        let cell = self.cache.slot_of(key)?;
        match std::mem::replace(&mut self.cells[cell], Cell::Lent) {
            Cell::Here(slot) => Some(Taken {
                slot,
                flow: self.flows[cell],
                is_ok: !self.failed[cell],
                spans: std::mem::take(&mut self.spans[cell]),
                held: self.held[cell],
                guessed: std::mem::take(&mut self.began_as_guess[cell]),
            }),
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

    /// What a flight has taken of `key` was checked, and this is in its cell now.
    pub fn checked(&mut self, key: usize, held: Held) {
        if let Some(cell) = self.cache.slot_of(key) {
            self.held[cell] = held;
        }
    }

    /// Those of the neurons `live` of `key`, which a flight has, whose Up and Down are not in memory; none if the
    /// cluster was forgotten, which is read no further.
    pub fn lacks(&self, key: usize, live: &LiveMask) -> LiveMask {
        let is_lent = |cell: &usize| matches!(self.cells[*cell], Cell::Lent);
        let cell = self.cache.slot_of(key).filter(is_lent);
        cell.map_or(LiveMask::NONE, |cell| self.held[cell].lacks(live))
    }

    /// A flight gives the bytes of `key` back so that more is read into them, and will take them again.
    pub fn read_more(&mut self, key: usize, slot: Slot, spans: Spans) {
        if let Some(cell) = self.lent(key) {
            self.spans[cell] = spans;
            self.make_due(cell, slot);
        }
    }

    /// The cell of `key`, which a flight has.
    fn lent(&self, key: usize) -> Option<usize> {
        let is_of_key =
            |cell: &usize| self.keys[*cell] == key && matches!(self.cells[*cell], Cell::Lent);
        // One that was forgotten is not in the cache any more.
        let found = self.cache.slot_of(key).filter(is_of_key);
        let found = found.or_else(|| (0..self.cells.len()).find(is_of_key));
        debug_assert!(found.is_some(), "no cell of cluster {key} is lent");
        found
    }

    /// Returns the bytes of a cluster that is done.
    pub fn give_back(&mut self, key: usize, slot: Slot) {
        let Some(cell) = self.lent(key) else {
            return;
        };
        self.cells[cell] = Cell::Here(slot);
        self.flows[cell] = 0;
        self.release(cell);
    }

    /// Ends a hold of a cell, and finds cells for those who wait for one.
    fn release(&mut self, cell: usize) {
        self.cache.release(cell);
        while let Some(&request) = self.blocked.front() {
            if !self.acquire(request) {
                break;
            }
            self.blocked.pop_front();
        }
    }

    /// Whether the cluster `key` is in memory, in part at least, or on its way there.
    pub fn has(&self, key: usize) -> bool {
        self.cache.slot_of(key).is_some()
    }

    /// Whether a read that is more than a guess is due or in flight.
    pub fn is_reading(&self) -> bool {
        self.reading > self.guessing || !self.due.is_empty()
    }

    /// Whether any read is in flight, of a guess or not.
    pub fn has_reads(&self) -> bool {
        self.reading > 0
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

    /// A step of one or more tokens is over. What was named for it and is not on its way yet is not read any more.
    pub fn end_step(&mut self) {
        self.keeps = false;
        self.guesses.clear();
        self.release_kept(|_| true);
        self.cache.end_token();
    }
}
