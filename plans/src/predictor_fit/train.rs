//! Training of the network: binary cross-entropy of `sigmoid(score)` with live neurons weighted
//! more (Deja Vu, Liu et al. 2023), Adam (Kingma & Ba 2015) in mini-batches.

use super::matmul::{Matrix, Product};
use super::network::Network;
use super::random::Random;
use super::samples::Part;

/// Samples per step.
const BATCH: usize = 128;
/// Decay of Adam's mean of gradients.
const BETA1: f32 = 0.9;
/// Decay of Adam's mean of squares; shorter than usual, since training is short.
const BETA2: f32 = 0.99;
/// Largest step of a weight of fc1, in root mean squares of the matrix times the square root of the
/// number of weights that are summed: so a unit moves by as much at every size.
const RATE1: f32 = 0.28;
/// The same for fc2.
const RATE2: f32 = 0.08;
/// Share of the steps over which the rate rises.
const WARM_UP: f32 = 0.05;

/// How to train.
pub(super) struct Schedule {
    pub(super) steps: usize,
    /// Weight of a live neuron; others have 1.
    pub(super) live_weight: f32,
}

/// Adam's state for one matrix.
struct Adam {
    means: Vec<f32>,
    squares: Vec<f32>,
    rate: f32,
}

impl Adam {
    /// `rate`: largest step in root mean squares of `weights`.
    fn new(weights: &[f32], rate: f32) -> Self {
        let square: f32 = weights.iter().map(|w| w * w).sum();
        Self {
            means: vec![0.0; weights.len()],
            squares: vec![0.0; weights.len()],
            rate: rate * (square / weights.len() as f32).sqrt(),
        }
    }

    /// Step `t`, starting at 1; `factor` of the full rate.
    fn step(&mut self, weights: &mut [f32], gradient: &[f32], t: usize, factor: f32) {
        let unbiased = |beta: f32| 1.0 / (1.0 - beta.powf(t as f32));
        let (c1, c2) = (unbiased(BETA1), unbiased(BETA2));
        let rate = self.rate * factor;
        let state = self.means.iter_mut().zip(&mut self.squares);
        for ((w, &g), (m, s)) in weights.iter_mut().zip(gradient).zip(state) {
            *m = BETA1 * *m + (1.0 - BETA1) * g;
            *s = BETA2 * *s + (1.0 - BETA2) * g * g;
            *w -= rate * *m * c1 / ((*s * c2).sqrt() + f32::MIN_POSITIVE);
        }
    }
}

/// Trains `net` on `part`.
pub(super) fn train(
    net: &mut Network,
    part: &Part<'_>,
    schedule: &Schedule,
    random: &mut Random,
    product: &mut Product,
    progress: &mut dyn FnMut(f32),
) {
    let (d, d_ff, rank) = (net.d_model(), net.d_ff(), net.rank);
    let n = BATCH.min(part.n);
    let scales = precondition(net, part);
    let mut fc1 = Adam::new(&net.fc1, RATE1 / (d as f32).sqrt());
    let mut fc2 = Adam::new(&net.fc2, RATE2 / (rank as f32).sqrt());
    let mut gradient1 = vec![0.0; net.fc1.len()];
    let mut gradient2 = vec![0.0; net.fc2.len()];
    let mut scores = vec![0.0; n * d_ff]; // [n, d_ff], then the loss's gradient by them
    let mut order: Vec<usize> = (0..part.n).collect();
    let mut next = part.n;
    for step in 0..schedule.steps {
        if next + n > part.n {
            random.shuffle(&mut order);
            next = 0;
        }
        let batch = &order[next..next + n];
        next += n;
        let rows = batch.iter().flat_map(|&i| &part.inputs[i * d..][..d]);
        let x: Vec<f32> = rows
            .zip(scales.iter().cycle())
            .map(|(v, s)| v * s)
            .collect();
        let x = Matrix::new(&x, n, d);

        let hidden = net.hidden(x, product);
        let h = Matrix::new(&hidden, n, rank);
        let weights = Matrix::new(&net.fc2, d_ff, rank);
        product.write(h, weights.t(), &mut scores);
        to_gradient(&mut scores, part, batch, schedule.live_weight);
        let by_scores = Matrix::new(&scores, n, d_ff);
        product.write(by_scores.t(), h, &mut gradient2);
        let mut by_hidden = product.of(by_scores, weights); // [n, rank]
        for (gradient, &h) in by_hidden.iter_mut().zip(&hidden) {
            if h <= 0.0 {
                *gradient = 0.0;
            }
        }
        let by_hidden = Matrix::new(&by_hidden, n, rank);
        product.write(by_hidden.t(), x, &mut gradient1);

        let factor = rate_factor(step, schedule.steps);
        fc1.step(&mut net.fc1, &gradient1, step + 1, factor);
        fc2.step(&mut net.fc2, &gradient2, step + 1, factor);
        progress((step + 1) as f32 / schedule.steps as f32);
    }
    scale_columns(&mut net.fc1, &scales);
}

/// Turns scores, `[n, d_ff]`, into the gradient of the loss by them.
fn to_gradient(scores: &mut [f32], part: &Part<'_>, batch: &[usize], live_weight: f32) {
    let d_ff = scores.len() / batch.len();
    let share = 1.0 / scores.len() as f32;
    for (scores, &i) in scores.chunks_exact_mut(d_ff).zip(batch) {
        for (neuron, s) in scores.iter_mut().enumerate() {
            let probability = 1.0 / (1.0 + (-*s).exp());
            *s = share
                * match part.live(i, neuron) {
                    true => live_weight * (probability - 1.0),
                    false => probability,
                };
        }
    }
}

/// Rises over the first steps, then falls to 0 along a cosine.
fn rate_factor(step: usize, steps: usize) -> f32 {
    let (step, steps) = (step as f32, steps as f32);
    let rise = ((step + 1.0) / (WARM_UP * steps + 1.0)).min(1.0);
    rise * 0.5 * (1.0 + (std::f32::consts::PI * step / steps).cos())
}

/// Rewrites fc1 for inputs scaled to mean square 1 each, so that no direction of the residual
/// stream learns faster only because it is larger. Returns the scales, `[d_model]`.
fn precondition(net: &mut Network, part: &Part<'_>) -> Vec<f32> {
    let scales = part.inverse_rms();
    let inverse = |&s: &f32| if s > 0.0 { 1.0 / s } else { 0.0 };
    scale_columns(
        &mut net.fc1,
        &scales.iter().map(inverse).collect::<Vec<_>>(),
    );
    scales
}

/// Multiplies the columns of `m`, `[_, d_model]`, by `scales`, `[d_model]`.
fn scale_columns(m: &mut [f32], scales: &[f32]) {
    for row in m.chunks_exact_mut(scales.len()) {
        row.iter_mut().zip(scales).for_each(|(w, s)| *w *= s);
    }
}
