//! Attention over the KV cache for the query heads that one core owns.

use std::ops::Range;

use forebay_models::config::{ModelConfig, RopePairing};
use forebay_models::kv_cache::{KvCache, KvShape, KvType};

use crate::kernels::{AttendScratch, KernelTable, Queries};

/// Query heads of core `rank` out of `threads`: contiguous shares, so that cores split between
/// key/value heads wherever the numbers allow.
pub fn heads_of(config: &ModelConfig, rank: usize, threads: usize) -> Range<usize> {
    rank * config.n_heads / threads..(rank + 1) * config.n_heads / threads
}

/// Key/value heads that the query heads `q` read.
pub fn kv_heads_of(config: &ModelConfig, q: &Range<usize>) -> Range<usize> {
    let group = config.n_heads / config.n_kv_heads;
    q.start / group..q.end.div_ceil(group).max(q.start / group)
}

/// What the KV cache of core `rank` holds.
pub fn kv_shape(
    config: &ModelConfig,
    rank: usize,
    threads: usize,
    context: usize,
    kind: KvType,
) -> KvShape {
    KvShape {
        kind,
        n_layers: config.n_layers,
        heads: kv_heads_of(config, &heads_of(config, rank, threads)).len(),
        context,
        head_dim: config.head_dim,
    }
}

/// One core's share of attention, with the KV cache of its heads. Two cores that share a key/value head
/// both keep it: nothing of the cache ever crosses cores.
#[derive(Debug)]
pub struct Attention {
    q_heads: Range<usize>,
    kv_heads: Range<usize>,
    group: usize,
    q_dim: usize,
    kv_dim: usize,
    head_dim: usize,
    window: usize,
    pairing: RopePairing,
    frequencies: Vec<f32>,
    /// `[max_tokens, rotary_dim / 2]`
    cos: Vec<f32>,
    /// `[max_tokens, rotary_dim / 2]`
    sin: Vec<f32>,
    cache: KvCache,
    scratch: AttendScratch,
}

impl Attention {
    /// The share of core `rank`, for `context` positions in the format `kind` and batches of
    /// `max_tokens`.
    pub fn new(
        config: &ModelConfig,
        rank: usize,
        threads: usize,
        context: usize,
        kind: KvType,
        max_tokens: usize,
    ) -> Self {
        let q_heads = heads_of(config, rank, threads);
        let kv_heads = kv_heads_of(config, &q_heads);
        let frequencies = config.rope.frequencies();
        let table = vec![0.0; max_tokens * frequencies.len()];
        let group = config.n_heads / config.n_kv_heads;
        Self {
            group,
            q_dim: config.q_dim(),
            kv_dim: config.kv_dim(),
            head_dim: config.head_dim,
            window: config
                .sliding_window
                .filter(|&n| n > 0)
                .unwrap_or(usize::MAX),
            pairing: config.rope.pairing,
            cos: table.clone(),
            sin: table,
            frequencies,
            cache: KvCache::new(kv_shape(config, rank, threads, context, kind)),
            scratch: AttendScratch::new(config.head_dim),
            q_heads,
            kv_heads,
        }
    }

    /// Bytes that [`Self::new`] allocates beside the KV cache, for memory budgets.
    pub fn scratch_bytes(config: &ModelConfig, max_tokens: usize) -> usize {
        // Frequencies, cosines and sines.
        let angles = (2 * max_tokens + 1) * (config.rope.rotary_dim / 2);
        AttendScratch::bytes_for(config.head_dim) + angles * size_of::<f32>()
    }

    /// First column of this core's part of the output, and its width.
    pub fn columns(&self) -> (usize, usize) {
        (
            self.q_heads.start * self.head_dim,
            self.q_heads.len() * self.head_dim,
        )
    }

    /// Prepares the rotations for tokens at `position..position + n_tokens`, once for all layers.
    pub fn begin(&mut self, position: usize, n_tokens: usize) {
        let half = self.frequencies.len();
        for t in 0..n_tokens {
            for (i, &f) in self.frequencies.iter().enumerate() {
                let (sin, cos) = ((position + t) as f64 * f64::from(f)).sin_cos();
                self.cos[t * half + i] = cos as f32;
                self.sin[t * half + i] = sin as f32;
            }
        }
    }

