//! A gated delta net: value heads, each with a matrix that remembers keys and values.

use std::ops::Range;

use forebay_models::network::{Activation, DeltaNet};

use super::RecurrentWeights;
use super::convolution::{convolve, state_len};
use crate::kernels::{DeltaRule, KernelTable};

/// Tokens that pass a head one after the other while its matrix is in the core's cache.
const GROUP: usize = 8;

/// A core's value heads of one layer, and the key heads that they read.
#[derive(Debug)]
pub(super) struct DeltaNetPart {
    net: DeltaNet,
    heads: Range<usize>,
    /// Key heads, ascending. Two cores that read the same one both have its convolution.
    keys: Vec<usize>,
    /// Which of `keys` each value head reads.
    key_of: Vec<usize>,
    /// Channels of the convolution: those of all queries, of all keys, of the values.
    channels: Vec<Range<usize>>,
}

/// Scratch memory of a group of tokens.
struct Scratch<'a> {
    /// After the convolution and SiLU, `[GROUP, own channels]`.
    mixed: &'a mut [f32],
    /// Of one token, `[own channels]`.
    column: &'a mut [f32],
    /// `[GROUP, own heads]`
    decays: &'a mut [f32],
    betas: &'a mut [f32],
    /// A head's result, `[value_dim]`.
    normed: &'a mut [f32],
    /// Weights of the norms that give queries and keys their lengths, `[key_dim]`.
    query_norm: &'a mut [f32],
    key_norm: &'a mut [f32],
}

impl DeltaNetPart {
    pub fn new(net: &DeltaNet, heads: Range<usize>) -> Self {
        let read: Vec<usize> = heads.clone().map(|head| net.key_head(head)).collect();
        let mut keys = read.clone();
        keys.sort_unstable();
        keys.dedup();
        let of_head = |head: usize| head * net.key_dim..(head + 1) * net.key_dim;
        let shifted = |range: Range<usize>, by: usize| range.start + by..range.end + by;
        let queries = keys.iter().map(|&head| of_head(head));
        let mut channels: Vec<Range<usize>> = queries.collect();
        let of_keys = keys
            .iter()
            .map(|&head| shifted(of_head(head), net.keys_dim()));
        channels.extend(of_keys);
        let values = heads.start * net.value_dim..heads.end * net.value_dim;
        channels.push(shifted(values, 2 * net.keys_dim()));
        Self {
            net: *net,
            key_of: read
                .iter()
                .map(|&head| keys.partition_point(|&k| k < head))
                .collect(),
            heads,
            keys,
            channels,
        }
    }

    /// Its columns of the output.
    pub fn columns(&self) -> Range<usize> {
        self.heads.start * self.net.value_dim..self.heads.end * self.net.value_dim
    }

    fn n_channels(&self) -> usize {
        self.channels.iter().map(Range::len).sum()
    }

    /// Elements of a value head's matrix, `[key_dim, width]`.
    fn matrix_len(&self) -> usize {
        self.net.key_dim * DeltaRule::width(self.net.value_dim)
    }

    /// Columns of the convolution for each range of channels, then a matrix for each value head.
    pub fn state_len(&self) -> usize {
        state_len(self.net.kernel, self.n_channels()) + self.heads.len() * self.matrix_len()
    }

    /// Elements of [`Scratch`].
    pub fn scratch_len(&self) -> usize {
        let of_tokens = (GROUP + 1) * self.n_channels() + 2 * GROUP * self.heads.len();
        of_tokens + self.net.value_dim + 2 * self.net.key_dim
    }

    /// Bytes of its lists of heads and channels.
    pub fn list_bytes(&self) -> usize {
        let heads = self.keys.len() + self.key_of.len();
        heads * size_of::<usize>() + self.channels.len() * size_of::<Range<usize>>()
    }

    /// Consecutive tokens of one sequence, whose rows of `input` are `width` apart.
    pub fn run(
        &self,
        kernels: &KernelTable,
        weights: RecurrentWeights<'_>,
        (input, width): (&[f32], usize), // [n_tokens, Q, K, V, output gate, alpha, beta]
        state: &mut [f32],
        scratch: &mut [f32],
        out: &mut [f32], // [n_tokens, own columns]
    ) {
        let own = self.columns().len();
        if own == 0 {
            return;
        }
        let n_channels = self.n_channels();
        let (mixed, rest) = scratch.split_at_mut(GROUP * n_channels);
        let (column, rest) = rest.split_at_mut(n_channels);
        let (decays, rest) = rest.split_at_mut(GROUP * self.heads.len());
        let (betas, rest) = rest.split_at_mut(GROUP * self.heads.len());
        let (normed, rest) = rest.split_at_mut(self.net.value_dim);
        let (query_norm, rest) = rest.split_at_mut(self.net.key_dim);
        let key_norm = &mut rest[..self.net.key_dim];
        let n = self.net.key_dim as f32;
        query_norm.fill(1.0 / n);
        key_norm.fill(1.0 / n.sqrt());
        let mut scratch = Scratch {
            mixed,
            column,
            decays,
            betas,
            normed,
            query_norm,
            key_norm,
        };
        let groups = input.chunks(GROUP * width);
        for (rows, out) in groups.zip(out.chunks_mut(GROUP * own)) {
            let (columns, matrices) = state.split_at_mut(state_len(self.net.kernel, n_channels));
            self.prepare(kernels, weights, (rows, width), columns, &mut scratch);
            self.remember(kernels, matrices, &mut scratch, out);
            self.finish(kernels, weights, (rows, width), &mut scratch, out);
        }
    }

