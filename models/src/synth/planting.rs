//! What is planted where, and how strongly: see [the module](super) for the idea.

use super::block::{AMPLITUDE, INTEGERS_DEVIATION, LEN};
use super::random::{Stream, normal_quantile};
use crate::error::{ModelError, Result};
use crate::network::{Attention, Network, RopePairing};

/// The parameters.
///
/// Measured with the values of [`Planting::default`] by `models/tests/synth.rs`, 500 random tokens, the first half not
/// counted, with an LRU cache of half of a layer's neurons:
///
/// | shape | density (minimum, maximum of a token) | overlap | recall at | misses, P99 |
/// |---|---|---|---|---|
/// | turbosparse-mistral-7b | 10.2% (7, 18) | 57% | 99.6% at 1.17 | 3.1%, 12% (layer 0: 3.5%, 14%; 31: 2.6%, 11%) |
/// | llama2-7b-relu, layers 0 and 1 | 10.3% (7, 20) | 56% | 99.6% at 1.17 | 3.5%, 15% |
/// | tiny-sparse (4 layers, 300 tokens) | 9.8% (5, 21) | 54% | 96% at 1.17 | 3.6%, 25% |
///
/// PowerInfer-2 reports 10%, and misses of 3.5%, P99 18.9%. The hottest fifth of the neurons accounts for 77% of the
/// activations. In the first ten tokens of a sequence, one and a half times as many neurons are active, since
/// attention's mean is over fewer tokens.
///
/// Of models with experts, `forebay synth` measures over 256 random tokens (parts of a token's experts that the one
/// before used, too, by layer, and the one 1, 2, 4, 8 and 16 before, in the mean; the part of a layer's top 4, 8, 16
/// and 32; how many a layer's router names by the stream before the FFN before; hits of LRU with 12.5, 25 and 50% of
/// them):
///
/// | shape | shared, of layers 0, 1, middle, last | of all | top | foreseen: second layer, middle | LRU |
/// |---|---|---|---|---|---|
/// | qwen3-30b-a3b, 6 layers | 8, 20, 45, 15% | 29, 27, 25, 24, 23% | 22, 36, 54, 74% | 82, 87% | 42, 64, 89% |
/// | smallthinker-4b, 12 layers | 17, 29, 51, 25% | 44, 40, 35, 31, 32% | 44, 68, 91% | 100, 100% | 44, 62, 88% |
/// | mixtral-8x7b, 2 layers | 25, 28% | 27, 27, 26, 23, 30% | 57% | 81% | 0, 26, 51% |
/// | tiny-experts, 8 layers | 23, 30, 48, 30% | 44, 43, 42, 40, 38% | 60, 87% | 84, 89% | 3, 47, 82% |
///
/// Published of Qwen3-30B with 6 of its 128 experts: 7, 23, 40, 16%; 38, 29, 28, 27, 28%; 29, 44, 64, 86%; 89%; 57, 80,
/// 96%. The first two layers and the last, which differ from the others, are half of six. SmallThinker's routers see
/// the stream before attention, so all but an FFN's part of what they will see is there a layer ahead: they foresee
/// nearly everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Planting {
    /// Mean share of neurons whose gate is above 0, `0.005..=0.5`.
    pub density: f64,
    /// How unequal the neurons are: standard deviation of their thresholds, in units of the standard deviation of the
    /// sums that are compared with them. 0 makes all equal.
    pub skew: f64,
    /// Variance of the slowly varying part of the residual stream relative to that of the token's own part: it makes
    /// consecutive tokens activate the same neurons.
    pub context: f64,
    /// Standard deviation of the logarithm of a token's strength: some tokens activate far more neurons
    /// than others, which makes the tail of the cache's misses.
    pub token_spread: f64,
    /// Strength of the constant direction, relative to 1 for the token's part.
    pub constant: f64,
    /// Attention's score for the same position above that for distant ones; higher narrows the window.
    pub attention_peak: f64,
    /// Norm of an FFN's contribution relative to that of the residual stream; structure survives while it is small.
    pub ffn_share: f64,
    /// How far predictors lower a neuron's threshold, in the units of `skew`: recall against
    /// over-prediction.
    pub predictor_margin: f64,
    /// Layers that share in writing the context; before the last of them, it is weaker.
    pub context_layers: usize,
    /// Variance of the context that every later layer adds, relative to theirs together.
    pub context_growth: f64,
    /// How experts are chosen.
    pub routing: Routing,
}

