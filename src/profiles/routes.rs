//! Which experts the tokens of a text used, and what is counted in it.

use forebay_models::network::{Experts, Network};

use super::ExpertProfile;

/// Distances of tokens whose experts are compared.
const LAGS: [usize; 5] = [1, 2, 4, 8, 16];
/// Tokens whose different experts are counted.
const WINDOWS: [usize; 5] = [2, 4, 8, 16, 32];
/// Numbers of most used experts whose part in all uses is counted.
const TOPS: [usize; 4] = [4, 8, 16, 32];

/// The experts of one layer that each token used.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerRoutes {
    /// How many the layer has, and how many a token uses; 0 if it has none.
    pub count: usize,
    pub used: usize,
    /// By token, the best first, `[tokens, used]`.
    pub ids: Vec<u16>,
    /// Their weights.
    pub weights: Vec<f32>,
}

impl LayerRoutes {
    /// Room for `tokens` tokens.
    pub fn new(experts: Option<&Experts>, tokens: usize) -> Self {
        let (count, used) = experts.map_or((0, 0), |e| (e.count, e.used));
        Self {
            count,
            used,
            ids: vec![0; tokens * used],
            weights: vec![0.0; tokens * used],
        }
    }

    /// The experts of a token.
    pub fn of(&self, token: usize) -> &[u16] {
        &self.ids[token * self.used..][..self.used]
    }

    /// How often each expert was used, `[count]`.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.count];
        self.ids.iter().for_each(|&e| counts[usize::from(e)] += 1);
        counts
    }

    /// Part of all uses that the `top` most used experts have.
    fn top_share(&self, top: usize) -> f64 {
        let mut counts = self.counts();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = counts.iter().take(top).sum();
        f64::from(top) / self.ids.len().max(1) as f64
    }

    /// Part of the experts of `token` that the one `lag` before used.
    fn shared(&self, token: usize, lag: usize) -> f64 {
        let before = self.of(token - lag);
        let again = self.of(token).iter().filter(|e| before.contains(e));
        again.count() as f64 / self.used as f64
    }

    /// Different experts of the tokens `first..first + n`.
    fn distinct(&self, first: usize, n: usize) -> f64 {
        let mut seen = vec![false; self.count];
        let ids = &self.ids[first * self.used..][..n * self.used];
        ids.iter().for_each(|&e| seen[usize::from(e)] = true);
        seen.iter().filter(|&&s| s).count() as f64
    }
}

/// The experts that each token used.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    /// By layer of the model.
    pub layers: Vec<LayerRoutes>,
    /// Tokens.
    pub tokens: usize,
    /// Tokens of one text: only tokens of the same text are compared.
    pub text: usize,
}

impl Routes {
    /// Room for `tokens` tokens in texts of `text`.
    pub fn new(network: &Network, tokens: usize, text: usize) -> Self {
        let layers = (0..network.n_layers()).map(|l| LayerRoutes::new(network.experts(l), tokens));
        Self {
            layers: layers.collect(),
            tokens,
            text,
        }
    }

    /// Layers with experts.
    pub fn routed(&self) -> impl Iterator<Item = &LayerRoutes> {
        self.layers.iter().filter(|layer| layer.used > 0)
    }

    /// Counts everything; what caches over `threads` cores miss comes later.
    pub fn count(&self, threads: usize) -> ExpertProfile {
        let count = self.routed().map(|layer| layer.count).min().unwrap_or(0);
        let tops = TOPS.into_iter().filter(|&top| top < count);
        let lags = LAGS.into_iter().filter(|&lag| lag < self.text);
        let windows = WINDOWS.into_iter().filter(|&n| n <= self.text);
        let again = |layer: &LayerRoutes| match layer.used {
            0 => 0.0,
            _ => self.again(layer, 1),
        };
        ExpertProfile {
            counts: self.layers.iter().map(LayerRoutes::counts).collect(),
            again: lags
                .map(|lag| (lag, self.mean(|layer| self.again(layer, lag))))
                .collect(),
            again_by_layer: self.layers.iter().map(again).collect(),
            top_share: tops
                .map(|top| (top, self.mean(|layer| layer.top_share(top))))
                .collect(),
            distinct: windows
                .map(|n| (n, self.mean(|layer| self.distinct(layer, n))))
                .collect(),
            weights: self.weights(),
            alive: None,
            threads,
            misses: Vec::new(),
        }
    }

