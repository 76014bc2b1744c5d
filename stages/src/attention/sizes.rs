//! How large the buffers of attention are.

use forebay_models::network::{Network, NormSpan};

/// Elements of the largest head.
pub(super) fn widest_head(network: &Network) -> usize {
    let heads = network.attentions().map(|a| a.head_dim);
    heads.max().unwrap_or(0)
}

/// Elements of the values of all heads of the layer that has the most.
pub(super) fn widest_values(network: &Network) -> usize {
    let values = network.attentions().map(|a| a.kv_dim());
    values.max().unwrap_or(0)
}

/// Elements of the longest row that a norm of queries or keys spans, or of queries with their gates.
pub(super) fn widest_spare(network: &Network) -> usize {
    let rows = network
        .attentions()
        .map(|a| match a.qk_norm.map(|norm| norm.span) {
            _ if a.output_gate => a.q_rows(),
            _ if a.latent.is_some() => a.value_dim(),
            Some(NormSpan::Row) => a.q_dim(),
            Some(NormSpan::Head | NormSpan::OwnHead) => a.head_dim,
            None => 0,
        });
    rows.max().unwrap_or(0)
}