    /// Rotates Q and K, stores K and V, and attends.
    ///
    /// `qkv` is `[n_tokens, q_dim + 2 * kv_dim]` (rotated in place), `out` is `[n_tokens, own columns]`.
    pub fn run(
        &mut self,
        kernels: &KernelTable,
        layer: usize,
        position: usize,
        n_tokens: usize,
        qkv: &mut [f32],
        out: &mut [f32],
    ) {
        let width = self.q_dim + 2 * self.kv_dim;
        for (t, row) in qkv.chunks_exact_mut(width).take(n_tokens).enumerate() {
            self.take(kernels, layer, (t, position + t), row);
        }
        let (dim, own) = (self.head_dim, self.q_heads.len() * self.head_dim);
        for (local, kv) in self.kv_heads.clone().enumerate() {
            let first = (kv * self.group).max(self.q_heads.start);
            let last = ((kv + 1) * self.group).min(self.q_heads.end);
            let queries = Queries {
                q: &qkv[first * dim..],
                stride: width,
                n_tokens,
                heads: last - first,
                position,
                window: self.window,
                scale: 1.0 / (dim as f32).sqrt(),
            };
            let out = &mut out[(first - self.q_heads.start) * dim..];
            let kv = self.cache.head(layer, local);
            kernels.attend(queries, kv, &mut self.scratch, out, own);
        }
    }

    /// Rotates the own heads of token `t` of the batch and stores key and value at `position`.
    fn take(
        &mut self,
        kernels: &KernelTable,
        layer: usize,
        (t, position): (usize, usize),
        row: &mut [f32], // [q_dim + 2 * kv_dim]
    ) {
        let (dim, half) = (self.head_dim, self.frequencies.len());
        let (cos, sin) = (&self.cos[t * half..][..half], &self.sin[t * half..][..half]);
        for h in self.q_heads.clone() {
            kernels.rope(&mut row[h * dim..(h + 1) * dim], cos, sin, self.pairing);
        }
        for (local, h) in self.kv_heads.clone().enumerate() {
            let key = self.q_dim + h * dim;
            kernels.rope(&mut row[key..key + dim], cos, sin, self.pairing);
            let value = key + self.kv_dim;
            let (k, v) = (&row[key..key + dim], &row[value..value + dim]);
            self.cache.store(layer, local, position, k, v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_models::config::{Activation, Arch, RopeConfig, RopeScaling};

    fn config(n_heads: usize, n_kv_heads: usize) -> ModelConfig {
        let rope = RopeConfig {
            theta: 1e4,
            rotary_dim: 4,
            pairing: RopePairing::HalfSplit,
            scaling: RopeScaling::None,
        };
        ModelConfig {
            arch: Arch::Llama,
            name: "heads".into(),
            n_layers: 1,
            d_model: 4 * n_heads,
            n_heads,
            n_kv_heads,
            head_dim: 4,
            d_ff: 8,
            vocab_size: 8,
            context_length: 8,
            sliding_window: None,
            rms_eps: 1e-5,
            rope,
            activation: Activation::Silu,
            tied_head: true,
            qkv_bias: false,
            predictor_threshold: 0.0,
        }
    }

    #[test]
    fn every_head_has_one_owner_and_its_keys() {
        for (n_heads, n_kv_heads) in [(9, 3), (14, 2), (12, 2), (32, 8), (4, 4), (6, 1)] {
            let c = config(n_heads, n_kv_heads);
            for threads in 1..=n_heads {
                let mut next = 0;
                for rank in 0..threads {
                    let q = heads_of(&c, rank, threads);
                    assert_eq!(q.start, next);
                    next = q.end;
                    let kv = kv_heads_of(&c, &q);
                    let group = n_heads / n_kv_heads;
                    assert!(q.clone().all(|h| kv.contains(&(h / group))), "{q:?} {kv:?}");
                }
                assert_eq!(next, n_heads);
            }
        }
    }
}
