//! Which blocks of the KV cache have the positions of which sequence, and which recurrent state is whose.
//!
//! A sequence is a list of blocks in every pool of the cache, one block per 64 positions. Sequences share blocks after
//! a fork, until one of them writes to a block. In a pool with a sliding window, blocks that no further token sees are
//! returned as the sequence grows, so a sequence uses a ring of about the window's size.
//!
//! One thread plans steps with this; the cores get [`Tables`] and the copies to make before a step.

#[cfg(test)]
pub(crate) mod growth;
mod pool;
mod state;
mod table;
mod tables;

pub use pool::PoolShape;
pub use state::STATES_OF_SEQUENCE;
pub use table::GONE;
pub use tables::Tables;

use pool::Pool;
use state::State;
use table::Table;

/// An open sequence: a small number, which is used again after [`Sequences::free`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u32);

impl SequenceId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a token of a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenPlace {
    /// Its sequence.
    pub sequence: SequenceId,
    /// How many tokens of the sequence come before it.
    pub position: u32,
}

/// A block to be copied, in all layers of its pool, before anything is written in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// The pool.
    pub pool: usize,
    /// The block that is copied.
    pub from: u32,
    /// The block that it overwrites.
    pub to: u32,
}

/// A recurrent state that is made, in all layers, before anything is computed in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCopy {
    /// The state that is copied; zeros if there is none.
    pub from: Option<u32>,
    /// The state that it overwrites.
    pub to: u32,
}

/// A recurrent state that is kept while a step is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// In each layer, the sequence's state is copied before this token changes it.
    pub before: TokenPlace,
    /// The state that it overwrites.
    pub state: u32,
}

/// What the cores copy for a step. All blocks and states are copied before anything is written, each kind in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Of the KV cache.
    pub blocks: Vec<BlockCopy>,
    /// States with which sequences begin.
    pub states: Vec<StateCopy>,
    /// States that are kept on the way.
    pub snapshots: Vec<Snapshot>,
}

impl Copies {
    /// Nothing is copied.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.states.clear();
        self.snapshots.clear();
    }
}

/// What sequences take as they grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// Blocks of a pool of the KV cache.
    #[error("blocks of pool {0}")]
    Blocks(usize),
    /// Recurrent states.
    #[error("recurrent states")]
    States,
}

/// A sequence cannot grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no room for the sequence: it needs {needed} more {lack}, {free} are free")]
pub struct Full {
    /// What there is too little of.
    pub lack: Lack,
    /// How many of these the sequence needs.
    pub needed: usize,
    /// How many are free.
    pub free: usize,
}

/// Block tables of all sequences.
#[derive(Debug)]
pub struct Sequences {
    pools: Vec<Pool>,
    /// Recurrent states; `None` without recurrent layers.
    states: Option<Pool>,
    sequences: Vec<Option<Sequence>>,
}

#[derive(Debug)]
struct Sequence {
    len: usize,
    tables: Vec<Table>, // [pools]
    state: State,
}

impl Sequences {
    /// No sequences, and all blocks free. `states` is the number of recurrent states, 0 if no layer has one.
    pub fn new(pools: &[PoolShape], states: usize) -> Self {
        Self {
            pools: pools.iter().copied().map(Pool::new).collect(),
            states: (states > 0).then(|| state::pool(states)),
            sequences: Vec::new(),
        }
    }

    /// Number of pools.
    pub fn n_pools(&self) -> usize {
        self.pools.len()
    }

    /// How many blocks of a pool are free.
    pub fn free_blocks(&self, pool: usize) -> usize {
        self.pools[pool].free()
    }

    /// An empty sequence.
    pub fn open(&mut self) -> SequenceId {
        let tables = self.pools.iter().map(|_| Table::default()).collect();
        self.add(Sequence {
            len: 0,
            tables,
            state: State::default(),
        })
    }

    /// A sequence with the same tokens, which takes no memory until one of the two grows.
    ///
    /// # Panics
    /// The sequence is not open.
    pub fn fork(&mut self, id: SequenceId) -> SequenceId {
        let (pools, states, sequence) = self.parts(id);
        let tables = sequence.tables.iter().zip(pools);
        let fork = Sequence {
            len: sequence.len,
            tables: tables.map(|(table, pool)| table.fork(pool)).collect(),
            state: match states {
                Some(states) => sequence.state.fork(states),
                None => State::default(),
            },
        };
        self.add(fork)
    }