    /// The mean over layers with experts.
    pub fn mean(&self, of: impl Fn(&LayerRoutes) -> f64) -> f64 {
        self.routed().map(of).sum::<f64>() / self.routed().count().max(1) as f64
    }

    /// Mean part of a token's experts that the token `lag` before used.
    fn again(&self, layer: &LayerRoutes, lag: usize) -> f64 {
        let tokens = (0..self.tokens).filter(|t| t % self.text >= lag);
        let shared = tokens.clone().map(|t| layer.shared(t, lag)).sum::<f64>();
        shared / tokens.count().max(1) as f64
    }

    /// Mean number of different experts of `n` tokens.
    fn distinct(&self, layer: &LayerRoutes, n: usize) -> f64 {
        let inside = |first: &usize| first % self.text + n <= self.text && first + n <= self.tokens;
        let windows = (0..self.tokens)
            .filter(|first| (first % self.text).is_multiple_of(n))
            .filter(inside);
        let all = windows.clone().map(|t| layer.distinct(t, n)).sum::<f64>();
        all / windows.count().max(1) as f64
    }

    /// Mean weights by rank.
    fn weights(&self) -> Vec<f64> {
        let most = self.routed().map(|layer| layer.used).max().unwrap_or(0);
        let mut sums = vec![0.0; most];
        let mut n = 0usize;
        for layer in self.routed() {
            for weights in layer.weights.chunks_exact(layer.used) {
                let all: f32 = weights.iter().sum();
                n += 1;
                for (sum, w) in sums.iter_mut().zip(weights) {
                    *sum += f64::from(w / all.max(f32::MIN_POSITIVE));
                }
            }
        }
        sums.iter().map(|sum| sum / n.max(1) as f64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One layer with experts after one without, in texts of four tokens.
    fn routes(count: usize, tokens: &[[u16; 2]]) -> Routes {
        Routes {
            layers: vec![
                LayerRoutes::default(),
                LayerRoutes {
                    count,
                    used: 2,
                    ids: tokens.concat(),
                    weights: [0.6, 0.2].repeat(tokens.len()),
                },
            ],
            tokens: tokens.len(),
            text: 4,
        }
    }

    #[test]
    fn what_is_counted_is_in_the_routes() {
        let counted = routes(
            6,
            &[
                [0, 1],
                [1, 2],
                [1, 0],
                [0, 1],
                [4, 5],
                [5, 3],
                [5, 4],
                [4, 5],
            ],
        )
        .count(1);
        assert_eq!(counted.counts, [vec![], vec![3, 4, 1, 1, 3, 4]]);
        // Of three tokens per text with one before: 1/2, 1/2, 1 and 1/2, 1/2, 1. The texts are not compared.
        assert!((counted.again[&1] - 4.0 / 6.0).abs() < 1e-9);
        assert_eq!(counted.again_by_layer[0], 0.0);
        assert!((counted.again_by_layer[1] - 4.0 / 6.0).abs() < 1e-9);
        // 1, 1/2 and 1, 1/2.
        assert!((counted.again[&2] - 3.0 / 4.0).abs() < 1e-9);
        assert_eq!(counted.again.len(), 2, "no text has five tokens");
        assert!((counted.top_share[&4] - 14.0 / 16.0).abs() < 1e-9);
        assert_eq!(counted.top_share.len(), 1, "a layer has six experts");
        // 3, 2, 3, 2 and 3, 3.
        assert!((counted.distinct[&2] - 2.5).abs() < 1e-9);
        assert!((counted.distinct[&4] - 3.0).abs() < 1e-9);
        // As parts of their sum.
        assert!((counted.weights[0] - 0.75).abs() < 1e-6);
        assert!((counted.weights[1] - 0.25).abs() < 1e-6);
    }

    #[test]
    fn a_rest_of_a_text_is_compared_with_itself_only() {
        let counted = routes(4, &[[0, 1], [0, 1], [0, 1], [0, 1], [2, 3], [2, 3]]).count(1);
        assert_eq!(counted.again[&1], 1.0);
        assert_eq!(counted.distinct[&2], 2.0);
        assert_eq!(counted.distinct[&4], 2.0);
    }
}
