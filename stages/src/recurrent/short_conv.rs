//! A gated short convolution: `c * conv(b * x)`.

use std::ops::Range;

use forebay_models::network::ShortConv;

use super::RecurrentWeights;
use super::convolution::{convolve, state_len};

/// A core's channels of one layer.
#[derive(Debug)]
pub(super) struct ShortConvPart {
    conv: ShortConv,
    channels: Range<usize>,
}

impl ShortConvPart {
    pub fn new(conv: &ShortConv, channels: Range<usize>) -> Self {
        Self {
            conv: *conv,
            channels,
        }
    }

    /// Its columns of the output.
    pub fn columns(&self) -> Range<usize> {
        self.channels.clone()
    }

    /// Columns of earlier positions, `[kernel - 1, own channels]`.
    pub fn state_len(&self) -> usize {
        state_len(self.conv.kernel, self.channels.len())
    }

    /// One column.
    pub fn scratch_len(&self) -> usize {
        self.channels.len()
    }

    /// Consecutive tokens of one sequence, whose rows of `input` are `width` apart.
    pub fn run(
        &self,
        weights: RecurrentWeights<'_>,
        (input, width): (&[f32], usize), // [n_tokens, b, c and x of all channels]
        state: &mut [f32],
        scratch: &mut [f32],
        out: &mut [f32], // [n_tokens, own channels]
    ) {
        let (all, n) = (self.conv.channels, self.channels.len());
        if n == 0 {
            return;
        }
        let new = &mut scratch[..n];
        for (row, out) in input.chunks_exact(width).zip(out.chunks_exact_mut(n)) {
            let own = |part: usize| &row[part * all..][self.channels.clone()];
            let (b, c, x) = (own(0), own(1), own(2));
            for ((new, b), x) in new.iter_mut().zip(b).zip(x) {
                *new = b * x;
            }
            let taps = (weights.taps, all);
            convolve(taps, self.channels.clone(), state, new, out);
            for (out, c) in out.iter_mut().zip(c) {
                *out *= c;
            }
        }
    }
}
