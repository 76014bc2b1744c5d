//! Attention over the KV cache for the query heads that one core owns.

mod device;
mod gates;
mod latent;
mod room;
mod rotation;
mod share;
mod sizes;

use std::ops::Range;

use forebay_models::network::{self, KvOrigin, Network, NormKind, NormSpan, QkNorm};

pub use device::{DeviceHeads, Missing};
pub use room::KvRoom;

use crate::kernels::kv::{BLOCK, KvCache};
use crate::kernels::{AttendScratch, KernelTable, KeyOrigin, Queries, Turns};
use crate::sequences::{BlockCopy, Snapshot, Tables, TokenPlace};
use device::Copied;
use gates::gates_behind;
use rotation::Rotation;
use share::Share;
pub(crate) use share::part_of;
use sizes::{widest_head, widest_spare, widest_values};

/// Where the tokens of a step are, and their sequences' blocks.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// All tokens. Those of a sequence are adjacent and in order.
    pub tokens: &'a [TokenPlace],
    /// The tables of their sequences, with room for them.
    pub tables: &'a Tables,
    /// Recurrent states that are kept on the way.
    pub snapshots: &'a [Snapshot],
}

/// Weights of the norms of queries and keys in a layer; empty if it has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct QkWeights<'a> {
    /// `[head_dim]`, `[n_heads, head_dim]` or `[q_dim]`; not used with latent attention
    pub q: &'a [f32],
    /// `[head_dim]`, `[n_kv_heads, head_dim]` or `[kv_dim]`; of latents `[rank]`
    pub k: &'a [f32],
    /// Bias of the keys, `[kv_dim]`; empty if there is none.
    pub k_bias: &'a [f32],
    /// Scores without a value that take part in each head's softmax, `[n_heads]`; empty if there are none.
    pub sinks: &'a [f32],
}

/// One core's share of attention, with the KV cache of its heads.
#[derive(Debug)]
pub struct Attention {
    /// By layer of the network; `None` without attention.
    layers: Vec<Option<Layer>>,
    rotations: Vec<Rotation>,
    /// Of the rotations whose keys are stored without their rotated bias.
    turns: Vec<Option<Turns>>,
    cache: KvCache,
    /// What a device has of it.
    copied: Copied,
    scratch: AttendScratch,
    /// Input of a norm, queries with their gates, or factors of heads' results.
    spare: Vec<f32>,
    /// The bias of a head on its way through the rotation, `[head_dim]` of the largest heads.
    bias: Vec<f32>,
    /// Values of a token, `[kv_dim]`.
    values: Vec<f32>,
    /// The weights of a norm of values.
    ones: Vec<f32>,
}

#[derive(Debug)]
struct Layer {
    network: network::Attention,
    share: Share,
    pool: usize,
    /// The rotation of the bias that stored keys lack.
    bias_rope: Option<usize>,
    /// The number in the cache of the layer that has its keys and values.
    cached: usize,
}

impl Attention {
    /// The share of core `rank` of `threads`, for steps of up to `max_tokens` tokens.
    pub fn new(
        network: &Network,
        (rank, threads): (usize, usize),
        room: &KvRoom,
        max_tokens: usize,
    ) -> Self {
        let layer = |attention: &network::Attention, (cached, pool): (usize, usize)| Layer {
            network: attention.clone(),
            share: Share::new(attention, rank, threads),
            pool,
            bias_rope: room.bias_rope(network, attention),
            cached: match attention.kv {
                KvOrigin::Layer(origin) => {
                    let before = network.layers[..origin].iter();
                    before.filter(|l| !l.mixer.body.is_recurrent()).count()
                }
                KvOrigin::Own | KvOrigin::KeysAlone => cached,
            },
        };
        let mut pools = room.pool_of.iter().copied().enumerate();
        let mixers = (0..network.n_layers()).map(|l| network.attention(l));
        let layers = mixers.map(|attention| Some(layer(attention?, pools.next()?)));
        let layers: Vec<Option<Layer>> = layers.collect();
        let ropes = network.ropes.iter();
        let rotations: Vec<Rotation> = ropes
            .map(|rope| Rotation::new(rope, room.context, max_tokens))
            .collect();
        let turns = |(i, rotation): (usize, &Rotation)| {
            let is_used = layers
                .iter()
                .flatten()
                .any(|layer| layer.bias_rope == Some(i));
            is_used.then(|| rotation.turns(room.context))
        };
        Self {
            turns: rotations.iter().enumerate().map(turns).collect(),
            layers,
            rotations,
            cache: KvCache::new(&room.shape(network, rank, threads)),
            copied: Copied::default(),
            scratch: AttendScratch::new(widest_head(network)),
            spare: vec![0.0; widest_spare(network)],
            bias: vec![0.0; widest_head(network)],
            values: vec![0.0; widest_values(network)],
            ones: vec![1.0; widest_head(network)],
        }
    }