/// What a router's logits are made of: standard deviations, relative to 1 for all of it. The rest is the token's own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// What makes an expert popular with all tokens.
    pub popularity: f64,
    /// What the context adds.
    pub context: f64,
}

impl Default for Planting {
    fn default() -> Self {
        Self {
            density: 0.1,
            skew: 1.27,
            context: 1.0,
            token_spread: 0.42,
            constant: 1.0,
            attention_peak: 8.0,
            ffn_share: 0.03,
            predictor_margin: 0.15,
            context_layers: 1,
            context_growth: 0.02,
            routing: Routing::USUAL,
        }
    }
}

impl Planting {
    /// For a model with experts: the context is that of fewer positions, and changes more from layer to layer.
    pub(super) fn of_experts(routing: Routing) -> Self {
        Self {
            attention_peak: 64.0,
            context_layers: 3,
            context_growth: 0.2,
            routing,
            ..Self::default()
        }
    }
}

impl Routing {
    /// After traces of Qwen3-30B and Gemma4.
    pub(super) const USUAL: Self = Self {
        popularity: 0.7,
        context: 0.5,
    };
    /// After one of gpt-oss-120b.
    pub(super) const GPT_OSS: Self = Self {
        popularity: 0.62,
        context: 0.38,
    };
    /// Mixtral's tokens have little in common.
    pub(super) const MIXTRAL: Self = Self {
        popularity: 0.3,
        context: 0.4,
    };

    /// What is left of it in a layer: the first layers choose by the token, and the last one half so.
    fn at(self, layer: usize, n_layers: usize) -> Self {
        let part = match layer {
            0 => 0.25,
            1 => 0.75,
            last if last + 1 == n_layers => 0.55,
            _ => 1.0,
        };
        Self {
            popularity: self.popularity * part,
            context: self.context * part,
        }
    }

    /// What the token adds.
    fn token(self) -> f64 {
        (1.0 - self.popularity.powi(2) - self.context.powi(2)).sqrt()
    }
}

/// Rotary frequencies that form attention's window, in radians per position: their cosines agree for about ten
/// positions and cancel beyond.
const WINDOW_BAND: std::ops::RangeInclusive<f32> = 0.03..=0.12;

/// Noise of a query or key, relative to about 1 for the planted part.
const ATTENTION_NOISE: f64 = 0.1;

/// Standard deviation of a logit.
const LOGIT_DEVIATION: f64 = 4.0;

/// Energy of a planted block with its noise, relative to the planted part alone.
const WITH_NOISE: f64 = 1.0 + 1.0 / (AMPLITUDE as f64 * AMPLITUDE as f64);

/// What a group of columns represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subspace {
    /// The same in every token.
    Constant,
    /// The token's own embedding.
    Token,
    /// The context, written by attention.
    Context,
}

/// The subspaces of a model's residual stream and the strengths that follow from a [`Planting`].
pub(super) struct Plan {
    pub(super) planting: Planting,
    /// Columns per group.
    pub(super) group: usize,
    /// Number of groups, half the predictors' rank.
    pub(super) n_groups: usize,
    /// Signs of the columns inside their groups, `[d_model]`.
    pub(super) signs: Vec<i8>,
    network: Network,
    /// That of all layers.
    pub(super) attention: Attention,
    /// Which elements of a head rotate together.
    pub(super) pairing: RopePairing,
    /// Frequencies of the rotation, `[head_dim / 2]`.
    frequencies: Vec<f32>,
    /// Mean of the neurons' thresholds.
    threshold: f64,
    /// Number of independent positions that attention's mean is equivalent to.
    window: f64,
}

