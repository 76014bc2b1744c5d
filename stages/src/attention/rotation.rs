//! Rotary position embedding of a step's tokens.

use forebay_models::network::{Rope, RopePairing};

use crate::kernels::{KernelTable, Turns};

/// Cosines and sines of one kind of rotation.
#[derive(Debug)]
pub(super) struct Rotation {
    pairing: RopePairing,
    magnitude: f32,
    /// Radians per position: `[rotary_dim / 2]`
    frequencies: Vec<f32>,
    /// `[max_tokens, rotary_dim / 2]`
    cos: Vec<f32>,
    /// `[max_tokens, rotary_dim / 2]`
    sin: Vec<f32>,
}

impl Rotation {
    /// For steps of up to `max_tokens` tokens and sequences of up to `context` positions.
    pub fn new(rope: &Rope, context: usize, max_tokens: usize) -> Self {
        let frequencies = rope.frequencies(context);
        let table = vec![0.0; max_tokens * frequencies.len()];
        Self {
            pairing: rope.pairing,
            magnitude: rope.magnitude,
            cos: table.clone(),
            sin: table,
            frequencies,
        }
    }

    /// Bytes that [`Self::new`] allocates.
    pub fn bytes(rope: &Rope, max_tokens: usize) -> usize {
        // Frequencies, cosines and sines.
        (2 * max_tokens + 1) * (rope.rotary_dim / 2) * size_of::<f32>()
    }

    /// Elements of a head that are rotated, the first ones.
    pub fn width(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Prepares the rotation of token `t` of the step.
    pub fn prepare(&mut self, t: usize, position: u32) {
        let half = self.frequencies.len();
        let cos = &mut self.cos[t * half..][..half];
        let sin = &mut self.sin[t * half..][..half];
        for ((&f, cos), sin) in self.frequencies.iter().zip(&mut *cos).zip(&mut *sin) {
            let (s, c) = (f64::from(position) * f64::from(f)).sin_cos();
            (*cos, *sin) = (c as f32, s as f32);
        }
        if self.magnitude != 1.0 {
            for v in cos.iter_mut().chain(sin) {
                *v *= self.magnitude;
            }
        }
    }

    /// The rotation of the origin of keys, for sequences of up to `context` positions.
    pub fn turns(&self, context: usize) -> Turns {
        let rotation = (self.pairing, self.magnitude);
        Turns::new(&self.frequencies, rotation, context)
    }

    /// Rotates one head of token `t`, `[head_dim]`.
    pub fn turn(&self, kernels: &KernelTable, t: usize, head: &mut [f32]) {
        let half = self.frequencies.len();
        let (cos, sin) = (&self.cos[t * half..][..half], &self.sin[t * half..][..half]);
        kernels.rope(head, cos, sin, self.pairing);
    }
}
