//! Blocks of one pool, and how many tables use each.

use crate::kernels::kv::BLOCK;

/// A pool's size and purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Number of blocks.
    pub blocks: usize,
    /// How many positions a token sees at most, including its own, in the layers of this pool; `None` means all.
    pub window: Option<usize>,
}

impl PoolShape {
    /// Blocks that one sequence of up to `context` positions needs, in steps of up to `max_tokens` of its tokens.
    pub fn blocks_of_sequence(window: Option<usize>, context: usize, max_tokens: usize) -> usize {
        let all = context.div_ceil(BLOCK);
        match window {
            // This many blocks have the positions that the tokens of a step see, wherever in a block they begin.
            Some(window) => {
                let seen = window.saturating_add(max_tokens);
                all.min(seen.div_ceil(BLOCK).saturating_add(1))
            }
            None => all,
        }
    }
}

/// A pool's blocks.
#[derive(Debug)]
pub(super) struct Pool {
    window: Option<usize>,
    /// How many tables use each block.
    users: Vec<u32>,
    /// How many blocks no table uses.
    free: usize,
    /// All before this one are in use. The lowest free block is taken first: memory that was never written is not
    /// committed yet, and consecutive blocks are read faster.
    lowest: usize,
}

impl Pool {
    pub fn new(shape: PoolShape) -> Self {
        Self {
            window: shape.window,
            users: vec![0; shape.blocks],
            free: shape.blocks,
            lowest: 0,
        }
    }

    /// How many blocks are free.
    pub fn free(&self) -> usize {
        self.free
    }

    /// First position that the token at `position` sees.
    pub fn first_seen(&self, position: usize) -> usize {
        match self.window {
            Some(window) => (position + 1).saturating_sub(window),
            None => 0,
        }
    }

    /// Takes a free block.
    ///
    /// # Panics
    /// There is none.
    pub fn take(&mut self) -> u32 {
        let free = self.users[self.lowest..].iter().position(|&n| n == 0);
        let Some(next) = free else {
            panic!("no block is free, of {}", self.users.len());
        };
        let block = self.lowest + next;
        self.lowest = block + 1;
        self.free -= 1;
        self.users[block] = 1;
        block as u32
    }

    /// One more table uses `block`.
    pub fn share(&mut self, block: u32) {
        self.users[block as usize] += 1;
    }

    /// Whether more than one table uses `block`.
    pub fn is_shared(&self, block: u32) -> bool {
        self.users[block as usize] > 1
    }

    /// One table fewer uses `block`.
    pub fn release(&mut self, block: u32) {
        let at = block as usize;
        self.users[at] -= 1;
        if self.users[at] == 0 {
            self.free += 1;
            self.lowest = self.lowest.min(at);
        }
    }

    #[cfg(test)]
    pub fn users(&self) -> &[u32] {
        &self.users
    }
}