    /// Keeps the memory of the first `blocks` of each pool only.
    pub fn forget(&mut self, blocks: usize) {
        self.cache.forget(blocks);
    }

    /// Bytes that [`Self::new`] allocates besides the KV cache, for memory budgets.
    pub fn scratch_bytes(network: &Network, max_tokens: usize) -> usize {
        let rotations = network.ropes.iter();
        AttendScratch::bytes_for(widest_head(network))
            + rotations
                .map(|rope| Rotation::bytes(rope, max_tokens))
                .sum::<usize>()
            + (widest_spare(network) + widest_values(network) + 2 * widest_head(network))
                * size_of::<f32>()
            + network.n_layers() * size_of::<Option<Layer>>()
    }

    /// First column of this core's part of a layer's output, and its width.
    pub fn columns(&self, layer: usize) -> (usize, usize) {
        let Some(Layer { network, share, .. }) = &self.layers[layer] else {
            return (0, 0);
        };
        (
            share.q_heads.start * network.value_dim(),
            share.q_heads.len() * network.value_dim(),
        )
    }

    /// Columns of a layer's input that this core needs of each token.
    pub fn inputs(&self, layer: usize) -> [Range<usize>; 3] {
        let of_layer = self.layers[layer].as_ref();
        of_layer.map_or([0..0, 0..0, 0..0], |l| l.share.inputs(&l.network))
    }

    /// Prepares a step, once for all layers: makes the copies that forks need, and the rotations.
    pub fn begin(&mut self, tokens: &[TokenPlace], copies: &[BlockCopy]) {
        for copy in copies {
            self.cache.copy_block(copy.pool, copy.from, copy.to);
            let in_pool = |cached: usize| {
                let mut layers = self.layers.iter().flatten();
                layers.any(|layer| layer.cached == cached && layer.pool == copy.pool)
            };
            self.copied.replaced(copy.to, in_pool);
        }
        for rotation in &mut self.rotations {
            for (t, token) in tokens.iter().enumerate() {
                rotation.prepare(t, token.position);
            }
        }
    }

    /// Normalises and rotates Q and K, and stores K and V.
    ///
    /// `qkv` is `[n_tokens, in_dim]` (changed in place; only [`Self::inputs`] count).
    pub fn store(
        &mut self,
        kernels: &KernelTable,
        layer: usize,
        places: Places<'_>,
        norms: QkWeights<'_>,
        qkv: &mut [f32],
    ) {
        let Some(of_layer) = &self.layers[layer] else {
            return;
        };
        let width = of_layer.network.in_dim();
        let rows = qkv.chunks_exact_mut(width);
        for (t, (token, row)) in places.tokens.iter().zip(rows).enumerate() {
            self.take_values(kernels, layer, row);
            self.prepare(kernels, layer, (t, token.position), norms, row);
            self.subtract_origin(kernels, layer, t, norms.k_bias, row);
            self.store_token(layer, places, token, row);
        }
    }

