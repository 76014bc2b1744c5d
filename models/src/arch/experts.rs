//! Experts as most architectures have them, read from metadata.

use super::metadata::Metadata;
use super::neutral;
use crate::error::Result;
use crate::network::{Experts, Groups, Network, Router, Scores};

const COUNT: (&str, &str) = ("expert_count", "num_experts");
const USED: (&str, &str) = ("expert_used_count", "num_experts_per_tok");
const WIDTH: (&str, &str) = ("expert_feed_forward_length", "moe_intermediate_size");
const SHARED_WIDTH: (&str, &str) = (
    "expert_shared_feed_forward_length",
    "shared_expert_intermediate_size",
);
const GATING: (&str, &str) = ("expert_gating_func", "scoring_func");
const GROUPS: (&str, &str) = ("expert_group_count", "n_group");
const USED_GROUPS: (&str, &str) = ("expert_group_used_count", "topk_group");
const SCALE: (&str, &str) = ("expert_weights_scale", "routed_scaling_factor");
const NORMALISED: (&str, &str) = ("expert_weights_norm", "norm_topk_prob");

/// A router with softmax over all experts, and nothing else.
pub(super) const SOFTMAX: Router = Router {
    before_layer: false,
    scores: Scores::Softmax,
    bias: false,
    selection_bias: false,
    groups: None,
    normalised: false,
    scale: 1.0,
};

/// The same with weights that are divided by their sum.
pub(super) const NORMALISED_SOFTMAX: Router = Router {
    normalised: true,
    ..SOFTMAX
};

/// Number of experts; 0 if the metadata name none.
pub(super) fn count(m: &Metadata<'_>) -> Result<usize> {
    let count = m
        .fields()
        .optional_u64(if m.is_gguf() { COUNT.0 } else { COUNT.1 })?;
    match count {
        None | Some(0) => Ok(0),
        Some(_) => m.size(COUNT.0, COUNT.1),
    }
}

/// Neurons of an expert, if the metadata name them.
pub(super) fn width(m: &Metadata<'_>) -> Result<Option<usize>> {
    m.optional_size(WIDTH.0, WIDTH.1)
}

/// Gives all layers, except those that are `dense`, experts in place of their FFN. Their width is the metadata's, or
/// that of the FFN.
pub(super) fn replace_ffns(
    m: &Metadata<'_>,
    network: &mut Network,
    router: &Router,
    dense: impl Fn(usize) -> bool,
) -> Result<()> {
    refuse_unread_groups(m)?;
    let (count, used) = (m.size(COUNT.0, COUNT.1)?, m.size(USED.0, USED.1)?);
    let width = width(m)?;
    for (l, layer) in network.layers.iter_mut().enumerate() {
        if dense(l) {
            continue;
        }
        let ffn = &mut layer.ffn.body;
        let d_ff = width.unwrap_or(ffn.d_ff);
        ffn.d_ff = 0;
        ffn.experts = Some(Experts {
            count,
            used,
            d_ff,
            bias: false,
            router: router.clone(),
            shared_gate: false,
        });
    }
    Ok(())
}

/// Gives each of the experts that a token uses its part of this many neurons.
pub(super) fn divide(network: &mut Network, d_ff: usize) {
    for layer in &mut network.layers {
        if let Some(experts) = &mut layer.ffn.body.experts {
            experts.d_ff = d_ff / experts.used;
        }
    }
}

/// Gives the layers with experts this many neurons that every token uses.
pub(super) fn share(network: &mut Network, d_ff: usize, gated: bool) {
    for layer in &mut network.layers {
        let ffn = &mut layer.ffn.body;
        if let Some(experts) = &mut ffn.experts {
            (ffn.d_ff, experts.shared_gate) = (d_ff, gated);
        }
    }
}

/// Gives the experts biases.
pub(super) fn bias(network: &mut Network) {
    for layer in &mut network.layers {
        if let Some(experts) = &mut layer.ffn.body.experts {
            experts.bias = true;
        }
    }
}

/// Gives the layers with experts as many neurons that every token uses as the number of shared experts says, each as
/// wide as the others.
pub(super) fn share_as_many(m: &Metadata<'_>, network: &mut Network) -> Result<()> {
    const COUNT: (&str, &str) = ("expert_shared_count", "n_shared_experts");
    let n = m.optional_size(COUNT.0, COUNT.1)?.unwrap_or(0);
    let of_layer = (0..network.n_layers()).find_map(|l| Some(network.experts(l)?.d_ff));
    share(network, n.saturating_mul(of_layer.unwrap_or(0)), false);
    Ok(())
}

