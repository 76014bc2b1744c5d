//! Keys and values of past positions in blocks of 64 positions, laid out for vector units.
//!
//! Per layer and key/value head, for the blocks of the layer's pool:
//!
//! | | `f16` | `q8` |
//! |---|---|---|
//! | keys | `[blocks][64 / 16][head_dim][16]` | `[blocks][64 / 16][head_dim / 4][16][4]`, and a bit more for each |
//! | values | `[blocks][64][value_dim]` | `[blocks][64][value_dim]` |
//! | scales | | `[blocks][64]` of keys, `[blocks][64]` of values, f32 |
//!
//! Keys are in groups of 16 positions, so that the SIMD lanes of a vector are positions, and a score needs no sum over
//! lanes. The 8-bit dot product instructions add up groups of four bytes. A group or a row has zeros beyond these
//! widths; positions that the sequence did not write keep their old contents.
//!
//! Which block of a sequence is which block here is decided elsewhere: nothing here knows sequences.

mod aligned;
pub(crate) mod byte_rows;
mod half_rows;
mod shape;

pub use forebay_numbers::kv_type::KvType;
pub use shape::{BLOCK, KvLayer, KvShape, PART, POSITIONS};

use aligned::Aligned;
use shape::{Place, WORD};

/// KV cache of some key/value heads over all layers. The data of one head are contiguous, so that attention reads
/// consecutive blocks as a stream.
#[derive(Debug)]
pub struct KvCache {
    places: Vec<Place>, // [layers]
    rows: Rows,
    /// A key or value on its way into bytes, as long as the longest.
    row: Vec<f32>,
}

/// Of all layers, one after the other, in each `[heads][blocks]`.
#[derive(Debug)]
enum Rows {
    F16 {
        keys: Aligned<u16>,   // [64 / 16, head_dim, 16]
        values: Aligned<u16>, // [64, value_width]
    },
    Q8 {
        keys: Aligned<i8>,          // [64 / 16, key_width / 4, 16, 4]
        key_bits: Aligned<u64>,     // [64 / 16, key_width / 4] of [16, 4]
        values: Aligned<i8>,        // [64, value_width]
        key_scales: Aligned<f32>,   // [64]
        value_scales: Aligned<f32>, // [64]
    },
}

/// Keys and values of all blocks of one head.
#[derive(Clone, Copy, Debug)]
pub struct KvHead<'a> {
    /// Elements of a key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// The numbers.
    pub rows: KvRows<'a>,
}

/// The numbers of a [`KvHead`].
#[derive(Clone, Copy, Debug)]
pub enum KvRows<'a> {
    /// Bits of f16.
    F16 {
        /// `[blocks][64 / 16][head_dim][16]`
        keys: &'a [u16],
        /// `[blocks][64][value_dim]`, rows padded to a multiple of 16
        values: &'a [u16],
    },
    /// Codes with the value `code * scale`, of rows that were spread. A key's code is `2 * byte + bit`.
    Q8 {
        /// `[blocks][64 / 16][head_dim / 4][16][4]`
        keys: &'a [i8],
        /// `[blocks][64 / 16][head_dim / 4]` of `[16][4]` bits
        key_bits: &'a [u64],
        /// `[blocks][64][value_dim]`, rows padded to a multiple of 16
        values: &'a [i8],
        /// `[blocks][64]`
        key_scales: &'a [f32],
        /// `[blocks][64]`
        value_scales: &'a [f32],
    },
}

impl KvCache {
    /// An empty cache. Memory is committed as positions are written.
    ///
    /// # Panics
    /// The size overflows, the memory is not available, or a layer's pool does not exist.
    pub fn new(shape: &KvShape) -> Self {
        let (places, all) = shape.places();
        let rows = match shape.kind {
            KvType::F16 => Rows::F16 {
                keys: Aligned::<u16>::zeros(all.keys),
                values: Aligned::<u16>::zeros(all.values),
            },
            KvType::Q8 => Rows::Q8 {
                keys: Aligned::<i8>::zeros(all.keys),
                key_bits: Aligned::<u64>::zeros(all.key_bits()),
                values: Aligned::<i8>::zeros(all.values),
                key_scales: Aligned::<f32>::zeros(all.scales),
                value_scales: Aligned::<f32>::zeros(all.scales),
            },
        };
        let widest = shape.layers.iter().map(|l| l.head_dim.max(l.value_dim));
        Self {
            places,
            rows,
            row: vec![0.0; widest.max().unwrap_or(0)],
        }
    }

