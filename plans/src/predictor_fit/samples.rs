//! The samples of a layer in the form that the fit uses, and their division into parts.

use std::ops::Range;

use super::matmul::{Matrix, blocks};
use super::random::Random;
use super::{FitError, LayerSamples, LayerWeights};

/// Consecutive tokens that stay together when samples are divided, about a page: tokens of one text
/// resemble each other, so a finer division would measure on the training data.
const RUN: usize = 256;

/// Some samples of a layer.
pub(super) struct Part<'a> {
    /// `x / rms(x)`. The network is positively homogeneous, so it decides the same for `x`; this
    /// way all samples count equally, whatever the length of the residual stream.
    pub(super) inputs: Vec<f32>, // [n, d_model]
    /// The same of what the FFN sees, if that is something else; else empty.
    ffn_inputs: Vec<f32>,
    /// Never 0.
    pub(super) n: usize,
    rows: Vec<usize>, // [n], in `live`
    live: &'a [u64],  // [all samples, words]
    words: usize,
}

impl<'a> Part<'a> {
    fn new(samples: &'a LayerSamples, rows: Vec<usize>, rms_eps: f32) -> Self {
        let d = samples.d_model;
        let ffn_rows = match samples.ffn_inputs.is_empty() {
            true => &[][..],
            false => &rows,
        };
        Self {
            inputs: normalised(&samples.inputs, d, &rows, rms_eps),
            ffn_inputs: normalised(&samples.ffn_inputs, d, ffn_rows, rms_eps),
            n: rows.len(),
            rows,
            live: &samples.live,
            words: samples.d_ff.div_ceil(64),
        }
    }

    /// At most `n` of these samples, evenly spread.
    pub(super) fn thinned(&self, n: usize) -> Part<'a> {
        let n = n.min(self.n);
        let kept = || (0..n).map(|i| i * self.n / n);
        let d = self.d_model();
        let thin = |all: &[f32]| -> Vec<f32> {
            let rows = kept().filter_map(|i| all.get(i * d..(i + 1) * d));
            rows.flatten().copied().collect()
        };
        Part {
            inputs: thin(&self.inputs),
            ffn_inputs: thin(&self.ffn_inputs),
            n,
            rows: kept().map(|i| self.rows[i]).collect(),
            ..*self
        }
    }

    /// The scales with which each input has mean square 1; 0 if it is always 0. `[d_model]`.
    pub(super) fn inverse_rms(&self) -> Vec<f32> {
        let mut squares = vec![0.0f64; self.d_model()];
        for row in self.inputs.chunks_exact(self.d_model()) {
            for (sum, &v) in squares.iter_mut().zip(row) {
                *sum += f64::from(v) * f64::from(v);
            }
        }
        let scale = |s: &f64| match *s > 0.0 {
            true => (self.n as f64 / s).sqrt() as f32,
            false => 0.0,
        };
        squares.iter().map(scale).collect()
    }

    pub(super) fn d_model(&self) -> usize {
        self.inputs.len() / self.n
    }

    /// `[n, d_model]`.
    pub(super) fn matrix(&self) -> Matrix<'_> {
        Matrix::new(&self.inputs, self.n, self.d_model())
    }

    /// What the FFN sees, divided by its length likewise, `[n, d_model]`.
    pub(super) fn ffn_inputs(&self) -> &[f32] {
        match self.ffn_inputs.is_empty() {
            true => &self.inputs,
            false => &self.ffn_inputs,
        }
    }

    /// Whether neuron `neuron` was live at sample `i` of this part.
    pub(super) fn live(&self, i: usize, neuron: usize) -> bool {
        let word = self.live[self.rows[i] * self.words + neuron / 64];
        word >> (neuron % 64) & 1 == 1
    }
}

/// These rows of `x`, `[_, d]`, each divided by its root mean square.
fn normalised(x: &[f32], d: usize, rows: &[usize], rms_eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len() * d);
    for &row in rows {
        let x = &x[row * d..][..d];
        let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let mean_square = squares / d as f64 + f64::from(rms_eps);
        let scale = match mean_square > 0.0 {
            true => 1.0 / mean_square.sqrt(),
            false => 0.0,
        };
        out.extend(x.iter().map(|&v| (f64::from(v) * scale) as f32));
    }
    out
}

/// The samples, divided.
pub(super) struct Parts<'a> {
    /// To fit the network to.
    pub(super) training: Part<'a>,
    /// To set its offsets.
    pub(super) calibration: Part<'a>,
    /// To measure it.
    pub(super) holdout: Part<'a>,
}

/// Divides runs of consecutive samples at random: a share of `holdout` for measuring, as much for
/// calibration, the rest for training.
pub(super) fn deal<'a>(
    weights: &LayerWeights<'_>,
    samples: &'a LayerSamples,
    holdout: f64,
    random: &mut Random,
) -> Result<Parts<'a>, FitError> {
    let n = samples.inputs.len() / samples.d_model;
    let run = (n / 32).clamp(1, RUN);
    let mut runs: Vec<_> = blocks(n, run).collect();
    random.shuffle(&mut runs);
    let share = ((runs.len() as f64 * holdout).round() as usize).max(1);
    if runs.len() < 3 * share {
        return Err(FitError::TooFewSamples { n, holdout });
    }
    let part = |runs: &[Range<usize>]| {
        let mut rows: Vec<usize> = runs.iter().cloned().flatten().collect();
        rows.sort_unstable();
        Part::new(samples, rows, weights.rms_eps)
    };
    Ok(Parts {
        holdout: part(&runs[..share]),
        calibration: part(&runs[share..2 * share]),
        training: part(&runs[2 * share..]),
    })
}