/// Width of the expert that every token uses; 0 if there is none.
pub(super) fn shared_width(m: &Metadata<'_>) -> Result<usize> {
    Ok(m.optional_size(SHARED_WIDTH.0, SHARED_WIDTH.1)?
        .unwrap_or(0))
}

/// The layers whose FFN is dense by Qwen's fields: all but every `decoder_sparse_step`th, and those of
/// `mlp_only_layers`.
pub(super) fn dense_layers(m: &Metadata<'_>, n: usize) -> Result<Vec<bool>> {
    if m.is_gguf() {
        return Ok(vec![false; n]);
    }
    let step = m.optional_size("", "decoder_sparse_step")?.unwrap_or(1);
    let listed = m.fields().optional_array("mlp_only_layers")?;
    let listed = listed.map_or(&[][..], Vec::as_slice);
    let is_listed = |l: usize| listed.iter().any(|v| v.as_u64() == Some(l as u64));
    Ok((0..n)
        .map(|l| (l + 1) % step != 0 || is_listed(l))
        .collect())
}

/// What the metadata say about a router whose weights are normalised unless they say otherwise.
pub(super) fn router(m: &Metadata<'_>, assumed: Router) -> Result<Router> {
    let mut router = assumed;
    let normalised = if m.is_gguf() {
        NORMALISED.0
    } else {
        NORMALISED.1
    };
    router.normalised = m
        .fields()
        .optional_bool(normalised)?
        .unwrap_or(router.normalised);
    router.scale = m.nonzero(SCALE.0, SCALE.1)?.unwrap_or(router.scale);
    // llama.cpp chooses groups in all architectures.
    if m.is_gguf() {
        router.groups = groups(m)?;
    }
    router.scores = scores(m, router.scores)?;
    Ok(router)
}

/// The same with the groups of which some are chosen before the experts.
pub(super) fn router_of_groups(m: &Metadata<'_>, assumed: Router) -> Result<Router> {
    Ok(Router {
        groups: groups(m)?,
        ..router(m, assumed)?
    })
}

fn groups(m: &Metadata<'_>) -> Result<Option<Groups>> {
    let count = m.optional_size(GROUPS.0, GROUPS.1)?;
    let used = m.optional_size(USED_GROUPS.0, USED_GROUPS.1)?;
    Ok(match (count, used) {
        (Some(count), Some(used)) if count > 1 => Some(Groups {
            count,
            used,
            counted: 2,
        }),
        _ => None,
    })
}

/// transformers chooses no groups in an architecture that did not read their number.
fn refuse_unread_groups(m: &Metadata<'_>) -> Result<()> {
    let count = m.fields().unasked(GROUPS.1).filter(|_| !m.is_gguf());
    match count.filter(|&v| v.as_u64().is_none_or(|n| n > 1)) {
        None => Ok(()),
        Some(count) => {
            let remedy = "experts of this architecture are chosen without groups: remove the field";
            Err(m.unsupported(GROUPS, neutral::describe(count), remedy))
        }
    }
}

/// How logits become scores, by the number that GGUF files have for it. transformers does not read the word that
/// checkpoints have.
fn scores(m: &Metadata<'_>, assumed: Scores) -> Result<Scores> {
    if !m.is_gguf() {
        let own = match assumed {
            Scores::Sigmoid => "sigmoid",
            Scores::Softmax | Scores::SoftmaxOfChosen => "softmax",
        };
        let other = m.optional_str(GATING.0, GATING.1)?.filter(|&v| v != own);
        return match other {
            None => Ok(assumed),
            Some(other) => {
                let remedy = format!("{own:?} is what this architecture has");
                Err(m.unsupported(GATING, format!("{other:?}"), &remedy))
            }
        };
    }
    let remedy = "softmax and sigmoid are";
    match m.fields().optional_u64(GATING.0)? {
        None | Some(0) => Ok(assumed),
        Some(1) => Ok(Scores::Softmax),
        Some(2) => Ok(Scores::Sigmoid),
        Some(3) => Ok(Scores::SoftmaxOfChosen),
        Some(other) => Err(m.unsupported(GATING, other.to_string(), remedy)),
    }
}
