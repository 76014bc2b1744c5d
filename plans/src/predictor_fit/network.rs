//! The predictor's network, `fc2 · relu(fc1 · x)`, and how to give it offsets although it has none.
//!
//! It is positively homogeneous: `score(a x) = a score(x)` for `a > 0`. So is the gate of a ReLU layer after an
//! RMSNorm, `gate · (norm * x) > cut * rms(x)`. A mask `score >= 0` therefore follows the layer at every length of the
//! residual stream, where `score >= t` would not. The role of an offset is played by `c · relu(fc1 · x)`, with `c` such
//! that it is close to `rms(x)` on the samples: subtracting `offset * c` from a row of fc2 lowers its score by
//! `offset * rms(x)`.

use std::ops::Range;

use super::linear::cholesky_solve;
use super::matmul::{Matrix, Product, blocks, dot};

/// Neurons processed at a time if a whole `[d_ff, n]` would be too large.
pub(super) const NEURONS: usize = 256;

/// Ridge of the fit of `c`, relative to the mean square of a hidden unit.
const RIDGE: f64 = 1e-4;

/// A predictor.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub(super) fc1: Vec<f32>, // [rank, d_model]
    pub(super) fc2: Vec<f32>, // [d_ff, rank]
    pub(super) rank: usize,
}

impl Network {
    pub(super) fn d_model(&self) -> usize {
        self.fc1.len() / self.rank
    }

    pub(super) fn d_ff(&self) -> usize {
        self.fc2.len() / self.rank
    }

    /// `relu(inputs · fc1ᵀ)`, `[n, rank]`.
    pub(super) fn hidden(&self, inputs: Matrix<'_>, product: &mut Product) -> Vec<f32> {
        let fc1 = Matrix::new(&self.fc1, self.rank, self.d_model());
        let mut hidden = product.of(inputs, fc1.t());
        for h in &mut hidden {
            *h = h.max(0.0);
        }
        hidden
    }

    /// Scores of some neurons, `[neurons, n]`. `hidden`: `[n, rank]`.
    pub(super) fn scores(
        &self,
        neurons: Range<usize>,
        hidden: &[f32],
        product: &mut Product,
    ) -> Vec<f32> {
        let hidden = Matrix::new(hidden, hidden.len() / self.rank, self.rank);
        let fc2 = Matrix::new(&self.fc2, self.d_ff(), self.rank);
        product.of(fc2.slice(neurons), hidden.t())
    }

    /// Calls `each(neuron, scores)` for every neuron, `scores`: `[n]`. `hidden`: `[n, rank]`, n not 0.
    pub(super) fn for_each_neuron(
        &self,
        hidden: &[f32],
        product: &mut Product,
        mut each: impl FnMut(usize, &[f32]),
    ) {
        let n = hidden.len() / self.rank;
        for neurons in blocks(self.d_ff(), NEURONS) {
            let scores = self.scores(neurons.clone(), hidden, product);
            for (neuron, scores) in neurons.zip(scores.chunks_exact(n)) {
                each(neuron, scores);
            }
        }
    }

    /// The combination of hidden units that is as close to 1 as possible on samples of RMS 1,
    /// `[rank]`. `hidden`: `[n, rank]`.
    pub(super) fn constant(&self, hidden: &[f32], product: &mut Product) -> Vec<f32> {
        let n = hidden.len() / self.rank;
        let h = Matrix::new(hidden, n, self.rank);
        let squares = product.of(h.t(), h); // [rank, rank]
        let mut squares: Vec<f64> = squares.iter().map(|&v| f64::from(v)).collect();
        let trace: f64 = (0..self.rank).map(|k| squares[k * (self.rank + 1)]).sum();
        let ridge = (RIDGE * trace / self.rank as f64).max(f64::MIN_POSITIVE);
        let mut sums = vec![0.0f64; self.rank];
        for row in hidden.chunks_exact(self.rank) {
            for (sum, &h) in sums.iter_mut().zip(row) {
                *sum += f64::from(h);
            }
        }
        for k in 0..self.rank {
            squares[k * (self.rank + 1)] += ridge;
        }
        let solution = cholesky_solve(&mut squares, &sums);
        solution.iter().map(|&v| v as f32).collect()
    }

    /// Lowers the score of each neuron by `offsets[neuron]` times the value of `constant`.
    pub(super) fn lower(&mut self, constant: &[f32], offsets: &[f32]) {
        for (row, &offset) in self.fc2.chunks_exact_mut(self.rank).zip(offsets) {
            for (w, &c) in row.iter_mut().zip(constant) {
                *w -= offset * c;
            }
        }
    }

    /// Scales hidden units so that the columns of fc2 have mean square 1, and all scores so that the rows of fc1 have
    /// it on average. No mask changes, but neither f16 nor blocks of few bits along a row lose small weights next to
    /// large ones.
    pub(super) fn balance(&mut self) {
        let (rank, d_ff, d) = (self.rank, self.d_ff() as f32, self.d_model());
        for k in 0..rank {
            let column = || self.fc2.iter().skip(k).step_by(rank);
            let scale = (column().map(|w| w * w).sum::<f32>() / d_ff).sqrt();
            if scale > 0.0 && scale.is_finite() {
                let column = self.fc2.iter_mut().skip(k).step_by(rank);
                column.for_each(|w| *w /= scale);
                let row = &mut self.fc1[k * d..][..d];
                row.iter_mut().for_each(|w| *w *= scale);
            }
        }
        let scale = (dot(&self.fc1, &self.fc1) / self.fc1.len() as f32).sqrt();
        if scale > 0.0 && scale.is_finite() {
            self.fc1.iter_mut().for_each(|w| *w /= scale);
        }
    }
}
