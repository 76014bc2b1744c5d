//! The input of an expert: that of the tokens which use it.

use crate::kernels::{Activations, Form, KernelTable};
use crate::router::Routes;

/// The tokens of a cluster, as indices in the step and their weights.
#[derive(Clone, Copy, Debug)]
pub struct ClusterTokens<'a> {
    /// How many.
    pub n: usize,
    /// Which of the step's tokens; empty if it is all of them.
    pub places: &'a [u32],
    /// Factors of the cluster's result; empty if they are 1.
    pub weights: &'a [f32],
}

impl<'a> ClusterTokens<'a> {
    /// All of a step's tokens.
    pub fn all(n: usize) -> Self {
        Self {
            n,
            places: &[],
            weights: &[],
        }
    }

    /// The tokens of an expert, or of what every token uses.
    pub fn of(routes: &'a Routes, expert: Option<u16>, n_tokens: usize) -> Self {
        let Some(expert) = expert else {
            return Self {
                n: n_tokens,
                places: &[],
                weights: routes.shared(),
            };
        };
        let (places, weights) = routes.of(expert);
        Self {
            n: places.len(),
            places: if places.len() == n_tokens {
                &[]
            } else {
                places
            },
            weights,
        }
    }
}

/// The input of one expert, made again when another one's is wanted. Clusters of an expert mostly follow each other.
#[derive(Debug)]
pub struct ExpertInput {
    expert: Option<u16>,
    own: Activations,
    /// The tokens' rows, `[n_tokens, columns]`; empty where no step has several tokens.
    rows: Vec<f32>,
}

impl ExpertInput {
    /// Room for `max_tokens` tokens of `columns`.
    pub fn new(max_tokens: usize, columns: usize) -> Self {
        Self {
            expert: None,
            own: Activations::new(max_tokens, columns),
            rows: vec![0.0; max_tokens * columns],
        }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets.
    pub fn bytes_for(max_tokens: usize, columns: usize) -> usize {
        Activations::bytes_for(max_tokens, columns) + max_tokens * columns * size_of::<f32>()
    }

    /// A phase begins, with another input.
    pub fn begin(&mut self) {
        self.expert = None;
    }

    /// The input of `expert` for its `tokens`; `all` is that of all tokens, made from `rows`, `[n_tokens, columns]`.
    pub fn select<'a>(
        &'a mut self,
        kernels: &KernelTable,
        (expert, tokens): (Option<u16>, ClusterTokens<'_>),
        (all, (rows, form)): (&'a Activations, (&[f32], Form)),
    ) -> &'a Activations {
        if tokens.places.is_empty() {
            return all;
        }
        if self.expert != expert {
            let columns = all.cols();
            let own = &mut self.rows[..tokens.n * columns];
            for (own, &place) in own.chunks_exact_mut(columns).zip(tokens.places) {
                own.copy_from_slice(&rows[place as usize * columns..][..columns]);
            }
            self.own.load(kernels, form, tokens.n, columns, own);
            self.expert = expert;
        }
        &self.own
    }
}
