//! Keys and values of past positions, laid out for vector units.
//!
//! Per layer and key/value head:
//!
//! | | `f16` | `q8` |
//! |---|---|---|
//! | keys | `[positions / 16][head_dim][16]` | `[positions / 16][head_dim / 4][16][4]` |
//! | values | `[positions][head_dim]` | `[positions][head_dim]` |
//! | scales | | `[positions]` of keys, `[positions]` of values, f32 |
//!
//! Keys stand in blocks of 16 positions, so that the lanes of a vector are positions, and a score is no sum
//! over lanes. Groups of four bytes are what the 8-bit dot product instructions add up. What a block or a
//! row holds beyond `head_dim`, and positions never written, are zeros.

mod aligned;
mod byte_rows;
mod half_rows;
mod kv_type;

pub use kv_type::{KvType, UnknownKvType};

use aligned::Aligned;

/// Positions of a block of keys.
pub const POSITIONS: usize = 16;
/// Key elements of one position that stand together in `q8`.
pub const WORD: usize = 4;
/// Values are padded to whole parts of this many elements.
pub const PART: usize = 16;

/// What a cache holds.
#[derive(Clone, Copy, Debug)]
pub struct KvShape {
    /// Number format.
    pub kind: KvType,
    /// Layers.
    pub n_layers: usize,
    /// Key/value heads of one layer.
    pub heads: usize,
    /// Positions.
    pub context: usize,
    /// Elements of a key and of a value.
    pub head_dim: usize,
}

impl KvShape {
    /// Positions of one head, a whole number of blocks.
    fn positions(&self) -> usize {
        self.context.div_ceil(POSITIONS).saturating_mul(POSITIONS)
    }

    /// Elements of a position's key.
    fn key_width(&self) -> usize {
        match self.kind {
            KvType::F16 => self.head_dim,
            KvType::Q8 => self.head_dim.div_ceil(WORD).saturating_mul(WORD),
        }
    }

    /// Elements of a position's value.
    fn value_width(&self) -> usize {
        self.head_dim.div_ceil(PART).saturating_mul(PART)
    }

    /// `width` elements of every position of all heads of all layers.
    fn elements(&self, width: usize) -> usize {
        self.n_layers
            .saturating_mul(self.heads)
            .saturating_mul(self.positions())
            .saturating_mul(width)
    }
}

/// KV cache of some key/value heads over all layers. What belongs to one head is contiguous, so that
/// attention reads it as a stream.
#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    F16 {
        keys: Aligned<u16>,   // [n_layers, heads, positions / 16, head_dim, 16]
        values: Aligned<u16>, // [n_layers, heads, positions, value_width]
    },
    Q8 {
        keys: Aligned<i8>,        // [n_layers, heads, positions / 16, key_width / 4, 16, 4]
        values: Aligned<i8>,      // [n_layers, heads, positions, value_width]
        key_scales: Aligned<f32>, // [n_layers, heads, positions]
        value_scales: Aligned<f32>, // [n_layers, heads, positions]
    },
}

/// Keys and values of all positions of one head.
#[derive(Clone, Copy, Debug)]
pub struct KvHead<'a> {
    /// Elements of a key and of a value.
    pub head_dim: usize,
    /// The numbers.
    pub rows: KvRows<'a>,
}

/// The numbers of a [`KvHead`].
#[derive(Clone, Copy, Debug)]
pub enum KvRows<'a> {
    /// Bits of f16.
    F16 {
        /// `[positions / 16][head_dim][16]`
        keys: &'a [u16],
        /// `[positions][head_dim]`, rows padded to a multiple of 16
        values: &'a [u16],
    },
    /// Codes that stand for `code * scale`.
    Q8 {
        /// `[positions / 16][head_dim / 4][16][4]`
        keys: &'a [i8],
        /// `[positions][head_dim]`, rows padded to a multiple of 16
        values: &'a [i8],
        /// `[positions]`
        key_scales: &'a [f32],
        /// `[positions]`
        value_scales: &'a [f32],
    },
}

