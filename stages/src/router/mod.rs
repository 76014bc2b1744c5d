//! The router: which experts each token uses, and how much their results count. Every core computes it for itself from
//! the same logits.

mod choice;
mod preference;
#[cfg(test)]
mod tests;

use forebay_models::network::{Experts, MOST_GUESSED_LAYERS, Network};

pub use choice::Choosing;
pub use preference::Preference;

/// The experts of a layer that the tokens of a step use.
#[derive(Debug, Default)]
pub struct Routes {
    /// Experts and weights by token, the best first, `[n_tokens, used]`.
    chosen: Vec<(u32, f32)>,
    /// Experts of a token.
    used: usize,
    /// Place in `tokens` and `weights` of the first token of each expert, `[count + 1]`.
    starts: Vec<u32>,
    /// Tokens by expert, by index in the step, `[n_tokens * used]`.
    tokens: Vec<u32>,
    /// Their weights.
    weights: Vec<f32>,
    /// Factor of what every token uses, `[n_tokens]`; empty if it has none.
    shared: Vec<f32>,
    /// Scores of one token, `[2, count]`.
    scores: Vec<f32>,
    /// Experts of each of the next layers that the step's tokens may use; empty if none are guessed.
    guessed: [Vec<(u32, f32)>; MOST_GUESSED_LAYERS],
}

/// Bytes of everything that [`Routes::new`] allocates, for memory budgets.
pub fn bytes_for(network: &Network, max_tokens: usize) -> usize {
    let (count, used) = most(network);
    let pairs = 2 * max_tokens * used + (MOST_GUESSED_LAYERS - 1) * used;
    pairs * size_of::<(u32, f32)>() + max_tokens * (used * 8 + 4) + count * 12
}

/// Experts of the layer with the most, and the most that a token uses.
fn most(network: &Network) -> (usize, usize) {
    let all = (0..network.n_layers()).filter_map(|l| network.experts(l));
    all.fold((0, 0), |(count, used), e| {
        (count.max(e.count), used.max(e.used))
    })
}

impl Routes {
    /// Room for steps of `max_tokens` tokens.
    pub fn new(network: &Network, max_tokens: usize) -> Self {
        let (count, used) = most(network);
        let pairs = max_tokens * used;
        Self {
            chosen: Vec::with_capacity(pairs),
            used,
            starts: Vec::with_capacity(count + 1),
            tokens: Vec::with_capacity(pairs),
            weights: Vec::with_capacity(pairs),
            shared: Vec::with_capacity(if count > 0 { max_tokens } else { 0 }),
            scores: Vec::with_capacity(2 * count),
            // Further ahead only for a single token.
            guessed: std::array::from_fn(|i| Vec::with_capacity(if i == 0 { pairs } else { used })),
        }
    }

    /// Routes the tokens of a step by the router's results, `[n_tokens, width]`, whose first columns are the layer's.
    /// `biases` and `bonus`, `[count]`, are added for the choice; they may be missing. See [`Choosing`].
    pub fn route(
        &mut self,
        experts: &Experts,
        (biases, bonus): (&[f32], &[f32]),
        (logits, width): (&[f32], usize),
    ) {
        let count = experts.count;
        self.used = experts.used;
        self.guessed.iter_mut().for_each(Vec::clear);
        self.shared.clear();
        self.chosen.clear();
        self.scores.clear();
        self.scores.resize(2 * count, 0.0);
        let (scores, ranks) = self.scores.split_at_mut(count);
        let choosing = Choosing {
            router: &experts.router,
            biases,
            bonus,
        };
        for row in logits.chunks_exact(width) {
            let first = self.chosen.len();
            self.chosen.resize(first + experts.used, (0, 0.0));
            let chosen = &mut self.chosen[first..];
            choosing.choose(&row[..count], (scores, ranks), chosen);
            let gates = row[count..experts.router_width()].iter();
            self.shared
                .extend(gates.map(|gate| 1.0 / (1.0 + (-gate).exp())));
        }
        self.sort_by_expert(count);
    }

    /// Guesses the experts of the `next` layer, which is `later` layers after this one, of the step's tokens from
    /// `logits`, `[n_tokens, count]`: its router's results for this layer's input. `biases` as in [`Self::route`].
    pub fn guess<'a>(
        &mut self,
        (later, next): (usize, &Experts),
        biases: &[f32],
        logits: impl ExactSizeIterator<Item = &'a [f32]>,
    ) {
        let Some(guessed) = self.guessed.get_mut(later - 1) else {
            return;
        };
        guessed.clear();
        self.scores.clear();
        self.scores.resize(2 * next.count, 0.0);
        let (scores, ranks) = self.scores.split_at_mut(next.count);
        let choosing = Choosing {
            router: &next.router,
            biases,
            bonus: &[],
        };
        let n_tokens = logits.len();
        for row in logits {
            let first = guessed.len();
            guessed.resize(first + next.used, (0, 0.0));
            choosing.choose(row, (scores, ranks), &mut guessed[first..]);
        }
        if n_tokens > 1 {
            guessed.sort_unstable_by_key(|(expert, _)| *expert);
            guessed.dedup_by_key(|(expert, _)| *expert);
        }
    }

    /// The guessed experts of the next layers, one after the other: a single token's with their weights, the likeliest
    /// first; those of several tokens in the order of their numbers, each once.
    pub fn guessed(&self) -> &[Vec<(u32, f32)>; MOST_GUESSED_LAYERS] {
        &self.guessed
    }

    /// Lists the tokens of each expert, in the order of the step.
    fn sort_by_expert(&mut self, count: usize) {
        self.starts.clear();
        self.starts.resize(count + 1, 0);
        for (expert, _) in &self.chosen {
            self.starts[*expert as usize + 1] += 1;
        }
        for e in 0..count {
            self.starts[e + 1] += self.starts[e];
        }
        self.tokens.clear();
        self.tokens.resize(self.chosen.len(), 0);
        self.weights.clear();
        self.weights.resize(self.chosen.len(), 0.0);
        for (i, &(expert, weight)) in self.chosen.iter().enumerate() {
            let place = self.starts[expert as usize] as usize;
            self.tokens[place] = (i / self.used) as u32;
            self.weights[place] = weight;
            self.starts[expert as usize] += 1;
        }
        // Every start has moved to the next expert's.
        self.starts.copy_within(..count, 1);
        self.starts[0] = 0;
    }

    /// The tokens that use an expert, by index in the step, and its weight for each.
    pub fn of(&self, expert: u16) -> (&[u32], &[f32]) {
        let e = usize::from(expert);
        let range = self.starts[e] as usize..self.starts[e + 1] as usize;
        (&self.tokens[range.clone()], &self.weights[range])
    }

    /// The experts of all tokens with their weights, the best first, `[n_tokens, used]`.
    pub fn all(&self) -> &[(u32, f32)] {
        &self.chosen
    }

    /// The experts of a token with their weights, the best first.
    pub fn chosen(&self, token: usize) -> &[(u32, f32)] {
        &self.chosen[token * self.used..][..self.used]
    }

    /// Factors of what every token uses, `[n_tokens]`; none if it has none.
    pub fn shared(&self) -> &[f32] {
        &self.shared
    }

    /// Whether the weight of an expert that a step's only token uses is less than the part `share` of the largest.
    pub fn is_minor(&self, expert: u16, share: f32) -> bool {
        let largest = self.chosen(0).iter().map(|(_, w)| *w).fold(0.0, f32::max);
        // The largest itself is not less, nor is what is not a number.
        self.of(expert).1.iter().all(|w| *w < share * largest)
    }
}
