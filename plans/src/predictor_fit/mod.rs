//! Fits activation predictors: small networks that predict, from the residual stream before an FFN or before its layer,
//! which of its neurons will be live (Deja Vu, Liu et al. 2023; PowerInfer, Song et al. 2024).
//!
//! A predictor has PowerInfer's form, `score = fc2 · relu(fc1 · x)`, without biases; neuron i is predicted if its score
//! is at least 0. Offsets are part of the weights (`network`), so that the mask does not depend on the length of `x`;
//! nor does the layer's own after its RMSNorm.
//!
//! First a predictor is computed from the gate itself: its best low-rank approximation on the samples (`low_rank`),
//! written as such a network (`start`), each neuron with the cheapest offset for the requested recall (`calibrate`).
//! Then the network is trained (`train`); of the two, the one that predicts fewer neurons is kept. Samples are divided
//! into three parts (`samples`): one to fit to, one to set the layer's offset and to choose by, and one to measure the
//! result, which no earlier step has used.

mod calibrate;
mod check;
mod error;
mod linear;
mod low_rank;
mod matmul;
mod measure;
mod network;
mod random;
mod samples;
mod start;
#[cfg(test)]
mod tests;
mod train;

use serde::Serialize;

pub use error::FitError;
pub use measure::Measure;

use calibrate::{offset_all, offset_each};
use low_rank::LowRank;
use matmul::Product;
use measure::measure;
use network::Network;
use random::Random;
use samples::Parts;
use train::{Schedule, train};

/// Maximum number of samples from which the low-rank map and the neurons' offsets are computed.
const SKETCH: usize = 4096;
/// Shift of the low-rank map if it is used untrained, in deviations of a component.
const LINEAR_SHIFT: f32 = 3.0;
/// Shift of the low-rank map if training starts from it.
const TRAINING_SHIFT: f32 = 1.0;
/// Maximum weight of a live neuron in training.
const MAX_LIVE_WEIGHT: f64 = 100.0;
/// Share of the work, as reported, that is done before training.
const UNTRAINED_SHARE: f32 = 0.1;

/// One layer's inputs and activity on sample tokens, in their order in the text.
#[derive(Clone, Debug)]
pub struct LayerSamples {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Neurons of the layer.
    pub d_ff: usize,
    /// What the predictor is to see: the residual stream before the FFN's norm, or before the layer, `[n, d_model]`.
    pub inputs: Vec<f32>,
    /// The residual stream before the FFN's norm, `[n, d_model]`, if that is not what the predictor sees; else empty.
    pub ffn_inputs: Vec<f32>,
    /// Bit i of a sample's words: the gate of neuron i was above its cut. `[n, d_ff.div_ceil(64)]`
    pub live: Vec<u64>,
}

/// The weights of a layer that decide which neurons are live.
#[derive(Clone, Copy, Debug)]
pub struct LayerWeights<'a> {
    /// `[d_ff, d_model]`.
    pub gate: &'a [f32],
    /// Gain of the RMSNorm before the FFN, `[d_model]`.
    pub norm: &'a [f32],
    /// The norm's epsilon.
    pub rms_eps: f32,
    /// What a gate must exceed: 0 for ReLU, the threshold for FatReLU.
    pub cut: f32,
}

/// How a predictor is fitted.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// Hidden units: rows of fc1. At least 2.
    pub rank: usize,
    /// Share of the live neurons to predict, in (0, 1].
    pub target_recall: f64,
    /// Training steps; 0 uses the computed predictor.
    pub train_steps: usize,
    /// The same seed, samples and options give the same predictor, bit for bit.
    pub seed: u64,
    /// Share of the samples set aside to measure on, and as much again to calibrate on, in (0, 0.5).
    pub holdout: f64,
}

/// How a predictor was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Computed: low rank, two hidden units for each component.
    Pairs,
    /// Computed: low rank, a hidden unit for each component.
    Shifted,
    /// Trained.
    Trained,
}

/// How good a predictor is, on the held-out samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FitReport {
    /// How the predictor was made.
    pub method: Method,
    /// The predictor.
    pub result: Measure,
    /// The computed predictor, which training had to improve on.
    pub untrained: Measure,
    /// Samples given.
    pub samples: usize,
    /// Of these, held out.
    pub holdout_samples: usize,
    /// Weights of the predictor, `rank * (d_model + d_ff)`; two bytes each in f16.
    pub parameters: usize,
}

/// A layer's predictor: neuron i is predicted if `fc2_i · relu(fc1 · x) >= 0`, where `x` is the
/// residual stream where the samples' inputs were taken.
#[derive(Clone, Debug, PartialEq)]
pub struct FittedLayer {
    /// `[rank, d_model]`.
    pub fc1: Vec<f32>,
    /// `[d_ff, rank]`.
    pub fc2: Vec<f32>,
    /// How good it is.
    pub report: FitReport,
}

