//! Bounds on a description that was read from a file: everything computed from it later may rely on them.

use std::path::Path;

use super::{
    Activation, Attention, DeltaNet, KvOrigin, Layer, Mixer, Network, Norm, NormSpan, Rope,
    RopeScaling, ShortConv,
};
use crate::error::{ModelError, Result};
use crate::source::limits::{MAX_CONTEXT, MAX_DIMENSION, MAX_LAYERS, positive, size};

/// More kinds of rotation than any model has.
const MAX_ROPES: usize = 64;
/// Longer than the convolutions of any model.
const MAX_KERNEL: usize = 64;

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
        size(path, "d_ff", ffn.body.d_ff as u64, MAX_DIMENSION)?;
        check_activation(path, ffn.body.activation)?;
        match &mixer.body {
            Mixer::Attention(attention) => self.check_attention(path, attention),
            Mixer::ShortConv(conv) => check_short_conv(path, conv),
            Mixer::DeltaNet(net) => check_delta_net(path, net),
        }
    }

    /// A layer that attends over another's keys and values finds them: each core has stored those that it reads,
    /// because it has the same heads in both layers.
    fn check_kv(&self, path: &Path, layer: usize) -> Result<()> {
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

fn check_activation(path: &Path, activation: Activation) -> Result<()> {
    match activation {
        Activation::FatRelu { threshold } if !(threshold.is_finite() && threshold >= 0.0) => {
            wrong(path, "activation", "the threshold is no sensible number")
        }
        _ => Ok(()),
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

fn wrong<T>(path: &Path, field: &str, problem: impl Into<String>) -> Result<T> {
    Err(ModelError::damaged(path, field, problem))
}

fn wrong_rotary_dim<T>(path: &Path, rotary_dim: usize, head_dim: usize) -> Result<T> {
    let problem = format!("{rotary_dim} is not an even number up to the head's {head_dim}");
    wrong(path, "rotary dimension", problem)
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

fn check_rope(path: &Path, rope: &Rope) -> Result<()> {
    positive(path, "rope.theta", rope.theta)?;
    positive(path, "rope.magnitude", rope.magnitude)?;
    let dim = rope.rotary_dim;
    if !dim.is_multiple_of(2) || dim == 0 || dim as u64 > MAX_DIMENSION {
        return wrong(
            path,
            "rotary dimension",
            format!("{dim} is not an even number"),
        );
    }
    let all = |values: &[f32]| {
        let each = values.iter().map(|&v| positive(path, "rope.scaling", v));
        each.collect::<Result<Vec<_>>>().map(drop)
    };
    let divisors = |values: &[f32]| {
        if values.len() != dim / 2 {
            let problem = format!("{} factors for {} frequencies", values.len(), dim / 2);
            return wrong(path, "rope.scaling", problem);
        }
        all(values)
    };
    match &rope.scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => all(&[*factor]),
        RopeScaling::Factors(factors) => divisors(factors),
        RopeScaling::LongShort {
            short,
            long,
            original_context,
        } => {
            size(path, "rope.scaling", *original_context as u64, MAX_CONTEXT)?;
            divisors(short).and_then(|()| divisors(long))
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            if high_freq_factor <= low_freq_factor {
                let problem = format!("{high_freq_factor} is not above {low_freq_factor}");
                return wrong(path, "rope scaling high_freq_factor", problem);
            }
            all(&[
                *factor,
                *low_freq_factor,
                *high_freq_factor,
                *original_context,
            ])
        }
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
        } => {
            if rope.theta <= 1.0 {
                return wrong(path, "rope.theta", "it must be above 1");
            }
            all(&[*factor, *original_context, *beta_fast, *beta_slow])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{
        Block, InputMixer, KeySharing, NormKind, QkNorm, RopePairing, Temperature, TokenInputs,
        Uniform,
    };

    fn network() -> Network {
        Uniform {
            name: "tiny".into(),
            n_layers: 2,
            d_model: 64,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 16,
            d_ff: 96,
            vocab_size: 264,
            context_length: 128,
            rms_eps: 1e-5,
            rope: Rope::plain(1e4, 16, RopePairing::HalfSplit),
            window: Some(8),
            activation: Activation::Silu,
            qkv_bias: true,
            tied_head: true,
            predictor_threshold: 0.0,
        }
        .network()
    }

    fn inputs(width: usize) -> Option<TokenInputs> {
        Some(TokenInputs {
            width,
            table_scale: 2.0,
            projection_scale: 0.5,
            eps: 1e-6,
            scale: 0.7,
        })
    }

    fn input_mixer() -> Block<InputMixer> {
        Block {
            pre_norm: None,
            body: InputMixer {
                activation: Activation::GeluTanh,
            },
            post_norm: None,
            residual_scale: 1.0,
        }
    }

    /// The check's error for the network with one change.
    fn changed(change: impl FnOnce(&mut Network)) -> Option<String> {
        let mut network = network();
        change(&mut network);
        let checked = network.check(Path::new("x"));
        checked.err().map(|e| e.to_string())
    }

    fn attention(network: &mut Network) -> &mut Attention {
        network.attentions_mut().nth(1).expect("attention")
    }

    /// Gives the second layer a short convolution.
    fn convolve(network: &mut Network, channels: usize, kernel: usize) {
        let conv = ShortConv { channels, kernel };
        network.layers[1].mixer.body = Mixer::ShortConv(conv);
    }

    /// Gives the second layer a delta net with one change.
    fn remember(network: &mut Network, change: fn(&mut DeltaNet)) {
        let mut net = DeltaNet {
            n_key_heads: 2,
            n_value_heads: 4,
            key_dim: 16,
            value_dim: 8,
            kernel: 4,
            sharing: KeySharing::Grouped,
            eps: 1e-6,
        };
        change(&mut net);
        network.layers[1].mixer.body = Mixer::DeltaNet(net);
    }

    fn scaled(scaling: RopeScaling) -> Option<String> {
        changed(|n| n.ropes[0].scaling = scaling)
    }

    #[test]
    fn a_sound_network_passes() {
        assert_eq!(changed(|_| ()), None);
        let normed = |n: &mut Network| {
            let norm = QkNorm {
                kind: NormKind::Rms,
                span: NormSpan::Row,
                eps: 1e-6,
                after_rope: false,
            };
            attention(n).qk_norm = Some(norm);
            attention(n).rope = None;
            n.layers[1].mixer.pre_norm = None;
            attention(n).kv = KvOrigin::Layer(0);
            n.token_inputs = inputs(8);
            n.layers[1].input = Some(input_mixer());
        };
        assert_eq!(changed(normed), None);
        assert_eq!(changed(|n| convolve(n, 64, 3)), None);
        assert_eq!(changed(|n| remember(n, |_| ())), None);
    }

    type Change = fn(&mut Network);

    /// Each change makes a field wrong, which is named.
    fn all_are_named(cases: &[(&str, Change)]) {
        for (field, change) in cases {
            let message = changed(change).expect(field);
            assert!(message.contains(&format!(" {field}: ")), "{message}");
        }
    }

    #[test]
    fn keys_and_inputs_that_are_not_there_are_named() {
        let cases: [(&str, Change); 7] = [
            ("token_inputs", |n| n.layers[0].input = Some(input_mixer())),
            ("token_inputs.width", |n| n.token_inputs = inputs(1 << 24)),
            ("input.pre_norm", |n| {
                n.token_inputs = inputs(8);
                let pre_norm = Some(n.output_norm);
                let mixer = input_mixer();
                n.layers[0].input = Some(Block { pre_norm, ..mixer });
            }),
            ("attention.v_norm", |n| {
                attention(n).v_norm = Some(-1.0)
            }),
            ("attention.kv", |n| {
                attention(n).kv = KvOrigin::Layer(1)
            }),
            ("attention.kv", |n| {
                n.layers.push(n.layers[0].clone());
                attention(n).kv = KvOrigin::Layer(0);
                let last = n.layers[2].mixer.body.attention_mut();
                last.expect("attention").kv = KvOrigin::Layer(1);
            }),
            ("attention.kv", |n| {
                attention(n).kv = KvOrigin::Layer(0);
                attention(n).window = None;
            }),
        ];
        all_are_named(&cases);
    }

    #[test]
    fn impossible_sizes_and_factors_are_named() {
        let cases: [(&str, Change); 38] = [
            ("layers", |n| n.layers.clear()),
            ("layers", |n| {
                n.layers = vec![n.layers[0].clone(); usize::from(u16::MAX)]
            }),
            ("d_model", |n| n.d_model = 0),
            ("vocab_size", |n| n.vocab_size = usize::MAX),
            ("context_length", |n| n.context_length = 0),
            ("embedding_scale", |n| n.embedding_scale = f32::NAN),
            ("head.scale", |n| n.head.scale = 0.0),
            ("head.softcap", |n| n.head.softcap = Some(-1.0)),
            ("ropes", |n| n.ropes = vec![n.ropes[0].clone(); 65]),
            ("rope.theta", |n| n.ropes[0].theta = f32::INFINITY),
            ("rope.magnitude", |n| n.ropes[0].magnitude = 0.0),
            ("rotary dimension", |n| n.ropes[0].rotary_dim = 15),
            ("rotary dimension", |n| n.ropes[0].rotary_dim = 18),
            ("output_norm", |n| n.output_norm.eps = 0.0),
            ("position_offset", |n| n.position_offset = Some(usize::MAX)),
            ("ffn.bias", |n| n.layers[1].ffn.body.bias = true),
            ("ffn.post_norm", |n| {
                let norm = n.output_norm;
                n.layers[1].ffn.post_norm = Some(Norm { bias: true, ..norm });
            }),
            ("n_heads", |n| attention(n).n_heads = 0),
            ("attention heads", |n| attention(n).n_kv_heads = 3),
            ("head_dim", |n| attention(n).head_dim = 1 << 25),
            ("attention.rope", |n| attention(n).rope = Some(1)),
            ("attention.qk_norm", |n| {
                let norm = QkNorm {
                    kind: NormKind::Rms,
                    span: NormSpan::Row,
                    eps: 1e-6,
                    after_rope: true,
                };
                attention(n).qk_norm = Some(norm);
            }),
            ("attention.window", |n| attention(n).window = Some(0)),
            ("attention.scale", |n| attention(n).scale = -1.0),
            ("attention.softcap", |n| {
                attention(n).softcap = Some(0.0);
            }),
            ("ffn.residual_scale", |n| {
                n.layers[1].ffn.residual_scale = 0.0
            }),
            ("short_conv.channels", |n| convolve(n, 0, 3)),
            ("convolution kernel", |n| convolve(n, 64, 1)),
            ("convolution kernel", |n| convolve(n, 64, 65)),
            ("delta_net.n_key_heads", |n| {
                remember(n, |net| net.n_key_heads = 0)
            }),
            ("delta_net.key_dim", |n| remember(n, |net| net.key_dim = 0)),
            ("delta_net.values", |n| {
                remember(n, |net| net.value_dim = 1 << 24)
            }),
            ("delta_net heads", |n| {
                remember(n, |net| net.n_key_heads = 3)
            }),
            ("delta_net.eps", |n| remember(n, |net| net.eps = 0.0)),
            ("convolution kernel", |n| remember(n, |net| net.kernel = 1)),
            ("d_ff", |n| n.layers[1].ffn.body.d_ff = 0),
            ("activation", |n| {
                n.layers[1].ffn.body.activation = Activation::FatRelu { threshold: -1.0 };
            }),
            ("attention.temperature", |n| {
                let temperature = Temperature {
                    beta: 0.1,
                    original_context: 0,
                };
                attention(n).temperature = Some(temperature);
            }),
        ];
        all_are_named(&cases);
    }

    #[test]
    fn impossible_scaling_is_refused() {
        let yarn = |original_context| RopeScaling::Yarn {
            factor: 4.0,
            original_context,
            beta_fast: 32.0,
            beta_slow: 1.0,
        };
        assert_eq!(scaled(yarn(40.0)), None);
        assert!(scaled(yarn(0.0)).is_some());
        assert!(scaled(RopeScaling::Linear { factor: 0.0 }).is_some());
        assert!(scaled(RopeScaling::Factors(vec![1.0; 7])).is_some());
        let long_short = |len| RopeScaling::LongShort {
            short: vec![1.0; 8],
            long: vec![1.0; len],
            original_context: 24,
        };
        assert_eq!(scaled(long_short(8)), None);
        assert!(scaled(long_short(9)).is_some());
    }
}