    /// Queries, keys and values of a group of tokens, and how much is forgotten and written.
    fn prepare(
        &self,
        kernels: &KernelTable,
        weights: RecurrentWeights<'_>,
        (rows, width): (&[f32], usize),
        state: &mut [f32],
        scratch: &mut Scratch<'_>,
    ) {
        let (net, n, n_channels) = (&self.net, self.heads.len(), self.n_channels());
        let alpha = net.channels() + net.values_dim();
        let bias = &weights.decay_bias[self.heads.clone()];
        let rate = &weights.decay_rate[self.heads.clone()];
        for (t, row) in rows.chunks_exact(width).enumerate() {
            self.convolve(weights.taps, row, state, scratch.column);
            let mixed = &mut scratch.mixed[t * n_channels..][..n_channels];
            kernels.activate(Activation::Silu, scratch.column, mixed);
            let keys = self.keys.len() * net.key_dim;
            let before = &mut scratch.column[..net.key_dim];
            let eps = DeltaNet::EPS / net.key_dim as f32;
            for (i, head) in mixed[..2 * keys].chunks_exact_mut(net.key_dim).enumerate() {
                let weights = match i < self.keys.len() {
                    true => &*scratch.query_norm,
                    false => &*scratch.key_norm,
                };
                before.copy_from_slice(head);
                kernels.rmsnorm(before, weights, eps, head);
            }
            let own = |first: usize| &row[first + self.heads.start..][..n];
            let decays = &mut scratch.decays[t * n..][..n];
            kernels.decay(own(alpha), (bias, rate), decays);
            let betas = &mut scratch.betas[t * n..][..n];
            kernels.sigmoid(own(alpha + net.n_value_heads), betas);
        }
    }

    /// The convolution of one token, `[own channels]`.
    fn convolve(&self, taps: &[f32], row: &[f32], state: &mut [f32], out: &mut [f32]) {
        let (mut state, mut out) = (state, out);
        for channels in &self.channels {
            let (columns, later) = state.split_at_mut(state_len(self.net.kernel, channels.len()));
            let (result, rest) = out.split_at_mut(channels.len());
            (state, out) = (later, rest);
            let taps = (taps, self.net.channels());
            convolve(
                taps,
                channels.clone(),
                columns,
                &row[channels.clone()],
                result,
            );
        }
    }

    /// The delta rule, head by head; `out` becomes the heads' results.
    fn remember(
        &self,
        kernels: &KernelTable,
        matrices: &mut [f32],
        scratch: &mut Scratch<'_>,
        out: &mut [f32], // [tokens of the group, own columns]
    ) {
        let (net, n, n_channels) = (&self.net, self.heads.len(), self.n_channels());
        let (keys, own) = (self.keys.len() * net.key_dim, n * net.value_dim);
        let heads = matrices.chunks_exact_mut(self.matrix_len());
        for (head, matrix) in heads.enumerate() {
            let key = self.key_of[head] * net.key_dim;
            let value = head * net.value_dim;
            for (t, out) in out.chunks_exact_mut(own).enumerate() {
                let mixed = &scratch.mixed[t * n_channels..];
                let rule = DeltaRule {
                    q: &mixed[key..][..net.key_dim],
                    k: &mixed[keys + key..][..net.key_dim],
                    v: &mixed[2 * keys + value..][..net.value_dim],
                    decay: scratch.decays[t * n + head],
                    beta: scratch.betas[t * n + head],
                };
                kernels.delta_rule(rule, matrix, &mut out[value..][..net.value_dim]);
            }
        }
    }

    /// Norms and output gates of a group's results.
    fn finish(
        &self,
        kernels: &KernelTable,
        weights: RecurrentWeights<'_>,
        (rows, width): (&[f32], usize),
        scratch: &mut Scratch<'_>,
        out: &mut [f32],
    ) {
        let (net, own) = (&self.net, self.columns());
        for (row, out) in rows
            .chunks_exact(width)
            .zip(out.chunks_exact_mut(own.len()))
        {
            let gates = &row[net.channels()..][own.clone()];
            let heads = out.chunks_exact_mut(net.value_dim);
            for (head, gate) in heads.zip(gates.chunks_exact(net.value_dim)) {
                kernels.rmsnorm(head, weights.head_norm, net.eps, scratch.normed);
                kernels.gate_up(Activation::Silu, gate, scratch.normed, head);
            }
        }
    }
}
