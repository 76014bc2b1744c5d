//! The shape of a cache, and where its parts are in memory.

use std::ops::Range;

use forebay_numbers::kv_type::KvType;
use forebay_queues::pages::page;

use super::aligned::Aligned;

/// Positions per block: a sequence gets, shares and returns whole blocks, and the attention kernel takes one at a time.
pub const BLOCK: usize = 64;
/// Positions whose keys are grouped.
pub const POSITIONS: usize = 16;
/// Key elements of one position that are adjacent in `q8`.
pub(super) const WORD: usize = 4;
/// Key elements in `q8` whose lowest bits are together.
const KEYS_PER_BITS: usize = POSITIONS * WORD;
/// Values are padded to whole parts of this many elements.
pub const PART: usize = 16;

/// The shape of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Number format.
    pub kind: KvType,
    /// Layers.
    pub layers: Vec<KvLayer>,
    /// Blocks of each pool. In every layer of a pool the same blocks of a sequence have the same numbers.
    pub pools: Vec<usize>,
}

/// The shape of one layer in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Key/value heads.
    pub heads: usize,
    /// Elements of a key.
    pub head_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Index of its pool.
    pub pool: usize,
}

impl KvLayer {
    /// Elements of a position's key.
    pub(super) fn key_width(self, kind: KvType) -> usize {
        match kind {
            KvType::F16 => self.head_dim,
            KvType::Q8 => self.head_dim.div_ceil(WORD).saturating_mul(WORD),
        }
    }

    /// Elements of a position's value.
    pub(super) fn value_width(self) -> usize {
        self.value_dim.div_ceil(PART).saturating_mul(PART)
    }
}

/// Where a layer is in the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub layer: KvLayer,
    pub key_width: usize,
    pub value_width: usize,
    /// Positions of one head.
    pub positions: usize,
    /// Elements of all layers before it.
    pub before: Elements,
}

/// Numbers of elements.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Elements {
    pub keys: usize,
    pub values: usize,
    pub scales: usize,
}

impl Elements {
    /// Words with the lowest bits of keys.
    pub fn key_bits(self) -> usize {
        self.keys / KEYS_PER_BITS
    }
}

impl KvShape {
    /// Each layer's place, and the elements of all layers.
    ///
    /// # Panics
    /// A layer's pool does not exist.
    pub(super) fn places(&self) -> (Vec<Place>, Elements) {
        let mut before = Elements::default();
        let place = |&layer: &KvLayer| {
            let place = Place {
                layer,
                key_width: layer.key_width(self.kind),
                value_width: layer.value_width(),
                positions: self.pools[layer.pool].saturating_mul(BLOCK),
                before,
            };
            let all = place.positions.saturating_mul(layer.heads);
            let add = |to: &mut usize, width| *to = to.saturating_add(all.saturating_mul(width));
            add(&mut before.keys, place.key_width);
            add(&mut before.values, place.value_width);
            add(&mut before.scales, 1);
            place
        };
        let places = self.layers.iter().map(place).collect();
        (places, before)
    }

    /// Bytes that a cache of this shape has committed at most if only the first `blocks` of each pool were written; all
    /// of the pool's if it has fewer.
    ///
    /// # Panics
    /// A layer's pool does not exist.
    pub fn bytes_written(&self, blocks: usize) -> usize {
        let of_layer = |layer: &KvLayer| {
            let pool = self.pools[layer.pool];
            // Each head's part of an array begins and ends somewhere in a page.
            let of_array = |bytes_per_position: usize| {
                let of_blocks = |n: usize| n.saturating_mul(BLOCK * bytes_per_position);
                match blocks < pool {
                    true => of_blocks(blocks)
                        .saturating_add(2 * page())
                        .min(of_blocks(pool)),
                    false => of_blocks(pool),
                }
            };
            let (key, value) = (layer.key_width(self.kind), layer.value_width());
            let arrays = match self.kind {
                KvType::F16 => [2 * key, 2 * value, 0, 0, 0],
                KvType::Q8 => [key, key / 8, value, size_of::<f32>(), size_of::<f32>()],
            };
            let of_head = arrays.map(of_array).into_iter();
            of_head
                .fold(0, usize::saturating_add)
                .saturating_mul(layer.heads)
        };
        // And the arrays end in a page.
        let sum = self
            .layers
            .iter()
            .map(of_layer)
            .fold(5 * page(), usize::saturating_add);
        sum.min(self.bytes())
    }

    /// Bytes of a cache of this shape, for memory budgets.
    ///
    /// # Panics
    /// A layer's pool does not exist.
    pub fn bytes(&self) -> usize {
        let all = self.places().1;
        let Elements {
            keys,
            values,
            scales,
        } = all;
        match self.kind {
            KvType::F16 => {
                Aligned::<u16>::bytes(keys).saturating_add(Aligned::<u16>::bytes(values))
            }
            KvType::Q8 => Aligned::<i8>::bytes(keys)
                .saturating_add(Aligned::<u64>::bytes(all.key_bits()))
                .saturating_add(Aligned::<i8>::bytes(values))
                .saturating_add(Aligned::<f32>::bytes(scales).saturating_mul(2)),
        }
    }
}

impl Place {
    /// First position of a head, counted from the layer's first.
    pub fn first(&self, head: usize) -> usize {
        head * self.positions
    }

    /// Keys of `n` positions from `at` on, which begins a group of them.
    pub fn keys(&self, at: usize, n: usize) -> Range<usize> {
        let start = self.before.keys + at * self.key_width;
        start..start + n * self.key_width
    }

    /// Words with the lowest bits of those keys.
    pub fn key_bits(&self, at: usize, n: usize) -> Range<usize> {
        let keys = self.keys(at, n);
        keys.start / KEYS_PER_BITS..keys.end / KEYS_PER_BITS
    }

    /// Values of `n` positions from `at` on.
    pub fn values(&self, at: usize, n: usize) -> Range<usize> {
        let start = self.before.values + at * self.value_width;
        start..start + n * self.value_width
    }

    /// Scales, of keys as of values, of `n` positions from `at` on.
    pub fn scales(&self, at: usize, n: usize) -> Range<usize> {
        let start = self.before.scales + at;
        start..start + n
    }
}
