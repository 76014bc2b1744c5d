//! The content of each row of each tensor, block by block.

use half::f16;

use super::block::{AMPLITUDE, Block, LEN, integers, noise};
use super::planting::{Plan, Subspace};
use super::random::Stream;
use super::vocabulary::N_CONTROL;
use crate::network::RopePairing;
use crate::tensor::{LayerTensor, TensorId};

/// Noise in the unplanted parts of planted rows, relative to what is planted elsewhere.
const FLOOR: f64 = 0.1;

/// How strongly the constant part lowers the logits of control tokens, in deviations of a logit: so that a text never
/// ends early.
const CONTROL_TOKENS: f64 = 8.0;

/// Counters of a row's stream: coefficients by group, noise by block, and the rank of its neuron.
const NOISE: u64 = 1 << 20;
const PLACE: u64 = 1 << 40;

/// One row, as a rule that computes any of its blocks.
pub(super) enum Row {
    /// Independent integers.
    Random { stream: Stream, scale: f16 },
    /// The same for all rows of a group except for the sign.
    Mirrored {
        stream: Stream,
        scale: f16,
        sign: i8,
    },
    /// Coefficients over the subspaces, and noise.
    Planted(Planted),
    /// A predictor's feature: the coefficient of group `.group`, times `sign`.
    Feature { group: usize, sign: i8 },
    /// A predictor's weights of one neuron: its coefficients, then the same negated.
    Weights { stream: Stream, constant: f32 },
}

/// A row with coefficients over the subspaces.
pub(super) struct Planted {
    stream: Stream,
    /// Coefficient of every constant group.
    constant: f64,
    /// Standard deviation of coefficients over the token's groups.
    token: f64,
    /// Standard deviation of coefficients over the context's groups.
    context: f64,
    /// Standard deviation of elements whose coefficient is 0.
    floor: f64,
    /// Whether all coefficients of a subspace have the same magnitude.
    level: bool,
}

impl Planted {
    /// `unit` times: the constant groups' coefficient, and the others' standard deviations.
    fn new(stream: Stream, unit: f64, strengths: [f64; 3]) -> Self {
        let [constant, token, context] = strengths.map(|s| s * unit);
        Self {
            stream,
            constant,
            token,
            context,
            floor: unit * FLOOR,
            level: false,
        }
    }
}

/// The rows of a model.
pub(super) struct Rows {
    pub(super) plan: Plan,
    stream: Stream,
    queries_per_kv: usize,
    head_dim: usize,
}

impl Rows {
    pub(super) fn new(plan: Plan, stream: Stream) -> Self {
        Self {
            queries_per_kv: plan.attention.n_heads / plan.attention.n_kv_heads,
            head_dim: plan.attention.head_dim,
            plan,
            stream,
        }
    }

    /// The numbers of a tensor's row.
    fn stream(&self, id: TensorId, row: usize) -> Stream {
        let (layer, tensor) = match id {
            TensorId::TokenEmbedding => (0, 0),
            TensorId::OutputNorm => (0, 1),
            TensorId::OutputHead => (0, 2),
            TensorId::OutputNormBias => (0, 3),
            TensorId::OutputHeadBias => (0, 4),
            TensorId::PositionEmbedding => (0, 5),
            TensorId::TokenInputs => (0, 6),
            TensorId::InputsProjection => (0, 7),
            TensorId::InputsNorm => (0, 8),
            TensorId::Layer(l, t) => (l as u64 + 1, t as u64),
        };
        self.stream.child(layer).child(tensor).child(row as u64)
    }

