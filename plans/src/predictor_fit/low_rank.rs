//! The linear map of low rank that approximates a gate best on the samples.
//!
//! For outputs `y = G (norm * u)`, each divided by its deviation, the map of rank k with the least
//! squared error over the samples projects `y` on the k largest principal components of the
//! outputs: `y ~ QᵀQ y`, so `Q G` of size `[k, d_model]` and `Qᵀ` are its factors. This is the
//! truncated SVD of `G C^(1/2)` with `C` the second moment of the inputs, but neither `C` nor its
//! root is ever needed: subspace iteration with a random start (Halko, Martinsson & Tropp 2011)
//! takes a few products with the gate and with the samples.

use super::LayerWeights;
use super::linear::eigen;
use super::matmul::{Matrix, Product, blocks, dot};
use super::network::NEURONS;
use super::random::Random;
use super::samples::Part;

/// Rounds of subspace iteration.
const ROUNDS: usize = 3;
/// Additional directions, which make the wanted ones accurate.
const OVERSAMPLING: usize = 16;
/// Maximum number of samples used to find a neuron's gate's deviation.
const PROBES: usize = 512;
/// Components with less than this share of the largest one's variance are rounding errors.
const NOISE: f64 = 1e-6;

/// `(gate_i(u) - cut) / deviation_i ~ mean_i + Σ_k loading_ik * component_k(u)`, with components
/// that have mean 0 and variance 1 over the samples.
pub(super) struct LowRank {
    /// How many components there are.
    pub(super) k: usize,
    /// `[k, d_model]`; component k is `directions_k · u - means_k`.
    pub(super) directions: Vec<f32>,
    /// `[k]`.
    pub(super) means: Vec<f32>,
    /// `[k, d_ff]`.
    pub(super) loadings: Vec<f32>,
    /// Mean of the scaled gate, less its cut, `[d_ff]`.
    pub(super) neuron_means: Vec<f32>,
    /// Deviation of what the components do not explain, in (0, 1], `[d_ff]`.
    pub(super) errors: Vec<f32>,
}

/// The gate's rows and what they are multiplied by.
struct Gate<'a> {
    rows: Matrix<'a>,  // [d_ff, d_model]
    inverse: Vec<f32>, // [d_ff], 1 / deviation
    centred: Vec<f32>, // [n, d_model], norm * u less its mean
    n: usize,
}

impl LowRank {
    /// At most `k` components of `weights`' gate over `part`; fewer if the samples or the gate have fewer.
    pub(super) fn fit(
        weights: &LayerWeights<'_>,
        part: &Part<'_>,
        k: usize,
        random: &mut Random,
        product: &mut Product,
    ) -> Self {
        let d = weights.norm.len();
        let d_ff = weights.gate.len() / d;
        let mean = mean_input(weights, part);
        let gate = Gate::new(weights, part, &mean, product);
        let neuron_means = weights.gate.chunks_exact(d).zip(&gate.inverse);
        let neuron_means = neuron_means
            .map(|(row, inverse)| (dot(row, &mean) - weights.cut) * inverse)
            .collect();

        let width = (k + OVERSAMPLING).min(d).min(d_ff);
        let q = gate.subspace(width, random, product); // [width, d_ff]
        let directions = gate.pull(&mut q.clone(), width, product); // [width, d_model]
        let (variances, rotation) = gate.principal(&directions, width, product);
        let real = |&&variance: &&f64| variance > NOISE * variances[0];
        let k = k.min(variances.iter().filter(real).count());
        let rotation: Vec<f32> = rotation[..k * width].iter().map(|&v| v as f32).collect();
        let rotation = Matrix::new(&rotation, k, width);
        let mut directions = product.of(rotation, Matrix::new(&directions, width, d));
        let mut loadings = product.of(rotation, Matrix::new(&q, width, d_ff));
        let mut means = Vec::with_capacity(k);
        let mut explained = vec![0.0f32; d_ff];
        for c in 0..k {
            let deviation = variances[c].sqrt() as f32;
            let direction = &mut directions[c * d..][..d];
            means.push(dot(direction, &mean) / deviation);
            for (v, norm) in direction.iter_mut().zip(weights.norm) {
                *v *= norm / deviation;
            }
            for (l, explained) in loadings[c * d_ff..][..d_ff].iter_mut().zip(&mut explained) {
                *l *= deviation;
                *explained += *l * *l;
            }
        }
        let errors = explained.iter().map(|e| (1.0 - e).max(1e-4).sqrt());
        Self {
            k,
            directions,
            means,
            loadings,
            neuron_means,
            errors: errors.collect(),
        }
    }
}

impl<'a> Gate<'a> {
    fn new(
        weights: &LayerWeights<'a>,
        part: &Part<'_>,
        mean: &[f32],
        product: &mut Product,
    ) -> Self {
        let d = weights.norm.len();
        let mut gate = Self {
            rows: Matrix::new(weights.gate, weights.gate.len() / d, d),
            inverse: Vec::new(),
            n: part.n,
            centred: part.inputs.clone(),
        };
        for row in gate.centred.chunks_exact_mut(d) {
            for ((v, norm), mean) in row.iter_mut().zip(weights.norm).zip(mean) {
                *v = *v * norm - mean;
            }
        }
        gate.inverse = gate.inverse_deviations(d, product);
        gate
    }

