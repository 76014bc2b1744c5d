//! The input of an expert: that of the tokens which use it.

use forebay_models::block::BlockType;
use forebay_models::bundle::FfnGeometry;

use crate::kernels::Activations;
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
}

impl ExpertInput {
    /// Room for `max_tokens` tokens of `columns`.
    pub fn new(max_tokens: usize, columns: usize) -> Self {
        Self {
            expert: None,
            own: Activations::new(max_tokens, columns),
        }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets.
    pub fn bytes_for(max_tokens: usize, columns: usize) -> usize {
        Activations::bytes_for(max_tokens, columns)
    }

    /// Gives the memory back to the system until a step needs it.
    pub fn give_back(&mut self) {
        self.expert = None;
        self.own.give_back();
    }

    /// A phase begins, with another input.
    pub fn begin(&mut self) {
        self.expert = None;
    }

    /// The input of `expert`, whose Gate and Up are stored as `geometry` says, for its `tokens`; `all` is that of all
    /// tokens.
    pub fn select<'a>(
        &'a mut self,
        (expert, tokens): (Option<u16>, ClusterTokens<'_>),
        geometry: &FfnGeometry,
        all: &'a Activations,
    ) -> &'a Activations {
        if tokens.places.is_empty() {
            return all;
        }
        if self.expert != expert {
            // A block of one element is a plain number.
            let is_plain = |block: BlockType| block.block_len() == 1;
            let with_values = is_plain(geometry.gate) || geometry.up.is_some_and(is_plain);
            self.own.select(all, tokens.places, with_values);
            self.expert = expert;
        }
        &self.own
    }
}
