//! Clusters of a share with the same tokens, as the shaders go through them, and where what they compute lies.

use crate::job::{FfnCluster, Routing};

use super::tables::neurons;
use forebay_numbers::panel::PLANE_LEN;

/// Consecutive clusters with the same tokens.
#[derive(Debug, PartialEq)]
pub(super) struct Batch<'a> {
    pub(super) clusters: &'a [FfnCluster],
    pub(super) n_tokens: usize,
    pub(super) neurons: usize,
    /// What the batches before it have: numbers of gates and ups, records of hidden values, neurons, tokens.
    pub(super) gate_ups_at: usize,
    pub(super) hidden_at: usize,
    pub(super) first_neuron: usize,
    pub(super) first_token: usize,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Batches<'a> {
    pub(super) list: Vec<Batch<'a>>,
    /// Of all: numbers of gates and ups, records of hidden values, tokens.
    pub(super) gate_ups: usize,
    pub(super) hidden: usize,
    pub(super) tokens: usize,
}

impl<'a> Batches<'a> {
    /// Those of a share, for a job with so many tokens.
    pub(super) fn of(clusters: &'a [FfnCluster], routing: &Routing, n_tokens: usize) -> Self {
        let mut batches = Self::default();
        if routing.groups.is_empty() {
            batches.add(clusters, n_tokens, [0, 0]);
            return batches;
        }
        let mut first_neuron = 0;
        for (of_group, named) in routing.ranges() {
            let clusters = &clusters[of_group];
            batches.add(clusters, named.len(), [first_neuron, named.start]);
            first_neuron += neurons(clusters);
        }
        batches.tokens = routing.tokens.len();
        batches
    }

    fn add(
        &mut self,
        clusters: &'a [FfnCluster],
        n_tokens: usize,
        [first_neuron, first_token]: [usize; 2],
    ) {
        let neurons = neurons(clusters);
        if neurons == 0 || n_tokens == 0 {
            return;
        }
        self.list.push(Batch {
            clusters,
            n_tokens,
            neurons,
            gate_ups_at: self.gate_ups,
            hidden_at: self.hidden,
            first_neuron,
            first_token,
        });
        self.gate_ups += 2 * n_tokens * neurons;
        self.hidden += n_tokens * neurons / PLANE_LEN;
        self.tokens += n_tokens;
    }

    /// Most tokens of a batch.
    pub(super) fn most_tokens(&self) -> usize {
        self.list.iter().map(|b| b.n_tokens).max().unwrap_or(0)
    }

    /// Most neurons of a batch.
    pub(super) fn most_neurons(&self) -> usize {
        self.list.iter().map(|b| b.neurons).max().unwrap_or(0)
    }

    /// Tokens of a batch on average.
    pub(super) fn usual_tokens(&self) -> usize {
        self.tokens.div_ceil(self.list.len().max(1))
    }
}

/// For each of `n_tokens` tokens where the names of its results begin, and where the last one's end; then all names. A
/// token's results have the numbers that it has among the `tokens` of all batches, and everything is at the number
/// `at`.
pub(super) fn slots(tokens: &[u32], n_tokens: usize, at: usize) -> Vec<u32> {
    let mut slots = vec![0; n_tokens + 1 + tokens.len()];
    for &token in tokens {
        slots[token as usize + 1] += 1;
    }
    slots[0] = (at + n_tokens + 1) as u32;
    for token in 0..n_tokens {
        slots[token + 1] += slots[token];
    }
    let mut next: Vec<usize> = slots[..n_tokens].iter().map(|&s| s as usize - at).collect();
    for (number, &token) in (0..).zip(tokens) {
        let next = &mut next[token as usize];
        slots[*next] = number;
        *next += 1;
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_told_its_results() {
        let slots = slots(&[2, 0, 2, 3], 4, 100);
        assert_eq!(slots[..5], [105, 106, 106, 108, 109]);
        assert_eq!(slots[5..], [1, 0, 2, 3]);
    }
}
