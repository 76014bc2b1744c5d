//! Networks without training: a low-rank map written as `fc2 · relu(fc1 · x)`.
//!
//! A linear map passes a ReLU in two ways. As *pairs*, `v·x = relu(v·x) - relu(-v·x)`: exact, but a
//! component costs two hidden units. Or *shifted*: if some direction `m` has `m·x` close to
//! `rms(x)` on all samples (residual streams have a strong common part, so it often exists),
//! `relu(v·x + s m·x) = v·x + s m·x` as long as the shift s keeps it positive, and one unit for
//! `m·x` itself removes the shift again: a component costs one unit.

use super::low_rank::LowRank;
use super::matmul::{Product, dot};
use super::network::Network;
use super::random::Random;
use super::samples::Part;

/// Steps of conjugate gradients towards the constant direction; stopping early keeps it from
/// overfitting single samples.
const STEPS: usize = 40;
/// Ridge of the constant direction, in mean squares of an input.
const RIDGE: f32 = 1e-3;
/// From a normal error of deviation 1 to a logistic score: Φ(z) ~ σ(1.702 z) (Camilli 1994).
const LOGISTIC: f32 = 1.702;

/// The loading of each component on each neuron as log-odds, `[k, d_ff]`, and the neurons'
/// intercepts, `[d_ff]`.
fn log_odds(map: &LowRank) -> (Vec<f32>, Vec<f32>) {
    let factors: Vec<f32> = map.errors.iter().map(|e| LOGISTIC / e).collect();
    let d_ff = factors.len();
    let scaled =
        |row: &[f32]| -> Vec<f32> { row.iter().zip(&factors).map(|(v, f)| v * f).collect() };
    let loadings = map.loadings.chunks_exact(d_ff).flat_map(scaled).collect();
    (loadings, scaled(&map.neuron_means))
}

/// `map` in pairs of hidden units.
pub(super) fn pairs(
    map: &LowRank,
    rank: usize,
    training: &Part<'_>,
    random: &mut Random,
    product: &mut Product,
) -> Network {
    let d = training.d_model();
    let (loadings, mut offsets) = log_odds(map);
    let d_ff = offsets.len();
    let k = map.k.min(rank / 2);
    let mut net = Network {
        fc1: vec![0.0; rank * d],
        fc2: vec![0.0; d_ff * rank],
        rank,
    };
    for c in 0..k {
        let direction = &map.directions[c * d..][..d];
        for (i, v) in direction.iter().enumerate() {
            net.fc1[2 * c * d + i] = *v;
            net.fc1[(2 * c + 1) * d + i] = -v;
        }
        for (i, l) in loadings[c * d_ff..][..d_ff].iter().enumerate() {
            net.fc2[i * rank + 2 * c] = *l;
            net.fc2[i * rank + 2 * c + 1] = -l;
            offsets[i] -= l * map.means[c];
        }
    }
    fill(&mut net, 2 * k, random);
    let hidden = net.hidden(training.matrix(), product);
    let constant = net.constant(&hidden, product);
    offsets.iter_mut().for_each(|o| *o = -*o);
    net.lower(&constant, &offsets);
    net
}

/// `map` in hidden units shifted by `shift` deviations along the constant direction.
///
/// With a shift of 3, hardly any sample reaches the bend of a ReLU, and the map is linear. Training gets further if
/// samples reach it often, since the units can then learn what a linear map cannot express.
pub(super) fn shifted(
    map: &LowRank,
    rank: usize,
    training: &Part<'_>,
    shift: f32,
    random: &mut Random,
) -> Network {
    let d = training.d_model();
    let (loadings, offsets) = log_odds(map);
    let d_ff = offsets.len();
    let k = map.k.min(rank - 1);
    let constant = constant_direction(training);
    let mut net = Network {
        fc1: vec![0.0; rank * d],
        fc2: vec![0.0; d_ff * rank],
        rank,
    };
    net.fc1[..d].copy_from_slice(&constant);
    for (i, offset) in offsets.iter().enumerate() {
        net.fc2[i * rank] = *offset;
    }
    for c in 0..k {
        let direction = &map.directions[c * d..][..d];
        let row = &mut net.fc1[(c + 1) * d..][..d];
        for ((w, v), m) in row.iter_mut().zip(direction).zip(&constant) {
            *w = v + (shift - map.means[c]) * m;
        }
        for (i, l) in loadings[c * d_ff..][..d_ff].iter().enumerate() {
            net.fc2[i * rank + c + 1] = *l;
            net.fc2[i * rank] -= shift * l;
        }
    }
    fill(&mut net, k + 1, random);
    net
}

/// Makes the hidden units from `first` on random and without effect: if there are fewer components than units, the
/// others are free for training.
fn fill(net: &mut Network, first: usize, random: &mut Random) {
    let d = net.d_model();
    for w in &mut net.fc1[first * d..] {
        *w = random.normal() / (d as f32).sqrt();
    }
}

/// The direction `m` for which `m·u` is closest to 1 over the samples, with a ridge: conjugate
/// gradients on the normal equations, inputs scaled to mean square 1 each. `[d_model]`.
fn constant_direction(training: &Part<'_>) -> Vec<f32> {
    let (n, d) = (training.n, training.d_model());
    let rows = || training.inputs.chunks_exact(d);
    let scales = training.inverse_rms();
    // Xᵀ y / n, with a row's factor given by `y`; the inputs scaled.
    let back = |y: &dyn Fn(&[f32]) -> f32| -> Vec<f32> {
        let mut sums = vec![0.0f32; d];
        for row in rows() {
            let y = y(row) / n as f32;
            sums.iter_mut().zip(row).for_each(|(s, v)| *s += y * v);
        }
        sums.iter_mut().zip(&scales).for_each(|(s, c)| *s *= c);
        sums
    };
    let mut solution = vec![0.0f32; d];
    let mut residual = back(&|_| 1.0);
    let mut search = residual.clone();
    let mut norm = dot(&residual, &residual);
    let first = norm;
    for _ in 0..STEPS {
        if norm <= 1e-8 * first {
            break;
        }
        let direction: Vec<f32> = search.iter().zip(&scales).map(|(v, s)| v * s).collect();
        let mut image = back(&|row| dot(row, &direction));
        image
            .iter_mut()
            .zip(&search)
            .for_each(|(i, s)| *i += RIDGE * s);
        let step = norm / dot(&search, &image);
        for i in 0..d {
            solution[i] += step * search[i];
            residual[i] -= step * image[i];
        }
        let next = dot(&residual, &residual);
        search
            .iter_mut()
            .zip(&residual)
            .for_each(|(s, r)| *s = r + next / norm * *s);
        norm = next;
    }
    solution.iter().zip(&scales).map(|(v, s)| v * s).collect()
}
