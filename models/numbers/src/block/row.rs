//! Numbers to be encoded, with the weights of their errors.

use super::search::sum;

/// Whole blocks of a row.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub x: &'a [f32],
    /// Weights of the squared errors, `[x.len()]`, if they are known.
    pub weights: Option<&'a [f32]>,
}

/// Some of its numbers: a block, or a part of one that has a scale.
#[derive(Clone, Copy)]
pub(super) struct Group<'a, const N: usize> {
    pub x: &'a [f32; N],
    given: Option<&'a [f32; N]>,
}

impl<'a> Row<'a> {
    /// The blocks of `N` numbers and their `BYTES` bytes, which are 0.
    pub fn blocks<const N: usize, const BYTES: usize>(
        self,
        out: &'a mut [u8],
    ) -> impl Iterator<Item = (Group<'a, N>, &'a mut [u8; BYTES])> {
        out.fill(0);
        groups(self.x, self.weights).zip(out.as_chunks_mut().0)
    }
}

impl<'a, const N: usize> Group<'a, N> {
    /// Its parts of `M` numbers.
    pub fn parts<const M: usize>(self) -> impl Iterator<Item = Group<'a, M>> {
        groups(self.x, self.given.map(|w| &w[..]))
    }

    /// Whether the weights are known.
    pub fn is_weighed(&self) -> bool {
        self.given.is_some()
    }

    /// Weights of the errors. Where none are known, large numbers matter more, since they have most of the effect.
    pub fn weights(&self) -> [f32; N] {
        let x = self.x;
        match self.given {
            Some(weights) => *weights,
            None => {
                let mean = sum::<N>(|i| x[i] * x[i]) / N as f32;
                x.map(|v| mean.sqrt() + v.abs())
            }
        }
    }
}

fn groups<'a, const N: usize>(
    x: &'a [f32],
    weights: Option<&'a [f32]>,
) -> impl Iterator<Item = Group<'a, N>> {
    let x = x.as_chunks().0.iter();
    let weights = weights.map(|w| w.as_chunks().0);
    x.enumerate().map(move |(i, x)| Group {
        x,
        given: weights.map(|w| &w[i]),
    })
}
