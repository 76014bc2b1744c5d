//! Bounds on what mixes tokens: attention, convolutions and delta nets.

use std::path::Path;

use super::wrong;
use crate::error::Result;
use crate::limits::{MAX_CONTEXT, MAX_DIMENSION, positive, size};
use crate::network::{Attention, DeltaNet, KvOrigin, Mixer, Network, NormSpan, ShortConv};

/// Longer than the convolutions of any model.
const MAX_KERNEL: usize = 64;

impl Network {
    pub(super) fn check_mixer(&self, path: &Path, mixer: &Mixer) -> Result<()> {
        match mixer {
            Mixer::Attention(attention) => self.check_attention(path, attention),
            Mixer::ShortConv(conv) => check_short_conv(path, conv),
            Mixer::DeltaNet(net) => check_delta_net(path, net),
        }
    }

    /// A layer that attends over another's keys and values finds them: each core has stored those that it reads,
    /// because it has the same heads in both layers.
    pub(super) fn check_kv(&self, path: &Path, layer: usize) -> Result<()> {
        let field = "attention.kv";
        let Some(a) = self.attention(layer) else {
            return Ok(());
        };
        let KvOrigin::Layer(origin) = a.kv else {
            return Ok(());
        };
        let earlier = self.layers[..layer].get(origin);
        let keys = earlier.and_then(|l| l.mixer.body.attention());
        let Some(keys) = keys.filter(|keys| keys.k_rows() > 0) else {
            let problem = format!("layer {origin} is no earlier layer with keys of its own");
            return wrong(path, field, problem);
        };
        let seen = |a: &Attention| (a.n_heads, a.n_kv_heads, a.head_dim, a.window);
        if seen(a) != seen(keys) {
            let problem =
                format!("heads or window of layer {layer} are not those of layer {origin}");
            return wrong(path, field, problem);
        }
        Ok(())
    }

    fn check_attention(&self, path: &Path, a: &Attention) -> Result<()> {
        size(path, "n_heads", a.n_heads as u64, MAX_DIMENSION)?;
        size(path, "n_kv_heads", a.n_kv_heads as u64, MAX_DIMENSION)?;
        size(path, "head_dim", a.head_dim as u64, MAX_DIMENSION)?;
        if !a.n_heads.is_multiple_of(a.n_kv_heads) {
            let problem = format!(
                "{} query heads cannot share {} key/value heads evenly",
                a.n_heads, a.n_kv_heads
            );
            return wrong(path, "attention heads", problem);
        }
        if let Some(rope) = a.rope {
            let Some(rope) = self.ropes.get(rope) else {
                return wrong(path, "attention.rope", "there is no such rotation");
            };
            if rope.rotary_dim > a.head_dim {
                return wrong_rotary_dim(path, rope.rotary_dim, a.head_dim);
            }
        }
        if let Some(norm) = a.qk_norm {
            positive(path, "attention.qk_norm", norm.eps)?;
            if norm.after_rope && norm.span == NormSpan::Row {
                // Cores rotate their own heads only.
                return wrong(
                    path,
                    "attention.qk_norm",
                    "it spans rotated heads of all cores",
                );
            }
        }
        self.check_latent(path, a)?;
        positive(path, "attention.v_norm", a.v_norm.unwrap_or(1.0))?;
        positive(path, "attention.scale", a.scale)?;
        positive(path, "attention.softcap", a.softcap.unwrap_or(1.0))?;
        if let Some(window) = a.window {
            size(path, "attention.window", window as u64, u64::from(u32::MAX))?;
        }
        if let Some(temperature) = a.temperature {
            positive(path, "attention.temperature", temperature.beta)?;
            let positions = temperature.original_context as u64;
            size(path, "attention.temperature", positions, MAX_CONTEXT)?;
        }
        Ok(())
    }
}

impl Network {
    /// Latent attention is that of one key/value head, without what has not been seen together with it.
    fn check_latent(&self, path: &Path, a: &Attention) -> Result<()> {
        let Some(latent) = &a.latent else {
            return Ok(());
        };
        let sizes = [latent.rank, latent.plain_dim, latent.value_dim];
        let sizes = sizes.into_iter().chain(latent.query_rank);
        for n in sizes.chain([a.in_dim(), a.mixed_dim(), a.out_dim()]) {
            size(path, "attention.latent", n as u64, MAX_DIMENSION)?;
        }
        positive(path, "attention.latent", latent.eps)?;
        let rotary_dim = a.rope.map(|rope| self.ropes[rope].rotary_dim);
        if latent.rank.checked_add(rotary_dim.unwrap_or(0)) != Some(a.head_dim) {
            let problem = format!("{rotary_dim:?} rotated elements after {}", latent.rank);
            return wrong(path, "attention.latent", problem);
        }
        let plain = a.n_kv_heads == 1 && a.kv == KvOrigin::KeysAlone && a.v_norm.is_none();
        if !plain || a.qkv_bias || a.output_gate || a.qk_norm.is_some() {
            let problem = "it has one key/value head, and no biases, gates or other norms";
            return wrong(path, "attention.latent", problem);
        }
        Ok(())
    }
}

fn check_short_conv(path: &Path, conv: &ShortConv) -> Result<()> {
    size(
        path,
        "short_conv.channels",
        conv.channels as u64,
        MAX_DIMENSION,
    )?;
    check_kernel(path, conv.kernel)
}

fn check_delta_net(path: &Path, net: &DeltaNet) -> Result<()> {
    let (keys, values) = (net.n_key_heads as u64, net.n_value_heads as u64);
    size(path, "delta_net.n_key_heads", keys, MAX_DIMENSION)?;
    size(path, "delta_net.n_value_heads", values, MAX_DIMENSION)?;
    size(path, "delta_net.key_dim", net.key_dim as u64, MAX_DIMENSION)?;
    let value_dim = net.value_dim as u64;
    size(path, "delta_net.value_dim", value_dim, MAX_DIMENSION)?;
    // So that the elements of a state can be counted.
    size(path, "delta_net.keys", net.keys_dim() as u64, MAX_DIMENSION)?;
    let all_values = net.values_dim() as u64;
    size(path, "delta_net.values", all_values, MAX_DIMENSION)?;
    if !values.is_multiple_of(keys) {
        let problem = format!("{values} value heads cannot share {keys} key heads evenly");
        return wrong(path, "delta_net heads", problem);
    }
    positive(path, "delta_net.eps", net.eps)?;
    check_kernel(path, net.kernel)
}

/// A convolution over a state: it sees at least one earlier position.
fn check_kernel(path: &Path, kernel: usize) -> Result<()> {
    match (2..=MAX_KERNEL).contains(&kernel) {
        true => Ok(()),
        false => {
            let problem = format!("{kernel} is not between 2 and {MAX_KERNEL}");
            wrong(path, "convolution kernel", problem)
        }
    }
}

fn wrong_rotary_dim<T>(path: &Path, rotary_dim: usize, head_dim: usize) -> Result<T> {
    let problem = format!("{rotary_dim} is not an even number up to the head's {head_dim}");
    wrong(path, "rotary dimension", problem)
}