    /// Row `row` of matrix `id`.
    pub(super) fn row(&self, id: TensorId, row: usize) -> Row {
        let TensorId::Layer(l, tensor) = id else {
            return self.token_row(id, row);
        };
        let stream = self.stream(id, row);
        let plan = &self.plan;
        let planted = |unit, strengths| Row::Planted(Planted::new(stream, unit, strengths));
        let random = |scale: f64| Row::Random {
            stream,
            scale: f16::from_f64(scale),
        };
        match tensor {
            LayerTensor::Q => self.query(l, row, self.queries_per_kv, stream),
            LayerTensor::K => self.query(l, row, 1, stream),
            LayerTensor::V => planted(plan.value_unit(l), [0.0, 1.0, 0.0]),
            LayerTensor::O => {
                let (group, scale) = (row / plan.group, plan.output_scale(l));
                if plan.subspace(group) != Subspace::Context {
                    return random(scale * FLOOR);
                }
                Row::Mirrored {
                    // The stream of the group's first row.
                    stream: self.stream(id, group * plan.group),
                    scale: f16::from_f64(scale),
                    sign: plan.signs[row],
                }
            }
            LayerTensor::Router | LayerTensor::SharedGate => {
                let (unit, strengths) = plan.route(l, stream.normal(PLACE));
                planted(unit, strengths)
            }
            LayerTensor::Gate | LayerTensor::ExpertGate => {
                let threshold = plan.threshold(l, stream.normal(PLACE), 0.0);
                planted(plan.unit(l), [threshold, 1.0, 1.0])
            }
            LayerTensor::Up | LayerTensor::ExpertUp => planted(plan.unit(l), [0.0, 1.0, 1.0]),
            LayerTensor::PredictorFc1 => Row::Feature {
                group: row % plan.n_groups,
                sign: if row < plan.n_groups { 1 } else { -1 },
            },
            LayerTensor::PredictorFc2 => {
                let stream = self.stream(TensorId::Layer(l, LayerTensor::Gate), row);
                let margin = plan.planting.predictor_margin;
                let constant = plan.threshold(l, stream.normal(PLACE), margin) as f32;
                Row::Weights { stream, constant }
            }
            _ => random(plan.down_scale(l)),
        }
    }

    /// A row of the embedding or of the head.
    fn token_row(&self, id: TensorId, token: usize) -> Row {
        let (plan, stream) = (&self.plan, self.stream(id, token));
        if id == TensorId::TokenEmbedding {
            let spread = plan.planting.token_spread;
            // The mean square is 1.
            let strength = (spread * f64::from(stream.normal(PLACE)) - spread * spread).exp();
            let strengths = [plan.planting.constant, strength, 0.0];
            return Row::Planted(Planted::new(stream, 1.0, strengths));
        }
        let refusal = match token < N_CONTROL {
            true => plan.threshold(0, 0.0, -CONTROL_TOKENS),
            false => 0.0,
        };
        Row::Planted(Planted {
            // Rows of equal length: no token is the most probable one more often than others.
            level: true,
            ..Planted::new(stream, plan.logit_unit(), [refusal, 1.0, 1.0])
        })
    }

    /// A row of Q (`heads_per_kv` heads share keys) or K: the same in every token, so that scores
    /// depend on distance alone.
    fn query(&self, l: usize, row: usize, heads_per_kv: usize, stream: Stream) -> Row {
        let (head, element) = (row / self.head_dim, row % self.head_dim);
        let kv_row = head / heads_per_kv * self.head_dim + element;
        let sign = self.stream(TensorId::Layer(l, LayerTensor::K), kv_row);
        let pair = match self.plan.pairing {
            RopePairing::Interleaved => element / 2,
            RopePairing::HalfSplit => element % (self.head_dim / 2),
        };
        let constant = self.plan.query(l, pair) * f64::from(sign.sign(PLACE));
        Row::Planted(Planted {
            stream,
            constant,
            token: 0.0,
            context: 0.0,
            floor: self.plan.query_noise(),
            level: false,
        })
    }

