//! The FFN, neuron by neuron, and experts, one after the other.

use super::weights::{Experts, Neurons, Predictor, dot};
use super::{Oracle, add, scale, sigmoid};
use crate::network::{self, Activation, Router, Scores};
use crate::tensor::{LayerTensor as T, TensorId};

/// Some neurons of a layer, with the rows of Down for their result.
struct Part<'a> {
    weights: &'a Neurons,
    activation: Activation,
    /// Number of the expert, 0 for what has none.
    expert: usize,
    neurons: std::ops::Range<usize>,
    /// Rows of Down.
    results: std::ops::Range<usize>,
    /// Biases of Gate, Up and Down of all neurons and results.
    biases: [Option<&'a [f32]>; 3],
    /// By neuron, whether it is left out.
    skipped: Vec<bool>,
}

impl Oracle {
    /// The FFN's output, `[d_model]`, from the residual stream before the layer and before the FFN, of which predictors
    /// read one, and from the FFN's input, `[d_model]` each.
    pub(super) fn ffn(&mut self, l: usize, [before, x, h]: [&[f32]; 3]) -> Vec<f32> {
        let ffn = self.network.ffn(l);
        let layer = &self.weights.layers[l];
        let bias = |t| self.weights.vector(TensorId::Layer(l, t));
        let (mut y, mut active) = (vec![0.0; h.len()], 0);
        if let Some(weights) = &layer.neurons {
            let predictor = layer.predictor.as_ref().filter(|_| self.predicted);
            let skips = |score: &f32| *score < self.network.predictor_threshold;
            let seen = match ffn.predictor_before_layer {
                true => before,
                false => x,
            };
            let scores = predictor
                .map(|p| predictor_scores(p, seen))
                .unwrap_or_default();
            let part = Part {
                weights,
                activation: ffn.activation,
                expert: 0,
                neurons: 0..ffn.d_ff,
                results: 0..h.len(),
                biases: [bias(T::GateBias), None, bias(T::DownBias)],
                skipped: (0..)
                    .zip(&scores)
                    .map(|(i, score)| i >= ffn.hot && skips(score))
                    .collect(),
            };
            (y, active) = self.part(&part, h);
        }
        if let (Some(weights), Some(experts)) = (&layer.experts, &ffn.experts) {
            if let Some(gate) = &weights.shared_gate {
                let gate = gate.times(&self.input(gate, h))[0];
                scale(&mut y, sigmoid(gate) as f32);
            }
            let asked = if experts.router.before_layer {
                before
            } else {
                h
            };
            for (e, weight) in self.route(l, (weights, experts), asked) {
                let part = Part {
                    weights: &weights.neurons,
                    activation: ffn.activation,
                    expert: e,
                    neurons: e * experts.d_ff..(e + 1) * experts.d_ff,
                    results: e * h.len()..(e + 1) * h.len(),
                    biases: [T::ExpertGateBias, T::ExpertUpBias, T::ExpertDownBias].map(bias),
                    skipped: Vec::new(),
                };
                let (mut result, alive) = self.part(&part, h);
                scale(&mut result, weight);
                add(&mut y, &result);
                active += alive;
            }
        }
        self.active[l] += active;
        y
    }

    /// The result of some neurons, `[d_model]`, and how many of them had a gate above 0.
    fn part(&self, part: &Part<'_>, h: &[f32]) -> (Vec<f32>, u64) {
        let Neurons { gate, up, down } = part.weights;
        let [gate_bias, up_bias, down_bias] = part.biases;
        let input = |matrix, x| self.input_of_expert(matrix, part.expert, x);
        let gate_input = input(gate, h);
        let up = up.as_ref().map(|up| (up, input(up, h)));
        let of = |bias: Option<&[f32]>, i: usize| bias.map_or(0.0, |bias| f64::from(bias[i]));
        let mut active = 0;
        let mut neurons = vec![0.0; part.neurons.len()];
        for (neuron, i) in neurons.iter_mut().zip(part.neurons.clone()) {
            if part.skipped.get(i) == Some(&true) {
                continue;
            }
            let gate = (dot(gate.row(i), &gate_input) + of(gate_bias, i)) as f32;
            let g = part.activation.gate(gate);
            active += u64::from(g > 0.0);
            *neuron = match &up {
                Some((up, input)) => {
                    let up = dot(up.row(i), input) + of(up_bias, i);
                    g * part.activation.up(up as f32)
                }
                None => g,
            };
        }
        let neurons = self.input_of_expert(down, part.expert, &neurons);
        let results = part.results.clone();
        let result = results.map(|r| (dot(down.row(r), &neurons) + of(down_bias, r)) as f32);
        (result.collect(), active)
    }

    /// The experts that a token uses, and their weights.
    fn route(
        &self,
        l: usize,
        (weights, experts): (&Experts, &network::Experts),
        x: &[f32],
    ) -> Vec<(usize, f32)> {
        let vector = |t| self.weights.vector(TensorId::Layer(l, t));
        let router = &experts.router;
        let mut scores = weights.router.times(&self.input(&weights.router, x));
        if let Some(bias) = vector(T::RouterBias) {
            add(&mut scores, bias);
        }
        match router.scores {
            Scores::Softmax => softmax(&mut scores),
            Scores::Sigmoid => scores.iter_mut().for_each(|s| *s = sigmoid(*s) as f32),
            Scores::SoftmaxOfChosen => {}
        }
        let mut ranks = scores.clone();
        if let Some(bias) = vector(T::SelectionBias) {
            add(&mut ranks, bias);
        }
        restrict(router, &mut ranks);
        let mut order: Vec<usize> = (0..experts.count).collect();
        order.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]).then(a.cmp(&b)));
        order.truncate(experts.used);
        let mut chosen: Vec<f32> = order.iter().map(|&e| scores[e]).collect();
        if router.scores == Scores::SoftmaxOfChosen {
            softmax(&mut chosen);
        }
        if router.normalised {
            let sum: f32 = chosen.iter().sum();
            scale(&mut chosen, 1.0 / sum.max(Router::LEAST_SUM));
        }
        scale(&mut chosen, router.scale);
        order.into_iter().zip(chosen).collect()
    }
}

/// Leaves only the experts of the best groups.
fn restrict(router: &Router, ranks: &mut [f32]) {
    let Some(groups) = router.groups else {
        return;
    };
    let size = ranks.len() / groups.count;
    let value = |g: usize| {
        let mut group = ranks[g * size..][..size].to_vec();
        group.sort_by(|a, b| b.total_cmp(a));
        group.iter().take(groups.counted).sum::<f32>()
    };
    let values: Vec<f32> = (0..groups.count).map(value).collect();
    let mut order: Vec<usize> = (0..groups.count).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    for &g in &order[groups.used..] {
        ranks[g * size..][..size].fill(f32::NEG_INFINITY);
    }
}

fn softmax(values: &mut [f32]) {
    let max = values.iter().fold(f32::NEG_INFINITY, |max, v| max.max(*v));
    values.iter_mut().for_each(|v| *v = (*v - max).exp());
    let sum: f32 = values.iter().sum();
    scale(values, 1.0 / sum);
}

/// `fc2 · relu(fc1 · x)`, `[d_ff]`.
fn predictor_scores(predictor: &Predictor, x: &[f32]) -> Vec<f32> {
    let mut hidden = predictor.fc1.times(x); // [rank]
    for v in &mut hidden {
        *v = v.max(0.0);
    }
    predictor.fc2.times(&hidden)
}
