//! Keys and values of past positions in half precision.

use half::f16;
use half::slice::HalfBitsSliceExt;

/// KV cache of some key/value heads over all layers. Rows of one head are contiguous, so that
/// attention reads them as a stream.
#[derive(Debug)]
pub struct KvCache {
    heads: usize,
    context: usize,
    head_dim: usize,
    /// `[n_layers, heads, context, head_dim]`
    keys: Vec<u16>,
    /// `[n_layers, heads, context, head_dim]`
    values: Vec<u16>,
}

impl KvCache {
    /// A cache of `heads` key/value heads for `context` positions. Memory is committed as positions
    /// are written.
    pub fn new(n_layers: usize, heads: usize, context: usize, head_dim: usize) -> Self {
        let len = n_layers * heads * context * head_dim;
        // Bits instead of `f16`: zeroed integers come straight from the system, untouched.
        Self {
            heads,
            context,
            head_dim,
            keys: vec![0; len],
            values: vec![0; len],
        }
    }

    /// Bytes of such a cache.
    pub fn bytes(n_layers: usize, heads: usize, context: usize, head_dim: usize) -> usize {
        n_layers * heads * context * head_dim * 2 * size_of::<f16>()
    }

    /// Positions it can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    fn start(&self, layer: usize, head: usize) -> usize {
        (layer * self.heads + head) * self.context * self.head_dim
    }

    /// Stores key and value, `[head_dim]` each, of one head at `position`.
    pub fn store(
        &mut self,
        layer: usize,
        head: usize,
        position: usize,
        key: &[f32],
        value: &[f32],
    ) {
        let at = self.start(layer, head) + position * self.head_dim;
        let range = at..at + self.head_dim;
        for (to, from) in [(&mut self.keys, key), (&mut self.values, value)] {
            for (t, &f) in to[range.clone()].iter_mut().zip(from) {
                *t = f16::from_f32(f).to_bits();
            }
        }
    }

    /// Keys and values of positions `from..to` of one head, `[to - from, head_dim]` each.
    pub fn window(&self, layer: usize, head: usize, from: usize, to: usize) -> (&[f16], &[f16]) {
        let at = self.start(layer, head);
        let range = at + from * self.head_dim..at + to * self.head_dim;
        (
            self.keys[range.clone()].reinterpret_cast(),
            self.values[range].reinterpret_cast(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_layers_and_positions_do_not_overlap() {
        let (layers, heads, context, dim) = (2, 3, 4, 2);
        let mut cache = KvCache::new(layers, heads, context, dim);
        let value = |l: usize, h: usize, p: usize| (l * 100 + h * 10 + p) as f32;
        for l in 0..layers {
            for h in 0..heads {
                for p in 0..context {
                    let v = value(l, h, p);
                    cache.store(l, h, p, &[v, -v], &[v + 0.5, 1.0]);
                }
            }
        }
        for l in 0..layers {
            for h in 0..heads {
                let (k, v) = cache.window(l, h, 1, 4);
                for p in 1..4 {
                    let want = value(l, h, p);
                    assert_eq!(k[(p - 1) * dim].to_f32(), want);
                    assert_eq!(k[(p - 1) * dim + 1].to_f32(), -want);
                    assert_eq!(v[(p - 1) * dim].to_f32(), want + 0.5);
                }
            }
        }
    }
}