    /// `[n, d_model]`.
    fn inputs(&self) -> Matrix<'_> {
        Matrix::new(&self.centred, self.n, self.centred.len() / self.n)
    }

    /// Orthonormal rows that span the directions of largest variance of the scaled outputs,
    /// `[width, d_ff]`.
    fn subspace(&self, width: usize, random: &mut Random, product: &mut Product) -> Vec<f32> {
        let d_ff = self.inverse.len();
        let mut q: Vec<f32> = (0..width * d_ff).map(|_| random.normal()).collect();
        for _ in 0..ROUNDS {
            let inner = self.pull(&mut q, width, product); // [width, d_model]
            let inner = self.second_moment(&inner, width, product);
            let inner = Matrix::new(&inner, width, inner.len() / width);
            q = product.of(inner, self.rows.t());
            self.scale(&mut q);
            orthonormalise(&mut q, d_ff);
        }
        q
    }

    /// `1 / deviation` of every neuron's gate, `[d_ff]`; 0 if it does not vary.
    fn inverse_deviations(&self, d: usize, product: &mut Product) -> Vec<f32> {
        // Spread over all samples.
        let n = self.n.min(PROBES);
        let step = self.n / n;
        let probes: Vec<f32> = self
            .centred
            .chunks_exact(d)
            .step_by(step)
            .take(n)
            .flatten()
            .copied()
            .collect();
        let probes = Matrix::new(&probes, n, d);
        let outputs = blocks(self.rows.rows(), NEURONS).flat_map(|neurons| {
            let block = product.of(self.rows.slice(neurons), probes.t()); // [neurons, n]
            block
                .chunks_exact(n)
                .map(|y| (dot(y, y) / n as f32).sqrt())
                .collect::<Vec<_>>()
        });
        let deviations: Vec<f32> = outputs.collect();
        let largest = deviations.iter().fold(0.0f32, |a, &b| a.max(b));
        let inverse = |&s: &f32| if s > 1e-6 * largest { 1.0 / s } else { 0.0 };
        deviations.iter().map(inverse).collect()
    }

    /// Divides by the neurons' deviations. `q`: `[_, d_ff]`.
    fn scale(&self, q: &mut [f32]) {
        for row in q.chunks_exact_mut(self.inverse.len()) {
            for (v, s) in row.iter_mut().zip(&self.inverse) {
                *v *= s;
            }
        }
    }

    /// `q` times the scaled gate: `[width, d_model]`. Scales `q`, `[width, d_ff]`.
    fn pull(&self, q: &mut [f32], width: usize, product: &mut Product) -> Vec<f32> {
        self.scale(q);
        product.of(Matrix::new(q, width, self.inverse.len()), self.rows)
    }

    /// `inner` times the inputs' second moment. `inner`: `[width, d_model]`.
    fn second_moment(&self, inner: &[f32], width: usize, product: &mut Product) -> Vec<f32> {
        let x = self.inputs();
        let inner = Matrix::new(inner, width, inner.len() / width);
        let projected = product.of(inner, x.t()); // [width, n]
        product.of(Matrix::new(&projected, width, self.n), x)
    }

    /// Variances of the samples along `directions` after rotation to principal axes, `[width]`,
    /// descending, and the rotation, `[width, width]`.
    fn principal(
        &self,
        directions: &[f32],
        width: usize,
        product: &mut Product,
    ) -> (Vec<f64>, Vec<f64>) {
        let d = directions.len() / width;
        let projected = product.of(Matrix::new(directions, width, d), self.inputs().t());
        let projected = Matrix::new(&projected, width, self.n);
        let covariance = product.of(projected, projected.t());
        let covariance = covariance.iter().map(|&v| f64::from(v) / self.n as f64);
        eigen(covariance.collect(), width)
    }
}

/// Mean of `norm * u` over the samples used, `[d_model]`.
fn mean_input(weights: &LayerWeights<'_>, part: &Part<'_>) -> Vec<f32> {
    let d = weights.norm.len();
    let n = part.n;
    let mut sums = vec![0.0f64; d];
    for row in part.inputs.chunks_exact(d) {
        for (sum, &v) in sums.iter_mut().zip(row) {
            *sum += f64::from(v);
        }
    }
    let norms = sums.iter().zip(weights.norm);
    norms
        .map(|(s, norm)| (s / n as f64) as f32 * norm)
        .collect()
}

/// Makes the rows of `q`, `[_, width]`, orthonormal (Gram & Schmidt, twice); dependent rows become 0.
fn orthonormalise(q: &mut [f32], width: usize) {
    for i in 0..q.len() / width {
        let (done, rest) = q.split_at_mut(i * width);
        let row = &mut rest[..width];
        let before = dot(row, row).sqrt();
        for _ in 0..2 {
            for basis in done.chunks_exact(width) {
                let along = dot(row, basis);
                for (v, b) in row.iter_mut().zip(basis) {
                    *v -= along * b;
                }
            }
        }
        let norm = dot(row, row).sqrt();
        let scale = if norm > 1e-5 * before {
            1.0 / norm
        } else {
            0.0
        };
        row.iter_mut().for_each(|v| *v *= scale);
    }
}
