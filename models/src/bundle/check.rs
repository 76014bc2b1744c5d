//! Checking the metadata section: its checksum proves that it is what somebody wrote, not that it makes
//! sense. Everything computed from it later may rely on these bounds.

use std::path::Path;

use super::geometry::{FfnLayout, MAX_BUNDLES, MAX_NEURONS};
use super::meta::BundleMeta;
use crate::config::{Activation, ModelConfig, RopeScaling};
use crate::error::{ModelError, Result};
use crate::source::limits::{self, MAX_CONTEXT, MAX_DIMENSION};

/// Checks that sizes are within bounds and that the fields agree with each other.
///
/// # Errors
/// The first field that is wrong.
pub(super) fn check_meta(path: &Path, meta: &BundleMeta) -> Result<()> {
    let c = &meta.config;
    check_sizes(path, c)?;
    limits::check_config(path, c)?;
    check_constants(path, c)?;
    let wrong = |field: String, problem: &str| Err(ModelError::damaged(path, field, problem));
    if meta.layers.len() != c.n_layers || c.n_layers >= usize::from(u16::MAX) {
        return wrong("layers".into(), "layer count and layer formats disagree");
    }
    for (l, layer) in meta.layers.iter().enumerate() {
        let (g, field) = (&layer.ffn, format!("FFN of layer {l}"));
        if g.d_model != c.d_model {
            return wrong(field, "its width is not the model's");
        }
        let most = match g.layout {
            FfnLayout::Neuron => MAX_BUNDLES,
            FfnLayout::Cluster => MAX_NEURONS,
        };
        if g.neurons == 0 || g.neurons > most {
            return wrong(field, "its clusters have an impossible number of neurons");
        }
    }
    if let Some(predictors) = &meta.predictors {
        let sane = |rank: usize| (1..=MAX_DIMENSION as usize).contains(&rank);
        if predictors.len() != c.n_layers
            || !predictors
                .iter()
                .all(|p| sane(p.rank) && p.threshold.is_finite())
        {
            return wrong("predictors".into(), "there is not a sensible one per layer");
        }
    }
    if let Some(gates) = &meta.gates {
        let ascending =
            |q: &Vec<f32>| q.len() >= 2 && q.is_sorted() && q.iter().all(|v| v.is_finite());
        if gates.quantiles.len() != c.n_layers || !gates.quantiles.iter().all(ascending) {
            return wrong(
                "gates".into(),
                "there are no ascending sizes for each layer",
            );
        }
    }
    if c.tied_head && (meta.embedding != meta.head || meta.embedding_rows != meta.head_rows) {
        return wrong(
            "embedding".into(),
            "differs from the head that it is tied to",
        );
    }
    Ok(())
}

fn check_sizes(path: &Path, c: &ModelConfig) -> Result<()> {
    for (field, value, most) in [
        ("n_layers", c.n_layers, MAX_DIMENSION),
        ("d_model", c.d_model, MAX_DIMENSION),
        ("n_heads", c.n_heads, MAX_DIMENSION),
        ("n_kv_heads", c.n_kv_heads, MAX_DIMENSION),
        ("head_dim", c.head_dim, MAX_DIMENSION),
        ("d_ff", c.d_ff, MAX_DIMENSION),
        ("vocab_size", c.vocab_size, MAX_DIMENSION),
        ("context_length", c.context_length, MAX_CONTEXT),
        (
            "sliding_window",
            c.sliding_window.unwrap_or(1),
            u64::from(u32::MAX),
        ),
    ] {
        limits::size(path, field, value as u64, most)?;
    }
    Ok(())
}

fn check_constants(path: &Path, c: &ModelConfig) -> Result<()> {
    limits::positive(path, "rms_eps", c.rms_eps)?;
    limits::positive(path, "rope.theta", c.rope.theta)?;
    match &c.rope.scaling {
        // Factors are checked with their count.
        RopeScaling::None | RopeScaling::Factors(_) => {}
        RopeScaling::Linear { factor } => _ = limits::positive(path, "rope.scaling", *factor)?,
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            for v in [factor, low_freq_factor, high_freq_factor, original_context] {
                limits::positive(path, "rope.scaling", *v)?;
            }
        }
    }
    let threshold = match c.activation {
        Activation::FatRelu { threshold } => threshold,
        _ => 0.0,
    };
    if !(threshold.is_finite() && threshold >= 0.0 && c.predictor_threshold.is_finite()) {
        return Err(ModelError::damaged(
            path,
            "activation",
            "a threshold is no sensible number",
        ));
    }
    Ok(())
}
