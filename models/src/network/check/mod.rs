//! Bounds on a description that was read from a file: everything computed from it later may rely on them.

mod mixer;
mod rope;
#[cfg(test)]
mod tests;

use std::path::Path;

use rope::check_rope;

use super::{Activation, Experts, Ffn, Layer, Network, Norm};
use crate::error::{ModelError, Result};
use crate::limits::{MAX_CONTEXT, MAX_DIMENSION, MAX_LAYERS, positive, size};
use crate::network::HOT_GRANULE;

/// More experts than any layer has.
const MAX_EXPERTS: u64 = 1 << 16;
/// More groups of experts than any layer has.
const MAX_GROUPS: usize = 64;
/// More kinds of rotation than any model has.
const MAX_ROPES: usize = 64;

impl Network {
    /// Checks that sizes are within bounds, that factors are finite, and that the fields agree with each other.
    ///
    /// # Errors
    /// The first wrong field, in the file at `path`.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        size(path, "layers", self.layers.len() as u64, MAX_LAYERS)?;
        size(path, "d_model", self.d_model as u64, MAX_DIMENSION)?;
        size(path, "vocab_size", self.vocab_size as u64, MAX_DIMENSION)?;
        size(
            path,
            "context_length",
            self.context_length as u64,
            MAX_CONTEXT,
        )?;
        positive(path, "embedding_scale", self.embedding_scale)?;
        if self.position_offset.is_some_and(|n| n as u64 > MAX_CONTEXT) {
            return wrong(path, "position_offset", "it is beyond every table");
        }
        positive(path, "head.scale", self.head.scale)?;
        positive(path, "head.softcap", self.head.softcap.unwrap_or(1.0))?;
        self.check_token_inputs(path)?;
        if self.ropes.len() > MAX_ROPES {
            return wrong(path, "ropes", "there are too many kinds");
        }
        self.ropes.iter().try_for_each(|r| check_rope(path, r))?;
        check_norm(path, "output_norm", Some(&self.output_norm))?;
        for (l, layer) in self.layers.iter().enumerate() {
            self.check_layer(path, layer)?;
            self.check_kv(path, l)?;
        }
        if !self.predictor_threshold.is_finite() {
            return wrong(path, "predictor_threshold", "it is not a number");
        }
        Ok(())
    }

    fn check_token_inputs(&self, path: &Path) -> Result<()> {
        let Some(inputs) = &self.token_inputs else {
            return match self.layers.iter().any(|layer| layer.input.is_some()) {
                true => wrong(path, "token_inputs", "a layer asks for them"),
                false => Ok(()),
            };
        };
        let all = (inputs.width as u64).saturating_mul(self.layers.len() as u64);
        size(path, "token_inputs.width", all, MAX_DIMENSION)?;
        positive(path, "token_inputs.table_scale", inputs.table_scale)?;
        let projection_scale = inputs.projection_scale;
        positive(path, "token_inputs.projection_scale", projection_scale)?;
        positive(path, "token_inputs.eps", inputs.eps)?;
        positive(path, "token_inputs.scale", inputs.scale).map(drop)
    }

    fn check_layer(&self, path: &Path, layer: &Layer) -> Result<()> {
        let (mixer, ffn) = (&layer.mixer, &layer.ffn);
        check_norm(path, "mixer.pre_norm", mixer.pre_norm.as_ref())?;
        check_post_norm(path, "mixer.post_norm", mixer.post_norm.as_ref())?;
        check_norm(path, "ffn.pre_norm", ffn.pre_norm.as_ref())?;
        check_post_norm(path, "ffn.post_norm", ffn.post_norm.as_ref())?;
        positive(path, "mixer.residual_scale", mixer.residual_scale)?;
        positive(path, "ffn.residual_scale", ffn.residual_scale)?;
        if ffn.body.predictor_before_layer && ffn.body.d_ff == 0 {
            return wrong(
                path,
                "predictor_before_layer",
                "there are no neurons to predict",
            );
        }
        let (hot, d_ff) = (ffn.body.hot, ffn.body.d_ff);
        if hot > 0
            && (hot >= d_ff || !hot.is_multiple_of(HOT_GRANULE) || ffn.body.experts.is_some())
        {
            return wrong(
                path,
                "ffn.hot",
                format!("{hot} of {d_ff} neurons cannot be hot"),
            );
        }
        if ffn.body.bias && ffn.body.gated {
            return wrong(path, "ffn.bias", "gated FFNs have none");
        }
        if let Some(input) = &layer.input {
            if input.pre_norm.is_some() {
                return wrong(path, "input.pre_norm", "its input is not normalised");
            }
            check_post_norm(path, "input.post_norm", input.post_norm.as_ref())?;
            positive(path, "input.residual_scale", input.residual_scale)?;
            check_activation(path, input.body.activation)?;
        }
        if ffn.body.experts.is_some() && layer.parallel {
            return wrong(path, "experts", "they are not beside attention");
        }
        match &ffn.body.experts {
            Some(experts) => check_experts(path, &ffn.body, experts)?,
            None => drop(size(path, "d_ff", ffn.body.d_ff as u64, MAX_DIMENSION)?),
        }
        check_activation(path, ffn.body.activation)?;
        self.check_mixer(path, &mixer.body)
    }
}

