//! Gathering what a model computes on a text: the inputs of its layers and FFNs, and which neurons were alive.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_models::network::Network;
use forebay_plans::predictor_fit::LayerSamples;
use forebay_stages::frame::Observer;
use parking_lot::Mutex;

/// Keeps samples of some layers; give it to [`EngineBuilder::observer`](crate::EngineBuilder::observer).
#[derive(Debug)]
pub struct Gather {
    layers: Range<usize>,
    network: Network,
    capacity: usize,
    /// The sample of the current text's position 0.
    base: AtomicUsize,
    /// Samples by layer of the range.
    samples: Vec<Mutex<LayerSamples>>,
    /// Whether inputs of layers are gathered besides those of their FFNs.
    before_layer: bool,
}

impl Gather {
    /// Room for `capacity` tokens of `layers`; the inputs are the layers' if `before_layer`, else the FFNs'.
    pub fn new(
        network: &Network,
        layers: Range<usize>,
        capacity: usize,
        before_layer: bool,
    ) -> Arc<Self> {
        let inputs = capacity * network.d_model;
        let empty = |layer: usize| LayerSamples {
            d_model: network.d_model,
            d_ff: network.ffn(layer).d_ff,
            inputs: vec![0.0; inputs],
            ffn_inputs: vec![0.0; if before_layer { inputs } else { 0 }],
            live: vec![0; capacity * network.ffn(layer).d_ff.div_ceil(64)],
        };
        Arc::new(Self {
            samples: layers.clone().map(|l| Mutex::new(empty(l))).collect(),
            layers,
            network: network.clone(),
            capacity,
            base: AtomicUsize::new(0),
            before_layer,
        })
    }

    /// Bytes that a token takes in each layer.
    pub fn bytes_per_token(network: &Network, before_layer: bool) -> usize {
        let words = network.widest_ffn().div_ceil(64);
        let inputs = network.d_model * size_of::<f32>() * (1 + usize::from(before_layer));
        inputs + words * size_of::<u64>()
    }

    /// A new text begins, whose first token is sample `base`.
    pub fn begin(&self, base: usize) {
        self.base.store(base, Ordering::Release);
    }

    /// Takes the samples of a layer of the range out.
    pub fn take(&self, layer: usize) -> LayerSamples {
        let mut samples = self.samples[layer - self.layers.start].lock();
        let empty = LayerSamples {
            d_model: self.network.d_model,
            d_ff: self.network.ffn(layer).d_ff,
            inputs: Vec::new(),
            ffn_inputs: Vec::new(),
            live: Vec::new(),
        };
        std::mem::replace(&mut samples, empty)
    }

    /// The layer's samples, and the number of the one at `position`.
    fn place(&self, layer: usize, position: usize) -> Option<(&Mutex<LayerSamples>, usize)> {
        let first = self.base.load(Ordering::Acquire) + position;
        let samples = self.samples.get(layer.checked_sub(self.layers.start)?)?;
        Some((samples, first))
    }

    /// Keeps the inputs `x` of tokens from `position` on, `[n_tokens, d_model]`, where `of` says.
    fn keep(
        &self,
        (layer, position): (usize, usize),
        x: &[f32],
        of: fn(&mut LayerSamples) -> &mut [f32],
    ) {
        let Some((samples, first)) = self.place(layer, position) else {
            return;
        };
        let room = self.capacity.saturating_sub(first) * self.network.d_model;
        let x = &x[..x.len().min(room)];
        of(&mut samples.lock())[first * self.network.d_model..][..x.len()].copy_from_slice(x);
    }
}

impl Observer for Gather {
    fn bytes(&self) -> u64 {
        let of_layer = self.capacity * Self::bytes_per_token(&self.network, self.before_layer);
        (self.samples.len() * of_layer) as u64
    }

    fn layer_input(&self, layer: usize, position: usize, x: &[f32]) {
        if self.before_layer {
            self.keep((layer, position), x, |samples| &mut samples.inputs);
        }
    }

    fn residual(&self, layer: usize, position: usize, x: &[f32]) {
        self.keep(
            (layer, position),
            x,
            match self.before_layer {
                true => |samples| &mut samples.ffn_inputs,
                false => |samples| &mut samples.inputs,
            },
        );
    }

    fn gates(&self, layer: usize, position: usize, neurons: (usize, usize), gates: &[f32]) {
        let Some((samples, sample)) = self.place(layer, position) else {
            return;
        };
        let ((first, n), ffn) = (neurons, self.network.ffn(layer));
        let words = ffn.d_ff.div_ceil(64);
        let mut samples = samples.lock();
        for (t, gates) in gates.chunks_exact(n).enumerate() {
            if sample + t >= self.capacity {
                return;
            }
            let live = &mut samples.live[(sample + t) * words..][..words];
            for (i, &g) in (first..).zip(gates) {
                if ffn.activation.gate(g) != 0.0 {
                    live[i / 64] |= 1 << (i % 64);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_models::network::Uniform;

    use super::*;

    #[test]
    fn what_is_told_is_kept_where_it_belongs() {
        let network = Uniform {
            d_model: 2,
            d_ff: 70,
            ..crate::learn::tests::sizes()
        };
        let gather = Gather::new(&network.network(), 1..2, 3, false);
        gather.begin(1);
        gather.layer_input(1, 0, &[7.0; 4]);
        gather.residual(0, 0, &[9.0; 4]);
        gather.residual(1, 0, &[1.0, 2.0, 3.0, 4.0]);
        gather.residual(1, 2, &[5.0; 2]);
        gather.gates(1, 0, (64, 3), &[0.5, -1.0, 0.0, -1.0, 2.0, 3.0]);
        gather.gates(1, 2, (0, 1), &[1.0]);
        let samples = gather.take(1);
        assert_eq!(samples.inputs, [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
        assert!(samples.ffn_inputs.is_empty());
        assert_eq!(samples.live, [0, 0, 0, 0b001, 0, 0b110]);
    }

    #[test]
    fn inputs_of_layers_are_kept_beside_those_of_their_ffns() {
        let gather = Gather::new(&crate::learn::tests::sizes().network(), 0..1, 1, true);
        let d_model = crate::learn::tests::sizes().d_model;
        gather.layer_input(0, 0, &vec![1.0; d_model]);
        gather.residual(0, 0, &vec![2.0; d_model]);
        let samples = gather.take(0);
        assert_eq!(samples.inputs, vec![1.0; d_model]);
        assert_eq!(samples.ffn_inputs, vec![2.0; d_model]);
    }
}
