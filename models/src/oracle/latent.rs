//! Latent attention as its paper defines it: every head has keys and values of its own, made from the latents of all
//! positions. At the engine's precision, its matrices are multiplied by queries and results instead, whose roundings
//! are the engine's.

use half::f16;

use super::attention::softmax;
use super::weights::{self, dot};
use super::{Oracle, T, rms_norm};
use crate::network::{Attention, Latent};
use crate::tensor::TensorId;

impl Oracle {
    /// The results of all heads for the new token, `[n_heads * value_dim]`; `h`: `[d_model]`.
    pub(super) fn latent_attention(
        &mut self,
        l: usize,
        (a, latent): (&Attention, &Latent),
        h: &[f32],
    ) -> Vec<f32> {
        let mut q = self.latent_queries(l, latent, h);
        for head in q.chunks_exact_mut(a.query_dim()) {
            self.rotate(a, &mut head[latent.plain_dim..]);
        }
        let key = self.latent_key(l, (a, latent), h);
        self.past[l].keys.extend(key); // [position, head_dim]
        let keys = self.past[l].keys.chunks_exact(a.head_dim);
        let keys: Vec<&[f32]> = keys.collect();
        let weights = &self.weights.layers[l];
        let weights = weights.latent.as_ref().expect("it was read with the layer");
        let mut mixed = Vec::with_capacity(a.out_dim());
        for (head, query) in q.chunks_exact(a.query_dim()).enumerate() {
            let result = match self.engine_precision {
                true => self.absorbed((a, latent), weights, (head, query), &keys),
                false => expanded((a, latent), weights, (head, query), &keys),
            };
            mixed.extend(result);
        }
        mixed
    }

    /// The result of one head, `[value_dim]`, from its query, `[query_dim]`, and the keys of all positions,
    /// `[head_dim]` each.
    fn absorbed(
        &self,
        (a, latent): (&Attention, &Latent),
        weights: &weights::Latent,
        (head, query): (usize, &[f32]),
        keys: &[&[f32]],
    ) -> Vec<f32> {
        let (plain, rotated) = query.split_at(latent.plain_dim);
        let plain = self.input(&weights.k_up, plain);
        let rows = head * latent.rank..(head + 1) * latent.rank;
        let mut query: Vec<f32> = rows
            .map(|row| dot(weights.k_up.row(row), &plain) as f32)
            .collect();
        query.extend(rotated);
        let score = |key: &&[f32]| dot(&query, key) * f64::from(a.scale);
        let shares = softmax(keys.iter().map(score).collect());
        let mut sums = vec![0.0f64; latent.rank];
        for (key, share) in keys.iter().zip(shares) {
            for (sum, &c) in sums.iter_mut().zip(*key) {
                *sum += share * f64::from(c);
            }
        }
        let sums: Vec<f32> = sums.into_iter().map(|sum| sum as f32).collect();
        let sums = self.input(&weights.v_up, &sums);
        let rows = head * latent.value_dim..(head + 1) * latent.value_dim;
        rows.map(|row| dot(weights.v_up.row(row), &sums) as f32)
            .collect()
    }

    /// Queries of all heads before their rotation, `[n_heads * query_dim]`.
    fn latent_queries(&self, l: usize, latent: &Latent, h: &[f32]) -> Vec<f32> {
        let q = self.project((l, 0), None, h);
        let weights = self.weights.layers[l].latent.as_ref();
        match weights.and_then(|weights| weights.q.as_ref()) {
            None => q,
            Some(matrix) => {
                let gain = self.weights.gain(TensorId::Layer(l, T::QNorm));
                self.times(matrix, (l, None), &rms_norm(&q, gain, latent.eps))
            }
        }
    }

    /// The new token's latent and what all heads have of a rotated key, `[head_dim]`.
    fn latent_key(&self, l: usize, (a, latent): (&Attention, &Latent), h: &[f32]) -> Vec<f32> {
        let row = self.project((l, 1), None, h);
        let (latents, rotated) = row.split_at(latent.rank);
        let gain = self.weights.gain(TensorId::Layer(l, T::KNorm));
        let mut key = rms_norm(latents, gain, latent.eps);
        let mut rotated = rotated.to_vec();
        self.rotate(a, &mut rotated);
        key.extend(rotated);
        if self.engine_precision {
            for x in &mut key {
                *x = f16::from_f32(*x).to_f32();
            }
        }
        key
    }
}

/// The same with keys and values of the head itself.
fn expanded(
    (a, latent): (&Attention, &Latent),
    weights: &weights::Latent,
    (head, query): (usize, &[f32]),
    keys: &[&[f32]],
) -> Vec<f32> {
    let (plain, rotated) = query.split_at(latent.plain_dim);
    let rows = head * latent.rank..(head + 1) * latent.rank;
    let score = |key: &&[f32]| {
        let (latents, rotated_key) = key.split_at(latent.rank);
        let mut own = vec![0.0f64; latent.plain_dim];
        for (row, &c) in rows.clone().zip(latents) {
            for (sum, &w) in own.iter_mut().zip(weights.k_up.row(row)) {
                *sum += f64::from(w) * f64::from(c);
            }
        }
        let own = own.iter().zip(plain).map(|(k, &q)| k * f64::from(q));
        (own.sum::<f64>() + dot(rotated, rotated_key)) * f64::from(a.scale)
    };
    let shares = softmax(keys.iter().map(score).collect());
    let rows = head * latent.value_dim..(head + 1) * latent.value_dim;
    let result = rows.map(|row| {
        let row = weights.v_up.row(row);
        let values = keys.iter().map(|key| dot(row, &key[..latent.rank]));
        let weighted = values.zip(&shares).map(|(value, share)| value * share);
        weighted.sum::<f64>() as f32
    });
    result.collect()
}