    /// Attends for some of the tokens, after [`Self::store`], and applies output gates.
    ///
    /// `qkv` is `[n_tokens, in_dim]`, `out` is `[n_tokens, own columns]`. The result of a token does not depend on the
    /// other tokens of the step, except those before it in its sequence.
    pub fn attend(
        &mut self,
        kernels: &KernelTable,
        layer: usize,
        places: Places<'_>,
        (range, norms): (Range<usize>, QkWeights<'_>),
        (qkv, out): (&[f32], &mut [f32]),
    ) {
        let Some(of_layer) = &self.layers[layer] else {
            return;
        };
        let (width, own) = (of_layer.network.in_dim(), self.columns(layer).1);
        let mut qkv = &qkv[range.start * width..];
        let mut out = &mut out[range.start * own..];
        let follows = |a: &TokenPlace, b: &TokenPlace| {
            a.sequence == b.sequence && a.position.checked_add(1) == Some(b.position)
        };
        for tokens in places.tokens[range].chunk_by(follows) {
            let kept = (tokens, places.tables);
            self.attend_sequence(
                kernels,
                layer,
                kept,
                (norms.k_bias, norms.sinks),
                (qkv, &mut *out),
            );
            self.gate(kernels, layer, tokens.len(), (qkv, &mut *out));
            qkv = &qkv[tokens.len() * width..];
            out = &mut out[tokens.len() * own..];
        }
    }

    /// Takes the values of this core's heads of a token, and normalises them: first, because they may be the keys
    /// before their norm.
    fn take_values(&mut self, kernels: &KernelTable, layer: usize, row: &[f32]) {
        let Some(Layer {
            network: a, share, ..
        }) = &self.layers[layer]
        else {
            return;
        };
        // The last columns: those of V, or those of K if there is no V. Latents are in the keys.
        let has_own = a.k_rows() > 0 && a.latent.is_none();
        let Some(start) = row.len().checked_sub(a.kv_dim()).filter(|_| has_own) else {
            return;
        };
        let d = a.head_dim;
        for head in share.kv_heads.clone() {
            let own = head * d..(head + 1) * d;
            let (from, to) = (&row[start..][own.clone()], &mut self.values[own]);
            match a.v_norm {
                Some(eps) => kernels.rmsnorm(from, &self.ones[..d], eps, to),
                None => to.copy_from_slice(from),
            }
        }
    }

    /// Normalises, rotates and scales this core's heads of token `t` of the step.
    fn prepare(
        &mut self,
        kernels: &KernelTable,
        layer: usize,
        (t, position): (usize, u32),
        norms: QkWeights<'_>,
        row: &mut [f32], // [in_dim]
    ) {
        let Some(Layer {
            network: a, share, ..
        }) = &self.layers[layer]
        else {
            return;
        };
        if let Some(latent) = &a.latent {
            let rotation = a.rope.map(|rope| (&self.rotations[rope], t));
            let (norm, spare) = (norms.k, &mut self.spare);
            return latent::prepare(kernels, (a, latent), share, rotation, norm, (row, spare));
        }
        let (q, kv) = row.split_at_mut(a.q_rows());
        if a.output_gate {
            gates_behind(q, a.head_dim, &mut self.spare);
        }
        let q = &mut q[..a.q_dim()];
        let k = &mut kv[..a.k_rows()];
        let per_row = a.qk_norm.filter(|norm| norm.span == NormSpan::Row);
        if let Some(norm) = per_row {
            // Every core does this for all heads: the norm needs the squares of all of them.
            normalise(kernels, norms.q, norm, q, &mut self.spare);
            if !k.is_empty() {
                normalise(kernels, norms.k, norm, k, &mut self.spare);
            }
        }
        let per_head = a.qk_norm.filter(|norm| norm.span != NormSpan::Row);
        let (after, before) = match per_head {
            Some(norm) if norm.after_rope => (Some(norm), None),
            norm => (None, norm),
        };
        let rotation = a.rope.map(|rope| &self.rotations[rope]);
        let d = a.head_dim;
        let mut each = |weights: &[f32], number: usize, head: &mut [f32]| {
            let weights = match a.qk_norm.map(|norm| norm.span) {
                Some(NormSpan::OwnHead) => &weights[number * d..][..d],
                _ => weights,
            };
            if let Some(norm) = before {
                normalise(kernels, weights, norm, head, &mut self.spare);
            }
            if let Some(rotation) = rotation {
                rotation.turn(kernels, t, head);
            }
            if let Some(norm) = after {
                normalise(kernels, weights, norm, head, &mut self.spare);
            }
        };
        let own = |heads: &std::ops::Range<usize>| heads.start * d..heads.end * d;
        let heads = q[own(&share.q_heads)].chunks_exact_mut(d);
        for (number, head) in share.q_heads.clone().zip(heads) {
            each(norms.q, number, head);
        }
        if !k.is_empty() {
            let heads = k[own(&share.kv_heads)].chunks_exact_mut(d);
            for (number, head) in share.kv_heads.clone().zip(heads) {
                each(norms.k, number, head);
            }
        }
        if let Some(temperature) = a.temperature {
            let factor = temperature.at(position as usize);
            for v in &mut q[own(&share.q_heads)] {
                *v *= factor;
            }
        }
    }

    /// Subtracts the rotated bias from the keys of token `t` of the step, if keys are stored without it.
    fn subtract_origin(
        &mut self,
        kernels: &KernelTable,
        layer: usize,
        t: usize,
        k_bias: &[f32],  // [kv_dim]
        row: &mut [f32], // [in_dim]
    ) {
        let Some(Layer {
            network: a,
            share,
            bias_rope: Some(rope),
            ..
        }) = &self.layers[layer]
        else {
            return;
        };
        let rotation = &self.rotations[*rope];
        let (d, rotated) = (a.head_dim, rotation.width());
        for head in share.kv_heads.clone() {
            let key = &mut row[a.q_rows() + head * d..][..rotated];
            let bias = &mut self.bias[..rotated];
            bias.copy_from_slice(&k_bias[head * d..][..rotated]);
            rotation.turn(kernels, t, bias);
            for (key, bias) in key.iter_mut().zip(bias) {
                *key -= *bias;
            }
        }
    }

    /// Stores keys and values of this core's heads of a token, unless they are another layer's.
    fn store_token(
        &mut self,
        layer: usize,
        places: Places<'_>,
        token: &TokenPlace,
        row: &[f32], // [in_dim]
    ) {
        let Some(Layer {
            network: a,
            share,
            pool,
            cached,
            ..
        }) = &self.layers[layer]
        else {
            return;
        };
        if a.k_rows() == 0 {
            return;
        }
        let table = places.tables.table(token.sequence, *pool);
        let position = token.position as usize;
        let at = (table[position / BLOCK], position % BLOCK);
        self.copied.written(*cached, at.0, at.1);
        let k = &row[a.k_column()..][..a.kv_dim()];
        for (local, head) in share.kv_heads.clone().enumerate() {
            let columns = head * a.head_dim..(head + 1) * a.head_dim;
            let k = &k[columns.clone()];
            let v = match &a.latent {
                Some(latent) => &k[..latent.rank],
                None => &self.values[columns],
            };
            self.cache.store((*cached, local), at, k, v);
        }
    }

    /// Attention of consecutive tokens of one sequence.
    fn attend_sequence(
        &mut self,
        kernels: &KernelTable,
        layer: usize,
        (tokens, tables): (&[TokenPlace], &Tables),
        (k_bias, sinks): (&[f32], &[f32]),
        (qkv, out): (&[f32], &mut [f32]), // [n_tokens, in_dim], [n_tokens, own columns]
    ) {
        let (Some(of_layer), Some(first)) = (&self.layers[layer], tokens.first()) else {
            return;
        };
        let Layer {
            network: a,
            share,
            pool,
            cached,
            bias_rope,
        } = of_layer;
        let turns = bias_rope.and_then(|rope| self.turns[rope].as_ref());
        let own = share.q_heads.len() * a.value_dim();
        for (local, kv) in share.kv_heads.clone().enumerate() {
            let readers = share.readers(kv);
            let queries = Queries {
                q: &qkv[a.query_column() + readers.start * a.head_dim..],
                stride: a.in_dim(),
                n_tokens: tokens.len(),
                heads: readers.len(),
                blocks: tables.table(first.sequence, *pool),
                position: first.position as usize,
                window: a.window.unwrap_or(usize::MAX),
                scale: a.scale,
                softcap: a.softcap,
                sinks: match a.sinks {
                    true => &sinks[readers.clone()],
                    false => &[],
                },
                origin: turns.map(|turns| KeyOrigin {
                    bias: &k_bias[kv * a.head_dim..][..a.head_dim],
                    turns,
                }),
            };
            let out = &mut out[(readers.start - share.q_heads.start) * a.value_dim()..];
            let kv = self.cache.head(*cached, local);
            kernels.attend(queries, kv, &mut self.scratch, out, own);
        }
    }
}

/// The norm in place; `before` has room for the row.
fn normalise(
    kernels: &KernelTable,
    weights: &[f32],
    norm: QkNorm,
    row: &mut [f32],
    before: &mut [f32],
) {
    let before = &mut before[..row.len()];
    before.copy_from_slice(row);
    match norm.kind {
        NormKind::Rms => kernels.rmsnorm(before, weights, norm.eps, row),
        NormKind::Layer => kernels.layernorm(before, weights, norm.eps, row),
    }
}

#[cfg(test)]
mod tests;
