//! How likely the model finds a token, and which others it finds likely.

use super::softmax::best_and_log_sum;
use crate::stream::{LogProbabilities, TokenLogProbability};

/// The log-probability of token `chosen`, and the `n` most likely tokens.
pub(in crate::engine) fn log_probabilities(
    logits: &[f32],
    chosen: u32,
    n: usize,
) -> LogProbabilities {
    let (_, log_sum) = best_and_log_sum(logits);
    let of = |id: u32| TokenLogProbability {
        id,
        log_probability: (f64::from(logits[id as usize]) - log_sum) as f32,
    };
    let mut best: Vec<u32> = Vec::with_capacity(n + 1);
    for (id, logit) in (0u32..).zip(logits) {
        let worst = best.last().map(|&last| logits[last as usize]);
        if best.len() == n && worst.is_none_or(|worst| *logit <= worst) {
            continue;
        }
        // Of equals, the lower id comes first.
        let at = best.partition_point(|&other| logits[other as usize] >= *logit);
        best.insert(at, id);
        best.truncate(n);
    }
    LogProbabilities {
        chosen: of(chosen),
        most_likely: best.into_iter().map(of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_likely_come_in_order_and_probabilities_add_up() {
        let logits = [0.0, 2.0, -1.0, 2.0, 1.0];
        let ids = |n| -> Vec<u32> {
            let found = log_probabilities(&logits, 2, n).most_likely;
            found.iter().map(|t| t.id).collect()
        };
        assert_eq!(ids(0), [0; 0]);
        assert_eq!(ids(3), [1, 3, 4]);
        assert_eq!(ids(9), [1, 3, 4, 0, 2]);
        let all = log_probabilities(&logits, 2, 5);
        let sum: f64 = all
            .most_likely
            .iter()
            .map(|t| f64::from(t.log_probability).exp())
            .sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert_eq!(all.chosen, all.most_likely[4]);
    }
}
