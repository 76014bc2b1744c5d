//! Mixers whose past is a state of a fixed size. The oracle keeps all of the past instead, as far as that is possible.

use super::{Oracle, T};
use crate::network::ShortConv;
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
