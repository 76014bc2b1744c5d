//! What a device has to know to attend for a core's heads: their shape, and what it lacks of their keys and values.

use std::ops::Range;

use forebay_models::kv_type::KvType;
use forebay_models::network::{KvOrigin, Network};

use super::share::Share;
use super::{Attention, KvRoom};
use crate::kernels::kv::{BLOCK, KvCache, KvRows, PART, POSITIONS};
use crate::sequences::{SequenceId, Tables};

/// A core's heads of a layer, if a device can attend for them: over its own keys and values, which are half-precision
/// numbers, and with scores that are not capped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceHeads {
    /// The first query head of the layer that is the core's, and how many are.
    pub first_head: usize,
    /// See [`Self::first_head`].
    pub heads: usize,
    /// How many query heads share a key/value head.
    pub group: usize,
    /// The number of the first query head among those that share the first key/value head.
    pub first: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// How many positions a token sees at most.
    pub window: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Where a token's queries begin in its row of the layer's input, and how long that is.
    pub queries: (usize, usize),
}

impl DeviceHeads {
    /// Those of `layer` that are core `rank`'s of `threads`, with a cache of this `room`.
    pub fn of(
        network: &Network,
        room: &KvRoom,
        layer: usize,
        (rank, threads): (usize, usize),
    ) -> Option<Self> {
        let a = network.attention(layer)?;
        let before = (0..layer).filter(|&l| network.attention(l).is_some());
        let pool = room.pools[room.pool_of[before.count()]];
        let share = Share::new(a, rank, threads);
        let is_plain = a.latent.is_none() && a.softcap.is_none() && !share.q_heads.is_empty();
        let is_own = !matches!(a.kv, KvOrigin::Layer(_)) && room.kind == KvType::F16;
        (is_plain && is_own).then(|| Self {
            first_head: share.q_heads.start,
            heads: share.q_heads.len(),
            group: share.group,
            first: share.q_heads.start % share.group,
            kv_heads: share.kv_heads.len(),
            head_dim: a.head_dim,
            value_dim: a.value_dim(),
            blocks: pool.blocks,
            window: a.window.unwrap_or(usize::MAX),
            scale: a.scale,
            queries: (
                a.query_column() + share.q_heads.start * a.head_dim,
                a.in_dim(),
            ),
        })
    }
}

/// How many positions a copy elsewhere has of each block, from its first on; by layer in the cache. Nothing is copied
/// unless that was asked for.
#[derive(Debug, Default)]
pub(super) struct Copied(Vec<Vec<u8>>);

impl Copied {
    /// Position `offset` of a block is written.
    pub fn written(&mut self, layer: usize, block: u32, offset: usize) {
        let layer = self.0.get_mut(layer);
        if let Some(n) = layer.and_then(|blocks| blocks.get_mut(block as usize)) {
            *n = (*n).min(offset as u8);
        }
    }

    /// A block of all layers for which `is_in_pool` becomes another one.
    pub fn replaced(&mut self, block: u32, is_in_pool: impl Fn(usize) -> bool) {
        for layer in (0..self.0.len()).filter(|&layer| is_in_pool(layer)) {
            self.written(layer, block, 0);
        }
    }
}

/// A part of a head's keys and values that a copy lacks, whole groups of [`POSITIONS`].
#[derive(Clone, Copy, Debug)]
pub struct Missing<'a> {
    /// The core's key/value head.
    pub head: usize,
    /// The first position, counted through all blocks of the cache.
    pub position: usize,
    /// f16, `[positions / 16][head_dim][16]`.
    pub keys: &'a [u8],
    /// f16, `[positions][value_dim]` with padded rows.
    pub values: &'a [u8],
}

impl Attention {
    /// From now on, it keeps account of what a device has copied.
    pub fn expect_copies(&mut self, room: &KvRoom) {
        let layers = room.pool_of.iter();
        self.copied = Copied(
            layers
                .map(|&pool| vec![0; room.pools[pool].blocks])
                .collect(),
        );
    }

    /// Bytes that this takes, for memory budgets.
    pub fn copies_bytes(room: &KvRoom) -> usize {
        let layers = room.pool_of.iter().map(|&pool| room.pools[pool].blocks);
        layers.sum::<usize>() + room.pool_of.len() * size_of::<Vec<u8>>()
    }

    /// Where a sequence is in the cache of a layer; nothing without attention.
    pub fn blocks<'a>(&self, layer: usize, tables: &'a Tables, sequence: SequenceId) -> &'a [u32] {
        let of_layer = self.layers[layer].as_ref();
        of_layer.map_or(&[], |layer| tables.table(sequence, layer.pool))
    }

    /// The copy of a layer is lost.
    pub fn lose_copy(&mut self, layer: usize) {
        let cached = self.layers[layer].as_ref().map(|layer| layer.cached);
        let blocks = cached.and_then(|cached| self.copied.0.get_mut(cached));
        blocks.into_iter().for_each(|blocks| blocks.fill(0));
    }

    /// Calls `put` with what the copy of a layer lacks of `positions` of the sequence in `blocks`; then the copy has
    /// it. Of each head these are at most `most` positions; false if there is more.
    pub fn copy(
        &mut self,
        layer: usize,
        (blocks, positions): (&[u32], Range<usize>),
        most: usize,
        mut put: impl FnMut(Missing<'_>),
    ) -> bool {
        let Some(of_layer) = &self.layers[layer] else {
            return false;
        };
        let Some(copied) = self.copied.0.get_mut(of_layer.cached) else {
            return false;
        };
        let (mut left, mut run) = (most, 0..0);
        let mut is_whole = true;
        let cached = (of_layer.cached, of_layer.share.kv_heads.len());
        let seen = positions.start / BLOCK..positions.end.div_ceil(BLOCK);
        for (index, &block) in seen.clone().zip(&blocks[seen]) {
            let block = block as usize;
            let end = (positions.end - index * BLOCK).min(BLOCK);
            let from = usize::from(copied[block]) / POSITIONS * POSITIONS;
            if usize::from(copied[block]) >= end {
                continue;
            }
            let n = (end - from).next_multiple_of(POSITIONS);
            if n > left {
                is_whole = false;
                break;
            }
            left -= n;
            copied[block] = end as u8;
            let first = block * BLOCK + from;
            // What follows in the cache goes together.
            if first != run.end {
                put_run(
                    &self.cache,
                    cached,
                    std::mem::replace(&mut run, first..first),
                    &mut put,
                );
            }
            run.end = first + n;
        }
        put_run(&self.cache, cached, run, &mut put);
        is_whole
    }
}

/// Calls `put` with some positions of each of the `heads` of a layer.
fn put_run(
    cache: &KvCache,
    (layer, heads): (usize, usize),
    positions: Range<usize>,
    put: &mut impl FnMut(Missing<'_>),
) {
    let (first, n) = (positions.start, positions.len());
    for head in (0..heads).filter(|_| n > 0) {
        let kv = cache.head(layer, head);
        let KvRows::F16 { keys, values } = kv.rows else {
            return;
        };
        let width = kv.value_dim.next_multiple_of(PART);
        put(Missing {
            head,
            position: first,
            keys: bytemuck::cast_slice(&keys[first * kv.head_dim..][..n * kv.head_dim]),
            values: bytemuck::cast_slice(&values[first * width..][..n * width]),
        });
    }
}