    /// Elements `32 * block..` of a row.
    pub(super) fn block(&self, row: &Row, block: usize) -> Block {
        match *row {
            Row::Random { stream, scale } => Block {
                scale,
                codes: integers(stream, block as u64),
            },
            Row::Mirrored {
                stream,
                scale,
                sign,
            } => Block {
                scale,
                codes: integers(stream, block as u64).map(|c| c * sign),
            },
            Row::Planted(ref planted) => self.planted_block(planted, block),
            Row::Feature { group, sign } => self.feature_block(group, sign, block),
            Row::Weights { stream, constant } => self.weights_block(stream, constant, block),
        }
    }

    /// Integer multiples of the columns' signs, one per group, plus noise.
    fn planted_block(&self, row: &Planted, block: usize) -> Block {
        let first = block * LEN;
        let width = self.plan.group.min(LEN);
        let mut coefficients = [0.0f32; LEN];
        let n = LEN / width;
        for (i, c) in coefficients[..n].iter_mut().enumerate() {
            *c = self.coefficient(row, (first + i * width) / self.plan.group);
        }
        let largest = coefficients[..n].iter().fold(0.0f32, |m, c| m.max(c.abs()));
        let mut codes = noise(row.stream, NOISE + block as u64);
        if largest == 0.0 {
            let scale = f16::from_f64(row.floor);
            return Block { scale, codes };
        }
        let scale = f16::from_f32(largest / AMPLITUDE);
        let inverse = match scale.to_f32() {
            0.0 => 0.0,
            scale => 1.0 / scale,
        };
        let signs = self.plan.signs[first..first + LEN].chunks_exact(width);
        for ((codes, signs), c) in codes.chunks_exact_mut(width).zip(signs).zip(coefficients) {
            let amplitude = (c * inverse).round().clamp(-AMPLITUDE, AMPLITUDE) as i8;
            for (code, sign) in codes.iter_mut().zip(signs) {
                *code += amplitude * sign;
            }
        }
        Block { scale, codes }
    }

    fn coefficient(&self, row: &Planted, group: usize) -> f32 {
        let deviation = match self.plan.subspace(group) {
            Subspace::Constant => return row.constant as f32,
            Subspace::Token => row.token as f32,
            Subspace::Context => row.context as f32,
        };
        deviation
            * match row.level {
                true => f32::from(row.stream.sign(group as u64)),
                false => row.stream.normal(group as u64),
            }
    }

    /// The signs of one group's columns, scaled so that the product with the stream is the group's
    /// coefficient; zeros elsewhere.
    fn feature_block(&self, group: usize, sign: i8, block: usize) -> Block {
        let mut out = Block::ZERO;
        let columns = block * LEN..(block + 1) * LEN;
        let inside = group * self.plan.group..(group + 1) * self.plan.group;
        for (code, column) in out.codes.iter_mut().zip(columns) {
            if inside.contains(&column) {
                *code = self.plan.signs[column] * sign;
                out.scale = f16::from_f32(1.0 / self.plan.group as f32);
            }
        }
        out
    }

    /// A neuron's coefficients as the predictor has them.
    fn weights_block(&self, stream: Stream, constant: f32, block: usize) -> Block {
        const MOST: f32 = 7.0;
        let weights: [f32; LEN] = std::array::from_fn(|i| {
            let column = block * LEN + i;
            let (group, negated) = (column % self.plan.n_groups, column >= self.plan.n_groups);
            let weight = match self.plan.subspace(group) {
                Subspace::Constant => constant,
                Subspace::Token | Subspace::Context => stream.normal(group as u64),
            };
            if negated { -weight } else { weight }
        });
        let largest = weights.iter().fold(0.0f32, |m, w| m.max(w.abs()));
        let scale = f16::from_f32(largest / MOST);
        let inverse = match scale.to_f32() {
            0.0 => 0.0,
            scale => 1.0 / scale,
        };
        let codes = weights.map(|w| (w * inverse).round().clamp(-MOST, MOST) as i8);
        Block { scale, codes }
    }
}
