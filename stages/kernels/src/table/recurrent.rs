//! The table's kernels of recurrent mixers.

use super::KernelTable;
use crate::recurrent::{Decay, DeltaRule, DeltaStep, Sigmoid};

impl KernelTable {
    /// `out = 1 / (1 + e^-x)`, both `[n]`, within 4 units in the last place.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn sigmoid(&self, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "gates of another length");
        self.kernels().sigmoid(Sigmoid { x, out });
    }

    /// `out = e^(rate * ln(1 + e^(x + bias)))`, all `[n]`.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn decay(&self, x: &[f32], (bias, rate): (&[f32], &[f32]), out: &mut [f32]) {
        let n = x.len();
        assert!(
            n == bias.len() && n == rate.len() && n == out.len(),
            "decays of another length"
        );
        let job = Decay { x, bias, rate, out };
        self.kernels().decay(job);
    }

    /// Takes a state, `[key_dim, width]`, one position further, and reads it: `state *= decay`, then
    /// `state += k * (beta * (v - k . state))`, then `out = q . state`, `[value_dim]`. Columns beyond `value_dim` stay
    /// 0 if they were.
    ///
    /// # Panics
    /// The lengths do not fit, where `width` is that of [`DeltaRule::width`].
    pub fn delta_rule(&self, rule: DeltaRule<'_>, state: &mut [f32], out: &mut [f32]) {
        let width = DeltaRule::width(out.len());
        assert!(
            rule.q.len() == rule.k.len()
                && rule.v.len() == out.len()
                && state.len() == rule.k.len() * width,
            "a state of another shape"
        );
        let job = DeltaStep {
            rule,
            state,
            width,
            out,
        };
        self.kernels().delta_step(job);
    }
}
