//! From logits to the next token: llama.cpp's chain of penalties, top-k, top-p, min-p, temperature
//! and a draw, over buffers that are allocated once.

mod config;
mod rng;

use crate::error::{ModelError, Result};

pub use config::SamplerConfig;
use rng::Random;

/// Candidates that top-p sorts at first; most distributions end within them.
const FIRST_SORTED: usize = 256;

/// How many times `top_k` candidates are gathered before the best `top_k` of them are selected.
const GATHERED: usize = 4;

/// A token and its logit.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    id: u32,
}

impl Candidate {
    /// The better first: higher logits, then lower ids. Logits are finite, so this is a total order.
    fn order(a: &Self, b: &Self) -> std::cmp::Ordering {
        b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
    }
}

/// Chooses tokens. The same configuration, logits and history give the same tokens everywhere.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    rng: Random,
    vocab_size: usize,
    /// Sum of the biases of each token that has any, in ascending order of ids.
    biases: Vec<(u32, f32)>,
    /// The logits with biases and penalties. `[vocab_size]`, empty if there are none.
    adjusted: Vec<f32>,
    /// The tokens that are left; the capacity stays.
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler for `vocab_size` logits. All memory it will ever use is allocated here: per logit 4
    /// bytes for biases and penalties, and 8 to draw without top-k; with top-k that is per kept token.
    ///
    /// # Errors
    /// A parameter outside its range, or a bias of a token that does not exist.
    pub fn new(config: SamplerConfig, vocab_size: usize) -> Result<Self> {
        config.validate_for(vocab_size)?;
        let biases = sums_of(&config.logit_bias);
        let adjusts = config.penalises() || !biases.is_empty();
        let n_adjusted = if adjusts { vocab_size } else { 0 };
        let n_candidates = match (config.temperature > 0.0, config.top_k) {
            (false, _) => 0,
            (true, 0) => vocab_size,
            (true, k) => k.saturating_mul(GATHERED).min(vocab_size),
        };
        Ok(Self {
            rng: Random::new(config.seed),
            config,
            vocab_size,
            biases,
            adjusted: Vec::with_capacity(n_adjusted),
            candidates: Vec::with_capacity(n_candidates),
        })
    }

    /// Frees its memory; the next call of [`Sampler::sample`] allocates it again.
    pub fn free_buffers(&mut self) {
        self.adjusted = Vec::new();
        self.candidates = Vec::new();
    }

    /// Chooses the token that follows `history`, of which the last `repeat_last_n` are penalised.
    /// `logits`: `[vocab_size]`. Greedy choice (temperature 0) takes the lowest id among equals.
    ///
    /// # Errors
    /// A number of logits that differs from the vocabulary's, or logits that are not finite: the
    /// model is damaged.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
        check(logits, self.vocab_size)?;
        let logits = match self.config.penalises() || !self.biases.is_empty() {
            true => {
                self.adjust(logits, history);
                &self.adjusted
            }
            false => logits,
        };
        if self.config.temperature == 0.0 {
            return Ok(argmax(logits));
        }
        gather(logits, self.config.top_k, &mut self.candidates);
        self.keep_top_p();
        self.keep_min_p();
        Ok(self.draw())
    }

    /// Writes the logits with biases and penalties.
    ///
    /// The logits of the last tokens of `history` are divided by the penalty if they are positive and multiplied if
    /// not, once each, however often they occur (Keskar et al., "CTRL", arXiv:1909.05858, section 4.1).
    fn adjust(&mut self, logits: &[f32], history: &[u32]) {
        let finite = |logit: f32| logit.clamp(f32::MIN, f32::MAX);
        let biased = |id: u32, logit: f32| match self.biases.binary_search_by_key(&id, |b| b.0) {
            Ok(at) => finite(logit + self.biases[at].1),
            Err(_) => logit,
        };
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        for &(id, _) in &self.biases {
            self.adjusted[id as usize] = biased(id, logits[id as usize]);
        }
        if !self.config.penalises() {
            return;
        }
        let first = history.len().saturating_sub(self.config.repeat_last_n);
        let penalty = self.config.repeat_penalty;
        for &id in &history[first..] {
            let Some(&logit) = logits.get(id as usize) else {
                continue;
            };
            let penalised = match biased(id, logit) {
                logit if logit > 0.0 => logit / penalty,
                logit => logit * penalty,
            };
            self.adjusted[id as usize] = finite(penalised);
        }
    }

    /// Keeps the fewest best tokens whose probabilities add up to `top_p`.
    fn keep_top_p(&mut self) {
        if self.config.top_p >= 1.0 {
            return;
        }
        let max = self.max_logit();
        let weight = |c: &Candidate| f64::from((c.logit - max).exp());
        let total: f64 = self.candidates.iter().map(weight).sum();
        let wanted = f64::from(self.config.top_p) * total;
        let n = self.candidates.len();
        let (mut sum, mut sorted, mut step) = (0.0, 0, FIRST_SORTED);
        while sorted < n {
            // Sorts only as far as the sum needs: the best `step` of the rest.
            let rest = &mut self.candidates[sorted..];
            let part = step.min(rest.len());
            if part < rest.len() {
                rest.select_nth_unstable_by(part - 1, Candidate::order);
            }
            rest[..part].sort_unstable_by(Candidate::order);
            for at in sorted..sorted + part {
                sum += weight(&self.candidates[at]);
                if sum >= wanted {
                    self.candidates.truncate(at + 1);
                    return;
                }
            }
            sorted += part;
            step *= 4;
        }
    }

    /// Keeps those whose probability is at least `min_p` times the best one's.
    fn keep_min_p(&mut self) {
        if self.config.min_p <= 0.0 {
            return;
        }
        let least = self.max_logit() + self.config.min_p.ln();
        self.candidates.retain(|c| c.logit >= least);
    }

    /// Draws one of the candidates by the softmax of their logits over the temperature.
    fn draw(&mut self) -> u32 {
        let (max, temperature) = (self.max_logit(), self.config.temperature);
        let weight = |c: &Candidate| f64::from(((c.logit - max) / temperature).exp());
        // Twice the arithmetic takes less memory than sums that are kept: it is in the budget of all runs.
        let total = self.candidates.iter().map(weight).sum::<f64>();
        let point = self.rng.next_unit() * total;
        // The first whose running sum exceeds the point has a weight above 0. Rounding can put the
        // point on the last sum; then the last candidate that added to it is the right one.
        let (mut sum, mut last) = (0.0, 0);
        for (at, candidate) in self.candidates.iter().enumerate() {
            let before = sum;
            sum += weight(candidate);
            if sum > point {
                return candidate.id;
            }
            if sum > before {
                last = at;
            }
        }
        self.candidates[last].id
    }

    fn max_logit(&self) -> f32 {
        self.candidates
            .iter()
            .map(|c| c.logit)
            .fold(f32::MIN, f32::max)
    }
}