impl Plan {
    /// The plan for predictors of `rank`.
    ///
    /// # Errors
    /// A rank or density that cannot be planted.
    pub(super) fn new(
        planting: Planting,
        network: &Network,
        rank: usize,
        stream: Stream,
    ) -> Result<Self> {
        let refused = |field: &str, problem: String, remedy: String| {
            Err(ModelError::Parameter {
                field: field.into(),
                problem,
                remedy,
            })
        };
        let d = network.d_model;
        if !rank.is_power_of_two() || rank < LEN || rank > d / 2 {
            let remedy = format!("give a power of two from {LEN} to {}", d / 2);
            return refused("rank", format!("{rank} cannot be planted"), remedy);
        }
        if !(0.005..=0.5).contains(&planting.density) {
            let problem = format!("{} cannot be planted", planting.density);
            return refused("density", problem, "give a share from 0.005 to 0.5".into());
        }
        let Some(attention) = network.attentions().next().cloned() else {
            let problem = "a model without attention cannot be planted";
            return refused("shape", problem.into(), "give another one".into());
        };
        let deviation = (1.0 + planting.skew * planting.skew).sqrt();
        let frequencies = network.ropes[0].frequencies(network.context_length);
        Ok(Self {
            planting,
            group: 2 * d / rank,
            n_groups: rank / 2,
            signs: (0..d as u64).map(|j| stream.sign(j)).collect(),
            network: network.clone(),
            attention,
            threshold: normal_quantile(1.0 - planting.density) * deviation,
            window: window(&frequencies, planting.attention_peak),
            pairing: network.ropes[0].pairing,
            frequencies,
        })
    }

    /// What group `g` represents: a quarter of the groups is constant, three eighths each are the token's and the
    /// context's.
    pub(super) fn subspace(&self, g: usize) -> Subspace {
        match 8 * g / self.n_groups {
            0..2 => Subspace::Constant,
            2..5 => Subspace::Token,
            _ => Subspace::Context,
        }
    }

    fn n_constant(&self) -> f64 {
        self.n_groups as f64 / 4.0
    }

    /// Groups of the token's part, and as many of the context's.
    fn n_varying(&self) -> f64 {
        self.n_groups as f64 * 3.0 / 8.0
    }

    fn group_len(&self) -> f64 {
        self.group as f64
    }

    /// Variance of a context coefficient before the FFN of layer `l`.
    fn context(&self, l: usize) -> f64 {
        let (layers, first) = ((l + 1) as f64, self.planting.context_layers as f64);
        let growth = self.planting.context_growth * (layers - first).max(0.0);
        self.planting.context * ((layers / first).min(1.0) + growth)
    }

    /// The same before the attention of layer `l`.
    fn context_before(&self, l: usize) -> f64 {
        match l {
            0 => 0.0,
            _ => self.context(l - 1),
        }
    }

    /// Root mean square of the residual stream if a context coefficient has variance `context`.
    fn rms(&self, context: f64) -> f64 {
        let varying = self.n_varying() * (1.0 + context);
        let energy = self.n_constant() * self.planting.constant.powi(2) + varying;
        (energy / self.n_groups as f64 * WITH_NOISE).sqrt()
    }

    fn rms_before_attention(&self, l: usize) -> f64 {
        self.rms(self.context_before(l))
    }

    /// Factor for rows with coefficients of variance 1 over the token's and the context's part, so that
    /// their product with the FFN's input has variance 1 too.
    pub(super) fn unit(&self, l: usize) -> f64 {
        let context = self.context(l);
        self.rms(context) / (self.group_len() * self.deviation(context))
    }

    /// The same for the head, so that logits differ enough to be sampled from.
    pub(super) fn logit_unit(&self) -> f64 {
        self.unit(self.network.n_layers() - 1) * LOGIT_DEVIATION
    }

    /// Standard deviation of the sum, over all varying groups, of normal coefficients times the stream's.
    fn deviation(&self, context: f64) -> f64 {
        (self.n_varying() * (1.0 + context)).sqrt()
    }

    /// Threshold of a neuron whose rank among the others is the normal deviate `place`, less `margin`, as the
    /// coefficient of the constant groups (if the others' coefficients have variance 1).
    pub(super) fn threshold(&self, l: usize, place: f32, margin: f64) -> f64 {
        let beta = self.threshold + self.planting.skew * f64::from(place) - margin;
        -beta * self.deviation(self.context(l)) / (self.n_constant() * self.planting.constant)
    }

