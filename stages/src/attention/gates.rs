//! Gates of the results of attention.

use super::Attention;
use crate::kernels::KernelTable;

impl Attention {
    /// Multiplies the results of this core's heads by the sigmoids of their gates, if they have any.
    pub fn gate(
        &mut self,
        kernels: &KernelTable,
        layer: usize,
        n_tokens: usize,
        (qkv, out): (&[f32], &mut [f32]), // [tokens, in_dim], [tokens, own columns]
    ) {
        let (start, own) = self.columns(layer);
        let gated = self.layers[layer].as_ref().map(|layer| &layer.network);
        let Some(a) = gated.filter(|a| a.output_gate && own > 0) else {
            return;
        };
        let factors = &mut self.spare[..own];
        let rows = qkv.chunks_exact(a.in_dim()).take(n_tokens);
        for (row, out) in rows.zip(out.chunks_exact_mut(own)) {
            kernels.sigmoid(&row[a.q_dim() + start..][..own], factors);
            for (out, factor) in out.iter_mut().zip(&*factors) {
                *out *= factor;
            }
        }
    }
}

/// Moves the gates, each of which follows its head's query, behind all queries; `spare` has room for both.
pub(super) fn gates_behind(q: &mut [f32], head_dim: usize, spare: &mut [f32]) {
    let before = &mut spare[..q.len()];
    before.copy_from_slice(q);
    let (queries, gates) = q.split_at_mut(before.len() / 2);
    let to = queries
        .chunks_exact_mut(head_dim)
        .zip(gates.chunks_exact_mut(head_dim));
    for (head, (query, gate)) in before.chunks_exact(2 * head_dim).zip(to) {
        query.copy_from_slice(&head[..head_dim]);
        gate.copy_from_slice(&head[head_dim..]);
    }
}
