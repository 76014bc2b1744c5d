//! Attention over all earlier positions, one query head after the other.

use half::f16;

use super::weights::dot;
use super::{Oracle, T, norm_of, rms_norm, scale, sigmoid};
use crate::network::{Attention, KvOrigin, NormSpan, RopePairing};
use crate::tensor::TensorId;

impl Oracle {
    /// Causal grouped-query attention of the new token over the sequence, `[n_heads * head_dim]`; `h`: `[d_model]`.
    pub(super) fn attention(&mut self, l: usize, a: &Attention, h: &[f32]) -> Vec<f32> {
        let mut q = self.project((l, 0), Some(T::QBias), h); // [n_heads * head_dim]
        let gates = a.output_gate.then(|| take_gates(&mut q, a.head_dim));
        q = self.place_heads(a, (l, T::QNorm), q);
        if let Some(temperature) = a.temperature {
            scale(&mut q, temperature.at(self.position));
        }
        let (keys, values) = self.keys_values(l, a, h);
        let origin = match a.kv {
            KvOrigin::Layer(origin) => origin,
            KvOrigin::Own | KvOrigin::KeysAlone => l,
        };
        let sinks = self.weights.vector(TensorId::Layer(l, T::Sinks));
        let past = &mut self.past[origin];
        past.keys.extend(keys);
        past.values.extend(values);

        let window = a.window.unwrap_or(usize::MAX);
        let visible = (self.position + 1).saturating_sub(window)..self.position + 1;
        let queries_per_kv = a.n_heads / a.n_kv_heads;
        let mut mixed = Vec::with_capacity(a.q_dim()); // [n_heads * head_dim]
        for (i, query) in q.chunks_exact(a.head_dim).enumerate() {
            let column = i / queries_per_kv * a.head_dim;
            let head = |row: usize| {
                let start = row * a.kv_dim() + column;
                start..start + a.head_dim
            };
            let score = |t: usize| {
                let score = dot(query, &past.keys[head(t)]) * f64::from(a.scale);
                let cap = a.softcap.map(f64::from);
                cap.map_or(score, |cap| cap * (score / cap).tanh())
            };
            // A sink takes its part, and has no value.
            let sink = sinks.map(|sinks| f64::from(sinks[i]));
            let scores = visible.clone().map(score).chain(sink).collect();
            let mut sum = vec![0.0f64; a.head_dim];
            for (t, p) in visible.clone().zip(softmax(scores)) {
                for (s, &value) in sum.iter_mut().zip(&past.values[head(t)]) {
                    *s += p * f64::from(value);
                }
            }
            mixed.extend(sum.iter().map(|&s| s as f32));
        }
        for (value, gate) in mixed.iter_mut().zip(gates.iter().flatten()) {
            *value = (f64::from(*value) * sigmoid(*gate)) as f32;
        }
        mixed
    }

    /// The new token's keys and values of layer `l`, none if it has none of its own. `h`: `[d_model]`.
    fn keys_values(&self, l: usize, a: &Attention, h: &[f32]) -> (Vec<f32>, Vec<f32>) {
        if a.k_rows() == 0 {
            return (Vec::new(), Vec::new());
        }
        let k = self.project((l, 1), Some(T::KBias), h); // [n_kv_heads * head_dim]
        let mut values = match a.v_rows() {
            0 => k.clone(),
            _ => self.project((l, 2), Some(T::VBias), h), // [n_kv_heads * head_dim]
        };
        let mut keys = self.place_heads(a, (l, T::KNorm), k);
        if let Some(eps) = a.v_norm {
            let heads = values.chunks_exact(a.head_dim);
            values = heads
                .flat_map(|v| rms_norm(v, &vec![1.0; v.len()], eps))
                .collect();
        }
        if self.engine_precision {
            for x in keys.iter_mut().chain(&mut values) {
                *x = f16::from_f32(*x).to_f32();
            }
        }
        (keys, values)
    }

    /// Queries or keys of all heads, `[heads * head_dim]`, normalised and rotated to the current position.
    fn place_heads(&self, a: &Attention, norm: (usize, T), mut x: Vec<f32>) -> Vec<f32> {
        let after_rope = a.qk_norm.is_some_and(|n| n.after_rope);
        if !after_rope {
            x = self.norm_heads(a, norm, x);
        }
        for head in x.chunks_exact_mut(a.head_dim) {
            self.rotate(a, head);
        }
        match after_rope {
            true => self.norm_heads(a, norm, x),
            false => x,
        }
    }

    /// Queries or keys of all heads, `[heads * head_dim]`, after their norm, if they have one.
    fn norm_heads(&self, a: &Attention, (l, norm): (usize, T), x: Vec<f32>) -> Vec<f32> {
        let Some(n) = a.qk_norm else { return x };
        let gain = self.weights.gain(TensorId::Layer(l, norm));
        let span = match n.span {
            NormSpan::Head | NormSpan::OwnHead => a.head_dim,
            NormSpan::Row => x.len(),
        };
        // Heads with their own weights have them one after the other, others share them.
        let spans = x.chunks_exact(span).zip(gain.chunks_exact(span).cycle());
        spans
            .flat_map(|(x, gain)| norm_of(n.kind, x, gain, n.eps))
            .collect()
    }

    /// Rotates one head of Q or K, `[head_dim]`, to the current position.
    pub(super) fn rotate(&self, a: &Attention, head: &mut [f32]) {
        let Some(kind) = a.rope else { return };
        let rope = &self.network.ropes[kind];
        let half = rope.rotary_dim / 2;
        for (i, &frequency) in self.frequencies[kind].iter().enumerate() {
            let (a, b) = match rope.pairing {
                RopePairing::Interleaved => (2 * i, 2 * i + 1),
                RopePairing::HalfSplit => (i, i + half),
            };
            let (sin, cos) = (self.position as f64 * f64::from(frequency)).sin_cos();
            let magnitude = f64::from(rope.magnitude);
            let (sin, cos) = (magnitude * sin, magnitude * cos);
            let (x, y) = (f64::from(head[a]), f64::from(head[b]));
            head[a] = (x * cos - y * sin) as f32;
            head[b] = (x * sin + y * cos) as f32;
        }
    }
}

/// Leaves the queries in `q`, in which each head's gate follows its query, and returns the gates.
fn take_gates(q: &mut Vec<f32>, head_dim: usize) -> Vec<f32> {
    let heads: Vec<f32> = std::mem::take(q);
    let mut gates = Vec::new();
    for head in heads.chunks_exact(2 * head_dim) {
        let (query, gate) = head.split_at(head_dim);
        q.extend_from_slice(query);
        gates.extend_from_slice(gate);
    }
    gates
}

/// Probabilities of `scores`; the maximum is subtracted first so that no exponential overflows.
pub(super) fn softmax(mut scores: Vec<f64>) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for s in &mut scores {
        *s = (*s - max).exp();
        sum += *s;
    }
    for s in &mut scores {
        *s /= sum;
    }
    scores
}