/// Numbers that [`fit_layer`] keeps besides its arguments: a copy of the inputs, three of up to 4,096 of their rows,
/// about six predictors, and `128 * d_ff` more. With `before`, the samples have two kinds of inputs.
pub fn fitting_floats(
    (d_model, d_ff): (usize, usize),
    rank: usize,
    (tokens, before): (usize, bool),
) -> u64 {
    let rows = (tokens + 3 * tokens.min(SKETCH)) * (1 + usize::from(before));
    (rows * d_model + 6 * rank * (d_model + d_ff) + 128 * d_ff) as u64
}

/// Fits a predictor to one layer. `progress` receives the share done.
///
/// Besides its arguments, this takes memory for [`fitting_floats`]. It runs on one core; each training step multiplies
/// 128 samples by the predictor three times.
///
/// # Errors
/// Dimensions that do not agree, numbers that are not finite, options out of range, or too few samples
/// for three parts.
pub fn fit_layer(
    weights: &LayerWeights<'_>,
    samples: &LayerSamples,
    options: &FitOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<FittedLayer, FitError> {
    check::check(weights, samples, options)?;
    let mut random = Random::new(options.seed);
    let mut product = Product::default();
    let parts = samples::deal(weights, samples, options.holdout, &mut random)?;
    let computed = compute(weights, &parts, options, &mut random, &mut product);
    let untrained = measure(&computed.net, weights, &parts.holdout, &mut product);
    let train_share = if options.train_steps > 0 {
        1.0 - UNTRAINED_SHARE
    } else {
        0.0
    };
    progress(1.0 - train_share);

    let (mut net, mut method) = (computed.net, computed.method);
    if options.train_steps > 0 {
        let mut trained = computed.start;
        let schedule = Schedule {
            steps: options.train_steps,
            live_weight: (computed.price - 1.0).clamp(1.0, MAX_LIVE_WEIGHT) as f32,
        };
        let mut told = |share: f32| progress(UNTRAINED_SHARE + train_share * share);
        train(
            &mut trained,
            &parts.training,
            &schedule,
            &mut random,
            &mut product,
            &mut told,
        );
        offset_all(
            &mut trained,
            &parts.calibration,
            options.target_recall,
            &mut product,
        );
        let density = |net: &Network, product: &mut Product| {
            measure(net, weights, &parts.calibration, product).predicted_density
        };
        if density(&trained, &mut product) < density(&net, &mut product) {
            (net, method) = (trained, Method::Trained);
        }
    }
    net.balance();
    let report = FitReport {
        method,
        result: measure(&net, weights, &parts.holdout, &mut product),
        untrained,
        samples: samples.inputs.len() / samples.d_model,
        holdout_samples: parts.holdout.n,
        parameters: net.fc1.len() + net.fc2.len(),
    };
    let Network { fc1, fc2, .. } = net;
    Ok(FittedLayer { fc1, fc2, report })
}

/// A computed predictor.
struct Computed {
    net: Network,
    method: Method,
    /// The start of training.
    start: Network,
    /// How many predicted neurons one more caught live neuron is worth at the requested recall. A
    /// neuron is then best predicted from a probability of 1 / price upwards, which is where the
    /// trained score is 0 if live neurons count price - 1 times in the loss.
    price: f64,
}

/// Computes a predictor in both forms, and keeps the one that predicts fewer neurons.
fn compute(
    weights: &LayerWeights<'_>,
    parts: &Parts<'_>,
    options: &FitOptions,
    random: &mut Random,
    product: &mut Product,
) -> Computed {
    let rank = options.rank;
    let sketch = parts.training.thinned(SKETCH);
    let map = LowRank::fit(weights, &sketch, rank - 1, random, product);
    let pairs = start::pairs(&map, rank, &sketch, random, product);
    let shifted = start::shifted(&map, rank, &sketch, LINEAR_SHIFT, random);
    let mut candidates =
        [(pairs, Method::Pairs), (shifted, Method::Shifted)].map(|(start, method)| {
            let mut net = start.clone();
            let price = offset_each(&mut net, &sketch, options.target_recall, product);
            offset_all(&mut net, &parts.calibration, options.target_recall, product);
            let density = measure(&net, weights, &parts.calibration, product).predicted_density;
            let computed = Computed {
                net,
                method,
                start,
                price,
            };
            (density, computed)
        });
    candidates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [(_, mut best), _] = candidates;
    if best.method == Method::Shifted {
        best.start = start::shifted(&map, rank, &sketch, TRAINING_SHIFT, random);
    }
    best
}
