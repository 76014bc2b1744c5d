//! Causal convolutions, channel by channel, over a state of the last few columns.

use std::ops::Range;

/// Elements of the state of `channels` channels.
pub(super) fn state_len(kernel: usize, channels: usize) -> usize {
    (kernel - 1) * channels
}

/// A convolution of some channels, one position further: `out` is the sum of the taps times the columns of `state`, the
/// oldest first, and of the last tap times `new`, which then becomes the state's last column.
///
/// There is at least one channel and one column. Plain multiplications and additions, so that every CPU gives the same
/// bits.
pub(super) fn convolve(
    (taps, all): (&[f32], usize), // [kernel, all channels]
    channels: Range<usize>,
    state: &mut [f32], // [kernel - 1, channels]
    new: &[f32],       // [channels]
    out: &mut [f32],   // [channels]
) {
    let n = channels.len();
    let kept = state.len() / n;
    let tap = |t: usize| &taps[t * all..][channels.clone()];
    out.fill(0.0);
    for (t, column) in state.chunks_exact(n).enumerate() {
        add_product(out, tap(t), column);
    }
    add_product(out, tap(kept), new);
    state.copy_within(n.., 0);
    state[(kept - 1) * n..].copy_from_slice(new);
}

fn add_product(out: &mut [f32], w: &[f32], x: &[f32]) {
    for ((o, w), x) in out.iter_mut().zip(w).zip(x) {
        *o += w * x;
    }
}