/// The sum of each token's biases, in ascending order of ids.
fn sums_of(biases: &[(u32, f32)]) -> Vec<(u32, f32)> {
    let mut sorted = biases.to_vec();
    sorted.sort_by_key(|&(id, _)| id);
    sorted.dedup_by(|next, first| {
        let same = next.0 == first.0;
        if same {
            first.1 = (first.1 + next.1).min(f32::MAX);
        }
        same
    });
    sorted
}

/// Fills `out` with the `k` best candidates in order, or with all of them in order of their ids if `k` is 0 or reaches
/// the number of logits.
///
/// One pass gathers what is better than the worst of the best `k` so far, and the best are selected
/// from these few now and then: a fraction of the time of selecting from all.
fn gather(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    let entries = (0u32..)
        .zip(logits)
        .map(|(id, &logit)| Candidate { logit, id });
    if k == 0 || k >= logits.len() {
        out.extend(entries);
        return;
    }
    let full = k.saturating_mul(GATHERED);
    let mut least = f32::NEG_INFINITY;
    for entry in entries {
        // A later equal has a higher id and loses to all that are kept.
        if entry.logit <= least {
            continue;
        }
        out.push(entry);
        if out.len() == full {
            out.select_nth_unstable_by(k - 1, Candidate::order);
            out.truncate(k);
            least = out[k - 1].logit;
        }
    }
    out.sort_unstable_by(Candidate::order);
    out.truncate(k);
}

/// Checks that there are `vocab_size` logits and that all are finite.
fn check(logits: &[f32], vocab_size: usize) -> Result<()> {
    let problem = if logits.len() != vocab_size || logits.is_empty() {
        format!("{} logits for a vocabulary of {vocab_size}", logits.len())
    } else if logits.iter().fold(false, |any, l| any | !l.is_finite()) {
        let id = logits.iter().position(|l| !l.is_finite()).unwrap_or(0);
        format!("the logit of token {id} is {}", logits[id])
    } else {
        return Ok(());
    };
    Err(ModelError::Parameter {
        field: "logits".into(),
        problem,
        remedy: "the model or its file is damaged: check it, then download or convert it again"
            .into(),
    })
}

/// The lowest id among those with the highest logit.
pub fn argmax(logits: &[f32]) -> u32 {
    // In two passes, of which the first is 16 independent maxima: the cores wait meanwhile.
    let (whole, rest) = logits.as_chunks::<16>();
    let mut lanes = [f32::NEG_INFINITY; 16];
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    for chunk in whole {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, logit);
        }
    }
    let most = lanes
        .iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, larger);
    logits.iter().position(|&logit| logit == most).unwrap_or(0) as u32
}

#[cfg(test)]
mod tests;
