//! Experts in memory are preferred to others while tokens are generated (arXiv 2412.00099): for the choice, their
//! logits count as larger.

use forebay_models::network::Experts;
use forebay_plans::program::{Item, Source};
use forebay_queues::board::F32Board;

/// What one core keeps for it. All cores have seen the same logits and the same board, so they choose alike.
#[derive(Debug)]
pub struct Preference {
    /// What an expert in memory gains, as part of the usual spread of logits.
    strength: f32,
    /// By layer, the mean spread (largest logit minus smallest) of the tokens so far, and how many there were.
    spreads: Vec<(f64, u64)>,
    /// Clusters of each expert that one core has in memory, `[count]`.
    held: Vec<f32>,
    /// What is added to each expert's logit, `[count]`.
    bonus: Vec<f32>,
}

impl Preference {
    /// With this gain of experts in memory, for layers whose routers have at most `width` results.
    pub fn new((layers, width): (usize, usize), strength: f32) -> Self {
        Self {
            strength,
            spreads: vec![(0.0, 0); layers],
            held: vec![0.0; width],
            bonus: vec![0.0; width],
        }
    }

    /// Bytes that [`Self::new`] allocates, for memory budgets.
    pub fn bytes_for((layers, width): (usize, usize)) -> usize {
        layers * size_of::<(f64, u64)>() + width * 2 * size_of::<f32>()
    }

    /// Tells all cores, on the board of what each holds, how many clusters of each of `count` experts core `rank` has
    /// in memory, of its own `items`; `is_cached` tells it of those with a key in the cache.
    pub fn publish(
        &mut self,
        (items, count): (&[Item], usize),
        is_cached: impl Fn(usize) -> bool,
        (board, rank): (&F32Board, usize),
    ) {
        let held = &mut self.held[..count];
        held.fill(0.0);
        for item in items {
            let is_here = match item.source {
                Source::Pinned | Source::Device { .. } => true,
                Source::Cached { key } => is_cached(key as usize),
                _ => false,
            };
            if let (true, Some(expert)) = (is_here, item.expert) {
                held[usize::from(expert)] += 1.0;
            }
        }
        board.write(rank * self.bonus.len(), held);
    }

    /// Takes the router's results for some tokens, `[n_tokens, width]`, into a layer's mean spread.
    pub fn learn(&mut self, layer: usize, experts: &Experts, (logits, width): (&[f32], usize)) {
        let (mean, n) = &mut self.spreads[layer];
        for row in logits.chunks_exact(width) {
            let row = &row[..experts.count];
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let least = row.iter().copied().fold(f32::INFINITY, f32::min);
            let spread = f64::from(most) - f64::from(least);
            if spread.is_finite() {
                *n += 1;
                *mean += (spread - *mean) / *n as f64;
            }
        }
    }

    /// What is added to the experts' logits, `[count]`: in proportion to how many of an expert's `clusters` one of
    /// `threads` cores has published.
    pub fn bonus(
        &mut self,
        (layer, experts): (usize, &Experts),
        (board, threads): (&F32Board, usize),
        clusters: usize,
    ) -> &[f32] {
        let width = self.bonus.len();
        let (held, bonus) = (
            &mut self.held[..experts.count],
            &mut self.bonus[..experts.count],
        );
        bonus.fill(0.0);
        for rank in 0..threads {
            board.read(rank * width, held);
            bonus.iter_mut().zip(&*held).for_each(|(b, h)| *b += h);
        }
        let whole = self.strength * self.spreads[layer].0 as f32 / clusters.max(1) as f32;
        bonus.iter_mut().for_each(|b| *b *= whole);
        bonus
    }
}