    /// Makes room for `n` more tokens, once per step for each sequence. The cores must make the copies that are added
    /// to `copies`, in their order, before the next step.
    ///
    /// # Errors
    /// A pool has too few free blocks; then the sequence and the copies stay as they were.
    ///
    /// # Panics
    /// The sequence is not open.
    pub fn extend(&mut self, id: SequenceId, n: usize, copies: &mut Copies) -> Result<(), Full> {
        let (pools, states, sequence) = self.parts(id);
        if n == 0 {
            return Ok(());
        }
        let (len, end) = (sequence.len, sequence.len + n);
        let tables = &mut sequence.tables;
        for (i, (table, pool)) in tables.iter_mut().zip(&mut *pools).enumerate() {
            table.forget(pool, len);
            let (needed, free) = (table.needed(pool, len, end), pool.free());
            if needed > free {
                let lack = Lack::Blocks(i);
                return Err(Full { lack, needed, free });
            }
        }
        if let Some(states) = &states {
            let (needed, free) = (sequence.state.needed(states), states.free());
            if needed > free {
                let lack = Lack::States;
                return Err(Full { lack, needed, free });
            }
        }
        for (i, (table, pool)) in tables.iter_mut().zip(pools).enumerate() {
            let copy = table.extend(pool, len, end);
            let copy = copy.map(|(from, to)| BlockCopy { pool: i, from, to });
            copies.blocks.extend(copy);
        }
        if let Some(states) = states {
            let place = TokenPlace {
                sequence: id,
                position: len as u32,
            };
            sequence.state.extend(states, place, end, copies);
        }
        sequence.len = end;
        Ok(())
    }

    /// Wants a snapshot of the recurrent state at `position` in place of the present one: when an [`Self::extend`]
    /// passes it, and until the sequence is cut.
    ///
    /// # Panics
    /// The sequence is not open.
    pub fn want_snapshot(&mut self, id: SequenceId, position: usize) {
        self.parts(id).2.state.want(position);
    }

    /// Drops the tokens from `position` on and returns how many are left: `position`, or all if there are fewer; but
    /// none if a sliding window has dropped what the next token would see. Tokens of the last [`Self::extend`] can
    /// always be dropped. With recurrent states, the position of the snapshot is left if it is not beyond `position`,
    /// else nothing.
    ///
    /// # Panics
    /// The sequence is not open.
    pub fn cut(&mut self, id: SequenceId, position: usize) -> usize {
        let (pools, states, sequence) = self.parts(id);
        if position >= sequence.len {
            return sequence.len;
        }
        let reaches = |position| {
            let mut tables = sequence.tables.iter().zip(&*pools);
            tables.all(|(table, pool)| table.reaches(pool, position))
        };
        let len = match &states {
            Some(_) => sequence.state.last(position, reaches),
            None if reaches(position) => position,
            None => 0,
        };
        for (table, pool) in sequence.tables.iter_mut().zip(pools) {
            table.cut(pool, len);
        }
        if let Some(states) = states {
            sequence.state.cut(states, len);
        }
        sequence.len = len;
        len
    }

    /// Closes a sequence.
    ///
    /// # Panics
    /// The sequence is not open.
    pub fn free(&mut self, id: SequenceId) {
        let (pools, states, sequence) = self.parts(id);
        for (table, pool) in sequence.tables.iter_mut().zip(pools) {
            table.cut(pool, 0);
        }
        if let Some(states) = states {
            sequence.state.cut(states, 0);
        }
        self.sequences[id.index()] = None;
    }

    /// Number of tokens in a sequence.
    ///
    /// # Panics
    /// The sequence is not open.
    pub fn len(&self, id: SequenceId) -> usize {
        self.sequence(id).len
    }

    /// A sequence's blocks in a pool by `position / 64`; [`GONE`] for those that no further token
    /// sees.
    ///
    /// # Panics
    /// The sequence is not open, or there is no such pool.
    pub fn table(&self, id: SequenceId, pool: usize) -> &[u32] {
        self.sequence(id).tables[pool].blocks()
    }

    /// A sequence's recurrent state; `None` if it has no tokens, or without recurrent layers.
    ///
    /// # Panics
    /// The sequence is not open.
    pub fn state(&self, id: SequenceId) -> Option<u32> {
        self.sequence(id).state.live()
    }

    fn add(&mut self, sequence: Sequence) -> SequenceId {
        let unused = self.sequences.iter().position(Option::is_none);
        let at = unused.unwrap_or(self.sequences.len());
        match self.sequences.get_mut(at) {
            Some(slot) => *slot = Some(sequence),
            None => self.sequences.push(Some(sequence)),
        }
        SequenceId(at as u32)
    }

    fn sequence(&self, id: SequenceId) -> &Sequence {
        match self.sequences.get(id.index()) {
            Some(Some(sequence)) => sequence,
            _ => panic!("{id:?} is not open"),
        }
    }

    fn parts(&mut self, id: SequenceId) -> (&mut [Pool], Option<&mut Pool>, &mut Sequence) {
        match self.sequences.get_mut(id.index()) {
            Some(Some(sequence)) => (&mut self.pools, self.states.as_mut(), sequence),
            _ => panic!("{id:?} is not open"),
        }
    }
}

#[cfg(test)]
mod tests;