    /// Factor for a router's rows and its coefficients of the constant, the token's and the context's groups, if the
    /// expert's rank in popularity is the normal deviate `place`. Logits have variance 1.
    pub(super) fn route(&self, l: usize, place: f32) -> (f64, [f64; 3]) {
        let experts = self.network.experts(l);
        let (context, rms) = match experts.is_some_and(|e| e.router.before_layer) {
            // Its input is then the stream itself.
            true => (self.context_before(l), 1.0),
            false => (self.context(l), self.rms(self.context(l))),
        };
        let routing = self.planting.routing.at(l, self.network.n_layers());
        let deviation = self.deviation(context);
        let constant = routing.popularity * f64::from(place) * deviation
            / (self.n_constant() * self.planting.constant);
        let token = routing.token() * (1.0 + context).sqrt();
        let of_context = match context > 0.0 {
            true => routing.context * ((1.0 + context) / context).sqrt(),
            false => 0.0,
        };
        let unit = rms / (self.group_len() * deviation);
        (unit, [constant, token, of_context])
    }

    /// Coefficient of the constant groups in rows of Q and K of layer `l` for an element of pair `pair`
    /// of a head.
    pub(super) fn query(&self, l: usize, pair: usize) -> f64 {
        let in_band = |f: &&f32| WINDOW_BAND.contains(*f);
        if !self.frequencies.get(pair).is_some_and(|f| in_band(&f)) {
            return 0.0;
        }
        let elements = 2 * self.frequencies.iter().filter(in_band).count();
        let score = self.planting.attention_peak * (self.attention.head_dim as f64).sqrt();
        let constant = self.group_len() * self.n_constant() * self.planting.constant;
        (score / elements as f64).sqrt() * self.rms_before_attention(l) / constant
    }

    /// Noise in the parts of rows of Q and K in which nothing is planted.
    pub(super) fn query_noise(&self) -> f64 {
        ATTENTION_NOISE / (self.network.d_model as f64).sqrt()
    }

    /// Factor for rows of V with coefficients of variance 1 over the token's part.
    pub(super) fn value_unit(&self, l: usize) -> f64 {
        self.rms_before_attention(l) / (self.group_len() * self.n_varying().sqrt())
    }

    /// Scale of O's integers in rows of the context's groups: it makes the mean over the window as strong as planned.
    pub(super) fn output_scale(&self, l: usize) -> f64 {
        let growth = match self.planting.context_layers {
            first if l < first => 1.0 / first as f64,
            _ => self.planting.context_growth,
        };
        let variance = self.planting.context * growth * self.window;
        (variance / self.attention.q_dim() as f64).sqrt() / INTEGERS_DEVIATION
    }

    /// Scale of Down's integers.
    pub(super) fn down_scale(&self, l: usize) -> f64 {
        // Approximate mean square of relu(g - beta) * u over all neurons: the gate's excess is
        // about as large as its deviation, and so is up.
        let ffn = self.network.ffn(0);
        let of_experts = ffn.experts.as_ref().map_or(0, |e| e.used * e.d_ff);
        let hidden = (ffn.d_ff + of_experts) as f64 * self.planting.density;
        self.planting.ffn_share * self.rms(self.context(l)) / (hidden.sqrt() * INTEGERS_DEVIATION)
    }
}

/// `1 / sum(w²)` for the attention weights `w` of a long sequence with constant queries and keys.
fn window(frequencies: &[f32], peak: f64) -> f64 {
    const POSITIONS: usize = 256;
    let band = || frequencies.iter().filter(|f| WINDOW_BAND.contains(*f));
    let count = band().count().max(1) as f64;
    let weights = (0..POSITIONS).map(|distance| {
        let agreement: f64 = band()
            .map(|&f| (distance as f64 * f64::from(f)).cos())
            .sum();
        (peak * agreement / count).exp()
    });
    let (sum, squares) = weights.fold((0.0, 0.0), |(s, q), w| (s + w, q + w * w));
    sum * sum / squares
}
