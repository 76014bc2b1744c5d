//! A predictor's quality on samples: recall and density.

use serde::Serialize;

use super::LayerWeights;
use super::matmul::{Matrix, Product, blocks};
use super::network::{NEURONS, Network};
use super::samples::Part;

/// A predictor's quality on samples, as shares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measure {
    /// Live neurons that are predicted, of all live neurons; 1 if none is live.
    pub recall: f64,
    /// The same with each live neuron weighted by its gate's output: missed ones are mostly small.
    pub activation_recall: f64,
    /// Predicted neurons, of all.
    pub predicted_density: f64,
    /// Live neurons, of all.
    pub density: f64,
}

/// Measures `net` on `part`.
pub(super) fn measure(
    net: &Network,
    weights: &LayerWeights<'_>,
    part: &Part<'_>,
    product: &mut Product,
) -> Measure {
    let (d, d_ff, n) = (net.d_model(), net.d_ff(), part.n);
    let mut inputs = part.ffn_inputs().to_vec(); // [n, d_model], as the gate sees them
    for row in inputs.chunks_exact_mut(d) {
        row.iter_mut().zip(weights.norm).for_each(|(v, w)| *v *= w);
    }
    let (inputs, gate) = (
        Matrix::new(&inputs, n, d),
        Matrix::new(weights.gate, d_ff, d),
    );
    let hidden = net.hidden(part.matrix(), product);
    let (mut live, mut caught, mut predicted) = (0u64, 0u64, 0u64);
    let (mut activation, mut activation_caught) = (0.0f64, 0.0f64);
    for neurons in blocks(d_ff, NEURONS) {
        let scores = net.scores(neurons.clone(), &hidden, product); // [neurons, n]
        let gates = product.of(gate.slice(neurons.clone()), inputs.t()); // [neurons, n]
        let scores = scores.chunks_exact(n).zip(gates.chunks_exact(n));
        for (neuron, (scores, gates)) in neurons.zip(scores) {
            for (i, (&score, &gate)) in scores.iter().zip(gates).enumerate() {
                let is_predicted = score >= 0.0;
                predicted += u64::from(is_predicted);
                if part.live(i, neuron) {
                    let output = f64::from(gate.max(0.0));
                    live += 1;
                    activation += output;
                    caught += u64::from(is_predicted);
                    activation_caught += output * f64::from(u8::from(is_predicted));
                }
            }
        }
    }
    let share = |part: f64, all: f64| if all > 0.0 { part / all } else { 1.0 };
    Measure {
        recall: share(caught as f64, live as f64),
        activation_recall: share(activation_caught, activation),
        predicted_density: predicted as f64 / (n * d_ff) as f64,
        density: live as f64 / (n * d_ff) as f64,
    }
}
