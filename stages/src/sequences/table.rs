//! One sequence's blocks in one pool.

use super::pool::Pool;
use crate::kernels::kv::BLOCK;

/// In a table, a block that no token sees any more and that the sequence has returned.
pub const GONE: u32 = u32::MAX;

/// Blocks by `position / 64`.
#[derive(Debug, Default)]
pub(super) struct Table {
    blocks: Vec<u32>,
    /// All before this one are [`GONE`].
    first: usize,
}

impl Table {
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The same blocks for another sequence.
    pub fn fork(&self, pool: &mut Pool) -> Self {
        for &block in &self.blocks[self.first..] {
            pool.share(block);
        }
        Self {
            blocks: self.blocks.clone(),
            first: self.first,
        }
    }

    /// Returns the blocks that tokens from position `len` on do not see.
    pub fn forget(&mut self, pool: &mut Pool, len: usize) {
        let first = pool.first_seen(len) / BLOCK;
        for block in self.blocks.iter_mut().take(first).skip(self.first) {
            pool.release(*block);
            *block = GONE;
        }
        self.first = self.first.max(first);
    }

    /// The block that is written next, from position `len`, if another sequence also uses it.
    fn shared(&self, pool: &Pool, len: usize) -> Option<u32> {
        let block = *self.blocks.get(len / BLOCK)?;
        pool.is_shared(block).then_some(block)
    }

    /// How many blocks must be taken so that positions `len..end` can be written.
    pub fn needed(&self, pool: &Pool, len: usize, end: usize) -> usize {
        let new = end.div_ceil(BLOCK) - self.blocks.len();
        new + usize::from(self.shared(pool, len).is_some())
    }

    /// Takes them. A block that another sequence also uses is replaced by a copy.
    pub fn extend(&mut self, pool: &mut Pool, len: usize, end: usize) -> Option<(u32, u32)> {
        let copy = self.shared(pool, len).map(|from| {
            let to = pool.take();
            pool.release(from);
            self.blocks[len / BLOCK] = to;
            (from, to)
        });
        self.blocks.resize_with(end.div_ceil(BLOCK), || pool.take());
        copy
    }

    /// Whether everything that the token at `position` sees before itself is still there.
    pub fn reaches(&self, pool: &Pool, position: usize) -> bool {
        pool.first_seen(position) >= self.first * BLOCK
    }

    /// Returns the blocks from position `len` on.
    pub fn cut(&mut self, pool: &mut Pool, len: usize) {
        let keep = len.div_ceil(BLOCK);
        for &block in self.blocks.iter().skip(keep.max(self.first)) {
            pool.release(block);
        }
        self.blocks.truncate(keep);
        self.first = self.first.min(keep);
    }
}