impl KvCache {
    /// An empty cache. Memory is committed as positions are written.
    ///
    /// # Panics
    /// The size overflows, or the memory is not available.
    pub fn new(shape: KvShape) -> Self {
        let keys = shape.elements(shape.key_width());
        let values = shape.elements(shape.value_width());
        let scales = shape.elements(1);
        let rows = match shape.kind {
            KvType::F16 => Rows::F16 {
                keys: Aligned::<u16>::zeros(keys),
                values: Aligned::<u16>::zeros(values),
            },
            KvType::Q8 => Rows::Q8 {
                keys: Aligned::<i8>::zeros(keys),
                values: Aligned::<i8>::zeros(values),
                key_scales: Aligned::<f32>::zeros(scales),
                value_scales: Aligned::<f32>::zeros(scales),
            },
        };
        Self { shape, rows }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets.
    pub fn bytes(shape: KvShape) -> usize {
        let keys = shape.elements(shape.key_width());
        let values = shape.elements(shape.value_width());
        let scales = Aligned::<f32>::bytes(shape.elements(1));
        match shape.kind {
            KvType::F16 => {
                Aligned::<u16>::bytes(keys).saturating_add(Aligned::<u16>::bytes(values))
            }
            KvType::Q8 => Aligned::<i8>::bytes(keys)
                .saturating_add(Aligned::<i8>::bytes(values))
                .saturating_add(scales.saturating_mul(2)),
        }
    }

    /// Positions it can hold.
    pub fn context(&self) -> usize {
        self.shape.context
    }

    /// First position of a head, counted over all heads and layers.
    fn first(&self, layer: usize, head: usize) -> usize {
        (layer * self.shape.heads + head) * self.shape.positions()
    }

    /// Stores key and value, `[head_dim]` each, of one head at `position`.
    ///
    /// # Panics
    /// There is no such layer, head or position, or key or value has another length.
    pub fn store(
        &mut self,
        layer: usize,
        head: usize,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let shape = self.shape;
        assert!(
            layer < shape.n_layers
                && head < shape.heads
                && position < shape.context
                && key.len() == shape.head_dim
                && value.len() == shape.head_dim,
            "position {position} of head {head} in layer {layer} is not in a KV cache of {shape:?}"
        );
        let (key_width, value_width) = (shape.key_width(), shape.value_width());
        let at = self.first(layer, head) + position;
        let lane = position % POSITIONS;
        let block = ((at - lane) * key_width, POSITIONS * key_width);
        let row = (at * value_width, value_width);
        match &mut self.rows {
            Rows::F16 { keys, values } => {
                half_rows::store_key(keys.get_mut(block.0, block.1), lane, key);
                half_rows::store_value(values.get_mut(row.0, row.1), value);
            }
            Rows::Q8 {
                keys,
                values,
                key_scales,
                value_scales,
            } => {
                let keys = keys.get_mut(block.0, block.1);
                key_scales.get_mut(at, 1)[0] = byte_rows::store_key(keys, lane, key);
                let values = values.get_mut(row.0, row.1);
                value_scales.get_mut(at, 1)[0] = byte_rows::store_value(values, value);
            }
        }
    }

    /// All positions of one head.
    ///
    /// # Panics
    /// There is no such layer or head.
    pub fn head(&self, layer: usize, head: usize) -> KvHead<'_> {
        let shape = self.shape;
        let (at, n) = (self.first(layer, head), shape.positions());
        let key = (at * shape.key_width(), n * shape.key_width());
        let value = (at * shape.value_width(), n * shape.value_width());
        let rows = match &self.rows {
            Rows::F16 { keys, values } => KvRows::F16 {
                keys: keys.get(key.0, key.1),
                values: values.get(value.0, value.1),
            },
            Rows::Q8 {
                keys,
                values,
                key_scales,
                value_scales,
            } => KvRows::Q8 {
                keys: keys.get(key.0, key.1),
                values: values.get(value.0, value.1),
                key_scales: key_scales.get(at, n),
                value_scales: value_scales.get(at, n),
            },
        };
        KvHead {
            head_dim: shape.head_dim,
            rows,
        }
    }
}

#[cfg(test)]
mod tests;
