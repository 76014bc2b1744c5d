//! Probabilities of a row of logits.

/// The index of the largest logit, the first of equals, and `ln(sum(exp(logits)))`.
pub(crate) fn best_and_log_sum(logits: &[f32]) -> (usize, f64) {
    let mut best = 0;
    for (i, l) in logits.iter().enumerate() {
        if *l > logits[best] {
            best = i;
        }
    }
    let max = logits[best];
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    (best, f64::from(max) + sum.ln())
}
