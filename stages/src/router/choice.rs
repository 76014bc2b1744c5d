//! The choice of one token's experts.

use std::ops::Range;

use forebay_models::network::{Groups, Router, Scores};

/// One in this many of a token's experts, and at least one, is chosen whether it is in memory or not.
const CERTAIN: usize = 4;

/// A layer's router with what is added for the choice only.
#[derive(Clone, Copy, Debug)]
pub struct Choosing<'a> {
    /// The router.
    pub router: &'a Router,
    /// Added to scores, `[count]`; empty if there are none.
    pub biases: &'a [f32],
    /// Added to logits, `[count]`, of experts in memory; empty if they are not preferred. The best of the experts are
    /// chosen without: one in `CERTAIN`.
    pub bonus: &'a [f32],
}

impl Choosing<'_> {
    /// Chooses a token's experts from its `logits`, `[count]`: fills `chosen`, `[used]`, with their numbers and
    /// weights, the best first, those with lower numbers among equals. `scores` and `ranks`, `[count]`, are room.
    ///
    /// Sums are in the order of the experts' numbers or ranks, so the same logits give the same bits. A logit that is
    /// not a number is chosen, and makes weights that are none.
    pub fn choose(
        &self,
        logits: &[f32],
        (scores, ranks): (&mut [f32], &mut [f32]),
        chosen: &mut [(u32, f32)],
    ) {
        scores.copy_from_slice(logits);
        make_scores(self.router, scores);
        ranks.copy_from_slice(scores);
        self.make_ranks(ranks);
        let certain = match self.bonus.is_empty() {
            true => chosen.len(),
            false => chosen.len().div_ceil(CERTAIN),
        };
        take_best(ranks, scores, chosen, 0..certain);
        if certain < chosen.len() {
            ranks.copy_from_slice(logits);
            ranks.iter_mut().zip(self.bonus).for_each(|(r, b)| *r += b);
            make_scores(self.router, ranks);
            self.make_ranks(ranks);
            for (expert, _) in &chosen[..certain] {
                ranks[*expert as usize] = f32::NEG_INFINITY;
            }
            let rest = certain..chosen.len();
            take_best(ranks, scores, chosen, rest);
        }
        weigh(self.router, chosen);
    }

    /// Scores become what experts are chosen by.
    fn make_ranks(&self, ranks: &mut [f32]) {
        ranks.iter_mut().zip(self.biases).for_each(|(r, b)| *r += b);
        if let Some(groups) = self.router.groups {
            restrict(groups, ranks);
        }
    }
}

/// Logits become scores.
fn make_scores(router: &Router, values: &mut [f32]) {
    match router.scores {
        Scores::Softmax => softmax(values),
        Scores::Sigmoid => values.iter_mut().for_each(|v| *v = sigmoid(*v)),
        Scores::SoftmaxOfChosen => {}
    }
}

/// Fills `places` of `chosen` with those of the highest ranks, and takes them out of `ranks`.
fn take_best(ranks: &mut [f32], scores: &[f32], chosen: &mut [(u32, f32)], places: Range<usize>) {
    for i in places {
        let mut next = best(ranks);
        if ranks[next] == f32::NEG_INFINITY {
            // Logits may be that, too: no expert is chosen twice.
            let (before, mut all) = (&chosen[..i], 0..ranks.len());
            let unused = |e: &usize| before.iter().all(|(c, _)| *c as usize != *e);
            next = all.find(unused).unwrap_or(next);
        }
        chosen[i] = (next as u32, scores[next]);
        ranks[next] = f32::NEG_INFINITY;
    }
}

/// Scores of the chosen experts become weights.
fn weigh(router: &Router, chosen: &mut [(u32, f32)]) {
    if router.scores == Scores::SoftmaxOfChosen {
        // The best is the largest.
        let max = chosen.first().map_or(0.0, |(_, score)| *score);
        chosen.iter_mut().for_each(|(_, w)| *w = (*w - max).exp());
        divide(chosen, 0.0);
    }
    if router.normalised {
        divide(chosen, Router::LEAST_SUM);
    }
    if router.scale != 1.0 {
        chosen.iter_mut().for_each(|(_, w)| *w *= router.scale);
    }
}

/// Divides weights by their sum, which counts as at least `least`.
fn divide(chosen: &mut [(u32, f32)], least: f32) {
    let sum: f32 = chosen.iter().map(|(_, w)| w).sum();
    // Not `max`, which would hide a sum that is not a number.
    let sum = if sum < least { least } else { sum };
    chosen.iter_mut().for_each(|(_, w)| *w /= sum);
}

fn softmax(values: &mut [f32]) {
    let max = values.iter().fold(f32::NEG_INFINITY, |max, v| max.max(*v));
    values.iter_mut().for_each(|v| *v = (*v - max).exp());
    let sum: f32 = values.iter().sum();
    values.iter_mut().for_each(|v| *v /= sum);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The place of the largest value, the first among equals. What is not a number is larger than all numbers.
fn best(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, &value) in values.iter().enumerate() {
        if value > values[best] || value.is_nan() && !values[best].is_nan() {
            best = i;
        }
    }
    best
}

/// Leaves only the experts of the best groups, those with lower numbers among equals.
fn restrict(groups: Groups, ranks: &mut [f32]) {
    let size = ranks.len() / groups.count;
    // By number, the groups that are left; there are at most 64.
    let mut left = !0u64 >> (64 - groups.count);
    for _ in groups.used..groups.count {
        let mut worst = None;
        for g in (0..groups.count).filter(|g| left >> g & 1 == 1) {
            let value = worth(&ranks[g * size..][..size], groups.counted);
            if worst.is_none_or(|(least, _)| value <= least) {
                worst = Some((value, g));
            }
        }
        if let Some((_, g)) = worst {
            left &= !(1 << g);
            ranks[g * size..][..size].fill(f32::NEG_INFINITY);
        }
    }
}

/// The highest score of a group, or the sum of the two highest if two count.
fn worth(group: &[f32], counted: usize) -> f32 {
    let first = best(group);
    let others = group.iter().enumerate().filter(|(i, _)| *i != first);
    let second = others.map(|(_, v)| *v).fold(f32::NEG_INFINITY, f32::max);
    match group.len().min(counted) {
        1 => group[first],
        _ => group[first] + second,
    }
}
