//! Rotations from metadata, as each format has them.

mod gguf;
mod hf;

use super::metadata::Metadata;
use crate::error::Result;
use crate::network::{Rope, RopePairing, Temperature};

/// How an architecture reads its rotation.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// Pairs in GGUF files.
    pub(super) pairing: RopePairing,
    /// Pairs in checkpoints.
    pub(super) checkpoints: RopePairing,
    /// Whether GGUF files may have divisors in `rope_freqs.weight`.
    pub(super) freqs: bool,
    /// Whether GGUF files may have divisors in `rope_factors_long.weight` and `rope_factors_short.weight`.
    pub(super) long_short: bool,
    /// Whether a part of a head may be rotated.
    pub(super) partial: bool,
    /// Whether the architecture reads a temperature from the same object.
    pub(super) temperature: bool,
    /// Whether checkpoints may have an `alpha`, which makes the base larger.
    pub(super) alpha: bool,
    /// Whether checkpoints may leave the slowest pairs of a head unrotated ("proportional").
    pub(super) proportional: bool,
    /// Whether checkpoints must have an object for the rotation, without which transformers assumes one that scales.
    pub(super) required: bool,
}

impl Rules {
    pub(super) const fn new(pairing: RopePairing) -> Self {
        Self {
            pairing,
            checkpoints: RopePairing::HalfSplit,
            freqs: false,
            long_short: false,
            partial: false,
            temperature: false,
            alpha: false,
            proportional: false,
            required: false,
        }
    }
}

/// The rotation of all layers, or of those of one type if the checkpoint has one for each.
pub(super) fn read(
    m: &Metadata<'_>,
    head_dim: usize,
    rules: Rules,
    layer_type: Option<&str>,
) -> Result<Rope> {
    match m.is_gguf() {
        true => gguf::rotation(m, head_dim, rules),
        false => hf::rotation(m, head_dim, rules, layer_type),
    }
}

/// The rotation of layers with a sliding window, if they have their own: never changed for long contexts. `theta` is
/// the default.
pub(super) fn sliding(m: &Metadata<'_>, head_dim: usize, rules: Rules, theta: f32) -> Result<Rope> {
    let named = m.optional_positive("rope.freq_base_swa", "rope_local_base_freq")?;
    let theta = named.unwrap_or(theta);
    match m.is_gguf() {
        true => gguf::sliding(m, head_dim, rules, theta),
        false => hf::sliding(m, head_dim, rules, theta),
    }
}

/// The temperature of queries, if there is one.
pub(super) fn temperature(m: &Metadata<'_>) -> Result<Option<Temperature>> {
    if !m.is_gguf() {
        return hf::temperature(m);
    }
    let original_context = gguf::original_context(m)?;
    let beta = m.nonzero("attention.temperature_scale", "")?;
    Ok(beta.map(|beta| Temperature {
        beta,
        original_context,
    }))
}

/// What YaRN multiplies scores by where it does that instead of all by cosines and sines (DeepSeek).
pub(super) fn score_factor(m: &Metadata<'_>, rope: &mut Rope) -> Result<f32> {
    match m.is_gguf() {
        true => gguf::score_factor(m, rope),
        false => hf::score_factor(m, rope),
    }
}

fn yarn_magnitude(factor: f32, scale: f32) -> f64 {
    match factor > 1.0 {
        true => 0.1 * f64::from(scale) * f64::from(factor).ln() + 1.0,
        false => 1.0,
    }
}
