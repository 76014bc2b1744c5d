//! Mixers whose past is a state of a fixed size. The oracle keeps all of the past instead, as far as that is possible.

use super::weights::dot;
use super::{Oracle, T, rms_norm, sigmoid};
use crate::network::{DeltaNet, ShortConv};
use crate::tensor::TensorId;

impl Oracle {
    /// `c * conv(b * x)` of the new token, `[channels]`; `h`: `[d_model]`.
    pub(super) fn short_conv(&mut self, l: usize, conv: &ShortConv, h: &[f32]) -> Vec<f32> {
        let bcx = self.project((l, 0), None, h); // [3 * channels]
        let (b, cx) = bcx.split_at(conv.channels);
        let (c, x) = cx.split_at(conv.channels);
        let new: Vec<f32> = b.iter().zip(x).map(|(b, x)| b * x).collect();
        let convolved = self.convolve(l, conv.kernel, &new);
        convolved.iter().zip(c).map(|(y, c)| y * c).collect()
    }

    /// The results of all value heads of a delta net for the new token, `[n_value_heads * value_dim]`; `h`:
    /// `[d_model]`.
    pub(super) fn delta_net(&mut self, l: usize, net: &DeltaNet, h: &[f32]) -> Vec<f32> {
        let [q, k, v, z, alpha, beta] =
            [0, 1, 2, 3, 4, 5].map(|matrix| self.project((l, matrix), None, h));
        let convolved = self.convolve(l, net.kernel, &[q, k, v].concat());
        let convolved: Vec<f32> = convolved.into_iter().map(silu).collect();
        let (q, kv) = convolved.split_at(net.keys_dim());
        let (k, v) = kv.split_at(net.keys_dim());
        let vector = |t| {
            let vector = self.weights.vector(TensorId::Layer(l, t));
            vector.expect("a delta net was read with its vectors")
        };
        let (bias, rate) = (vector(T::DecayBias), vector(T::DecayRate));
        let norm = vector(T::HeadNorm);
        let memory = &mut self.past[l].memory;
        memory.resize(net.n_value_heads * net.key_dim * net.value_dim, 0.0);
        let states = memory.chunks_exact_mut(net.key_dim * net.value_dim);
        let mut out = Vec::with_capacity(net.values_dim());
        for (head, state) in states.enumerate() {
            let key = net.key_head(head) * net.key_dim..(net.key_head(head) + 1) * net.key_dim;
            let value = head * net.value_dim..(head + 1) * net.value_dim;
            let decay = f64::from(rate[head]) * softplus(alpha[head] + bias[head]);
            let query_scale = 1.0 / (net.key_dim as f64).sqrt();
            let result = remember(
                state,
                (&unit(&q[key.clone()], query_scale), &unit(&k[key], 1.0)),
                &v[value.clone()],
                (decay.exp(), sigmoid(beta[head])),
            );
            let normed = rms_norm(&result, norm, net.eps);
            out.extend(normed.iter().zip(&z[value]).map(|(y, &z)| y * silu(z)));
        }
        out
    }

    /// The causal convolution of `new` and what came before it, `[channels]`.
    fn convolve(&mut self, l: usize, kernel: usize, new: &[f32]) -> Vec<f32> {
        let channels = new.len();
        let taps = self.weights.vector(TensorId::Layer(l, T::ConvTaps));
        let taps = taps.expect("a convolution was read with its weights"); // [kernel, channels]
        let past = &mut self.past[l].convolved;
        past.extend_from_slice(new);
        let n = past.len() / channels;
        let seen = (n.saturating_sub(kernel)..n).rev();
        let mut sums = vec![0.0f64; channels];
        for (position, tap) in seen.zip((0..kernel).rev()) {
            for (c, sum) in sums.iter_mut().enumerate() {
                let (x, w) = (past[position * channels + c], taps[tap * channels + c]);
                *sum += f64::from(x) * f64::from(w);
            }
        }
        sums.into_iter().map(|sum| sum as f32).collect()
    }
}

fn silu(x: f32) -> f32 {
    (f64::from(x) * sigmoid(x)) as f32
}

/// `ln(1 + e^x)`
fn softplus(x: f32) -> f64 {
    f64::from(x).exp().ln_1p()
}

/// `x` with the length `scale`.
fn unit(x: &[f32], scale: f64) -> Vec<f32> {
    let length = (dot(x, x) + f64::from(DeltaNet::EPS)).sqrt();
    x.iter()
        .map(|&v| (f64::from(v) / length * scale) as f32)
        .collect()
}

/// One position of a head's delta rule; `state`: `[key_dim, value_dim]`. Returns `q · state`.
fn remember(
    state: &mut [f32],
    (q, k): (&[f32], &[f32]),
    v: &[f32],
    (decay, beta): (f64, f64),
) -> Vec<f32> {
    let mut known = vec![0.0f64; v.len()];
    for (row, &k) in state.chunks_exact_mut(v.len()).zip(k) {
        for (s, known) in row.iter_mut().zip(&mut known) {
            *s = (f64::from(*s) * decay) as f32;
            *known += f64::from(k) * f64::from(*s);
        }
    }
    let delta: Vec<f64> = v
        .iter()
        .zip(&known)
        .map(|(&v, known)| beta * (f64::from(v) - known))
        .collect();
    let mut out = vec![0.0f64; v.len()];
    for ((row, &k), &q) in state.chunks_exact_mut(v.len()).zip(k).zip(q) {
        for ((s, delta), out) in row.iter_mut().zip(&delta).zip(&mut out) {
            *s = (f64::from(*s) + f64::from(k) * delta) as f32;
            *out += f64::from(q) * f64::from(*s);
        }
    }
    out.into_iter().map(|o| o as f32).collect()
}