fn check_experts(path: &Path, ffn: &Ffn, experts: &Experts) -> Result<()> {
    let (count, router) = (experts.count, &experts.router);
    size(path, "experts.count", count as u64, MAX_EXPERTS)?;
    size(path, "experts.d_ff", experts.d_ff as u64, MAX_DIMENSION)?;
    let all = (experts.n_neurons() as u64).saturating_add(ffn.d_ff as u64);
    size(path, "neurons of all experts", all, u64::from(u32::MAX))?;
    if experts.used == 0 || experts.used > count {
        let problem = format!("{} of {count} cannot be chosen", experts.used);
        return wrong(path, "experts.used", problem);
    }
    if ffn.d_ff > MAX_DIMENSION as usize {
        return wrong(path, "d_ff", format!("{} neurons", ffn.d_ff));
    }
    if ffn.bias || experts.shared_gate && ffn.d_ff == 0 {
        return wrong(path, "experts", "what every token uses has no such part");
    }
    positive(path, "router.scale", router.scale)?;
    let Some(groups) = router.groups else {
        return Ok(());
    };
    let fits = groups.count > 0
        && count.is_multiple_of(groups.count)
        && (1..=groups.count).contains(&groups.used)
        && (1..=2).contains(&groups.counted)
        && groups.used * (count / groups.count) >= experts.used;
    match fits && groups.count <= MAX_GROUPS {
        true => Ok(()),
        false => wrong(
            path,
            "router.groups",
            format!("{groups:?} of {count} experts"),
        ),
    }
}

fn check_activation(path: &Path, activation: Activation) -> Result<()> {
    match activation {
        Activation::FatRelu { threshold } if !(threshold.is_finite() && threshold >= 0.0) => {
            wrong(path, "activation", "the threshold is no sensible number")
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            positive(path, "activation.alpha", alpha)?;
            positive(path, "activation.limit", limit).map(drop)
        }
        _ => Ok(()),
    }
}

fn wrong<T>(path: &Path, field: &str, problem: impl Into<String>) -> Result<T> {
    Err(ModelError::damaged(path, field, problem))
}

fn check_norm(path: &Path, field: &str, norm: Option<&Norm>) -> Result<()> {
    norm.map_or(Ok(()), |n| positive(path, field, n.eps).map(drop))
}

fn check_post_norm(path: &Path, field: &str, norm: Option<&Norm>) -> Result<()> {
    check_norm(path, field, norm)?;
    match norm {
        Some(norm) if norm.bias => wrong(path, field, "norms of outputs have no bias"),
        _ => Ok(()),
    }
}