    /// Stores key and value, `[head_dim]` and `[value_dim]`, of one head as position `offset` of a block.
    ///
    /// # Panics
    /// There is no such layer, head, block or offset, or key or value has another length.
    pub fn store(
        &mut self,
        (layer, head): (usize, usize),
        (block, offset): (u32, usize),
        key: &[f32],
        value: &[f32],
    ) {
        let place = self.places[layer];
        let at = block as usize * BLOCK + offset;
        assert!(
            head < place.layer.heads
                && offset < BLOCK
                && at < place.positions
                && key.len() == place.layer.head_dim
                && value.len() == place.layer.value_dim,
            "position {offset} of block {block} of head {head} is not in a KV cache with {place:?}"
        );
        let at = place.first(head) + at;
        let lane = at % POSITIONS;
        let group = place.keys(at - lane, POSITIONS);
        let row = place.values(at, 1);
        match &mut self.rows {
            Rows::F16 { keys, values } => {
                half_rows::store_key(keys.get_mut(group), lane, key);
                half_rows::store_value(values.get_mut(row), value);
            }
            Rows::Q8 {
                keys,
                key_bits,
                values,
                key_scales,
                value_scales,
            } => {
                let scale = place.scales(at, 1);
                let bits = key_bits.get_mut(place.key_bits(at - lane, POSITIONS));
                let spare = &mut self.row[..key.len()];
                spare.copy_from_slice(key);
                let group = (keys.get_mut(group), bits);
                key_scales.get_mut(scale.clone())[0] = byte_rows::store_key(group, lane, spare);
                let spare = &mut self.row[..value.len()];
                spare.copy_from_slice(value);
                let values = values.get_mut(row);
                value_scales.get_mut(scale)[0] = byte_rows::store_value(values, spare);
            }
        }
    }

    /// Copies a block of all layers of a pool over another one.
    ///
    /// # Panics
    /// There is no such block.
    pub fn copy_block(&mut self, pool: usize, from: u32, to: u32) {
        let (from, to) = (from as usize * BLOCK, to as usize * BLOCK);
        for place in self.places.iter().filter(|p| p.layer.pool == pool) {
            assert!(
                from.max(to) < place.positions,
                "copy of positions {from} to {to} in a KV cache with {place:?}"
            );
            for head in 0..place.layer.heads {
                let (from, to) = (place.first(head) + from, place.first(head) + to);
                let keys_at = (place.keys(from, BLOCK), place.keys(to, BLOCK).start);
                let values_at = (place.values(from, BLOCK), place.values(to, BLOCK).start);
                match &mut self.rows {
                    Rows::F16 { keys, values } => {
                        keys.copy_within(keys_at.0, keys_at.1);
                        values.copy_within(values_at.0, values_at.1);
                    }
                    Rows::Q8 {
                        keys,
                        key_bits,
                        values,
                        key_scales,
                        value_scales,
                    } => {
                        keys.copy_within(keys_at.0, keys_at.1);
                        let bits_to = place.key_bits(to, 0).start;
                        key_bits.copy_within(place.key_bits(from, BLOCK), bits_to);
                        values.copy_within(values_at.0, values_at.1);
                        let (from, to) = (place.scales(from, BLOCK), place.scales(to, 0).start);
                        key_scales.copy_within(from.clone(), to);
                        value_scales.copy_within(from, to);
                    }
                }
            }
        }
    }

    /// Gives the memory of all but the first `blocks` of each pool back to the system. They lose what they hold.
    pub fn forget(&mut self, blocks: usize) {
        let from = blocks.saturating_mul(BLOCK);
        for place in &self.places {
            let n = place.positions.saturating_sub(from);
            for head in (0..place.layer.heads).filter(|_| n > 0) {
                let at = place.first(head) + from;
                match &mut self.rows {
                    Rows::F16 { keys, values } => {
                        keys.forget(place.keys(at, n));
                        values.forget(place.values(at, n));
                    }
                    Rows::Q8 {
                        keys,
                        key_bits,
                        values,
                        key_scales,
                        value_scales,
                    } => {
                        keys.forget(place.keys(at, n));
                        key_bits.forget(place.key_bits(at, n));
                        values.forget(place.values(at, n));
                        key_scales.forget(place.scales(at, n));
                        value_scales.forget(place.scales(at, n));
                    }
                }
            }
        }
    }

    /// All blocks of one head.
    ///
    /// # Panics
    /// There is no such layer or head.
    pub fn head(&self, layer: usize, head: usize) -> KvHead<'_> {
        let place = self.places[layer];
        assert!(head < place.layer.heads, "head {head} of {place:?}");
        let (at, n) = (place.first(head), place.positions);
        let (key, value) = (place.keys(at, n), place.values(at, n));
        let rows = match &self.rows {
            Rows::F16 { keys, values } => KvRows::F16 {
                keys: keys.get(key),
                values: values.get(value),
            },
            Rows::Q8 {
                keys,
                key_bits,
                values,
                key_scales,
                value_scales,
            } => KvRows::Q8 {
                keys: keys.get(key),
                key_bits: key_bits.get(place.key_bits(at, n)),
                values: values.get(value),
                key_scales: key_scales.get(place.scales(at, n)),
                value_scales: value_scales.get(place.scales(at, n)),
            },
        };
        KvHead {
            head_dim: place.layer.head_dim,
            value_dim: place.layer.value_dim,
            rows,
        }
    }
}
