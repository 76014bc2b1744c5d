//! Measuring how large activated gates are, for thresholds that skip the small ones (CATS, arXiv 2404.08763).

use std::sync::Arc;

use forebay_models::bundle::GateCalibration;
use forebay_models::network::Network;
use forebay_stages::frame::Observer;
use parking_lot::Mutex;

/// Bins of a histogram: the upper half of a positive f32, so that a bin's edges are 1/128 apart.
const BINS: usize = 1 << 15;
/// Parts into which the stored quantiles divide a layer's gates.
const PARTS: usize = 256;

/// Counts the sizes of activated gates by layer.
#[derive(Debug)]
pub struct GateSizes {
    network: Network,
    /// `[n_layers][BINS]`
    counts: Vec<Mutex<Vec<u64>>>,
}

impl GateSizes {
    /// Nothing counted yet.
    pub fn new(network: &Network) -> Arc<Self> {
        let layer = |_| Mutex::new(vec![0; BINS]);
        Arc::new(Self {
            network: network.clone(),
            counts: (0..network.n_layers()).map(layer).collect(),
        })
    }

    /// The quantiles after `tokens` tokens.
    pub fn calibration(&self, tokens: usize) -> GateCalibration {
        let quantiles = self.counts.iter().map(|counts| quantiles(&counts.lock()));
        GateCalibration {
            tokens,
            quantiles: quantiles.collect(),
            density: None,
        }
    }
}

/// `PARTS + 1` ascending values, from the smallest to the largest.
fn quantiles(counts: &[u64]) -> Vec<f32> {
    let total: u64 = counts.iter().sum();
    let value = |bin: usize| f32::from_bits((bin as u32) << 16);
    let (mut bin, mut below) = (0, 0);
    (0..=PARTS as u64)
        .map(|part| {
            while bin + 1 < BINS && (below + counts[bin]) * (PARTS as u64) < part * total.max(1) {
                below += counts[bin];
                bin += 1;
            }
            value(bin)
        })
        .collect()
}

impl Observer for GateSizes {
    fn bytes(&self) -> u64 {
        (self.counts.len() * BINS * size_of::<u64>()) as u64
    }

    fn gates(&self, layer: usize, _: usize, _: (usize, usize), gates: &[f32]) {
        let mut counts = self.counts[layer].lock();
        for &g in gates {
            let size = self.network.ffn(layer).activation.gate(g).abs();
            if size.is_finite() {
                counts[(size.to_bits() >> 16) as usize] += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_models::network::{Activation, Uniform};

    use super::*;

    #[test]
    fn thresholds_leave_the_wanted_part() {
        let network = Uniform {
            n_layers: 1,
            activation: Activation::Relu,
            ..crate::learn::tests::sizes()
        };
        let sizes = GateSizes::new(&network.network());
        let gates: Vec<f32> = (0..10_000).map(|i| 0.001 * i as f32).collect();
        sizes.gates(0, 0, (0, gates.len()), &gates);
        let calibration = sizes.calibration(1);
        assert!(calibration.quantiles[0].is_sorted());
        for density in [0.1, 0.25, 0.5, 0.9] {
            let threshold = calibration.thresholds(density)[0];
            let left = gates.iter().filter(|&&g| g >= threshold).count() as f64 / 10_000.0;
            assert!((left - density).abs() < 0.02, "{density}: {left}");
        }
    }
}
