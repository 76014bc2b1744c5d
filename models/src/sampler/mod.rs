//! From logits to the next token: llama.cpp's chain of penalties, top-k, top-p, min-p, temperature
//! and a draw, over buffers that are allocated once.

mod config;
mod rng;

use crate::error::{ModelError, Result};

pub use config::SamplerConfig;
use rng::SplitMix64;

/// Candidates that top-p sorts at first; most distributions end within them.
const FIRST_SORTED: usize = 256;

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
    rng: SplitMix64,
    /// `[vocab_size]` at the beginning of a choice, fewer later; the capacity stays.
    candidates: Vec<Candidate>,
    /// Running sums of the candidates' weights. `[vocab_size]`
    sums: Vec<f64>,
    vocab_size: usize,
}

impl Sampler {
    /// A sampler for `vocab_size` logits; all memory it will ever use (16 bytes per logit, none for
    /// plain greedy choice) is allocated here.
    ///
    /// # Errors
    /// A parameter outside its range.
    pub fn new(config: SamplerConfig, vocab_size: usize) -> Result<Self> {
        config.validate()?;
        let n_candidates = if config.is_plain_greedy() {
            0
        } else {
            vocab_size
        };
        let n_sums = if config.temperature > 0.0 {
            vocab_size
        } else {
            0
        };
        Ok(Self {
            rng: SplitMix64::new(config.seed),
            config,
            candidates: Vec::with_capacity(n_candidates),
            sums: Vec::with_capacity(n_sums),
            vocab_size,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Chooses the token that follows `history`, of which the last `repeat_last_n` are penalised.
    /// `logits`: `[vocab_size]`. Greedy choice (temperature 0) takes the lowest id among equals.
    ///
    /// # Errors
    /// Logits of another number than the vocabulary's, or not finite: the model is damaged.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
        check(logits, self.vocab_size)?;
        if self.config.is_plain_greedy() {
            return Ok(argmax(logits));
        }
        self.candidates.clear();
        let entries = (0u32..).zip(logits);
        self.candidates
            .extend(entries.map(|(id, &logit)| Candidate { logit, id }));
        self.penalise(logits, history);
        if self.config.temperature == 0.0 {
            let best = self.candidates.iter().min_by(|a, b| Candidate::order(a, b));
            return Ok(best.map_or(0, |c| c.id));
        }
        self.keep_top_k();
        self.keep_top_p();
        self.keep_min_p();
        Ok(self.draw())
    }

    /// Divides the positive and multiplies the other logits of the last tokens by the penalty, once
    /// each however often they occur (Keskar et al., "CTRL", arXiv:1909.05858, section 4.1).
    fn penalise(&mut self, logits: &[f32], history: &[u32]) {
        let penalty = self.config.repeat_penalty;
        let window = &history[history.len().saturating_sub(self.config.repeat_last_n)..];
        for &id in window {
            let Some(&logit) = logits.get(id as usize) else {
                continue;
            };
            let penalised = if logit > 0.0 {
                logit / penalty
            } else {
                logit * penalty
            };
            self.candidates[id as usize].logit = penalised.clamp(f32::MIN, f32::MAX);
        }
    }

    /// Keeps the `top_k` best, in order.
    fn keep_top_k(&mut self) {
        let k = self.config.top_k;
        if k == 0 || k >= self.candidates.len() {
            return;
        }
        self.candidates
            .select_nth_unstable_by(k - 1, Candidate::order);
        self.candidates.truncate(k);
        self.candidates.sort_unstable_by(Candidate::order);
    }

    /// Keeps the fewest of the best whose probabilities sum up to `top_p`.
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
            // Sort only as far as the sum needs: the best `step` of what is left.
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
        let mut sum = 0.0;
        self.sums.clear();
        self.sums.extend(self.candidates.iter().map(|c| {
            sum += f64::from(((c.logit - max) / temperature).exp());
            sum
        }));
        let point = self.rng.next_unit() * sum;
        // The first whose running sum exceeds the point has a weight above 0. Rounding can put the
        // point on the last sum; the last candidate that added to it is the right one then.
        let at = self.sums.partition_point(|&s| s <= point);
        let at = at.min(self.sums.partition_point(|&s| s < sum));
        self.candidates[at].id
    }

    fn max_logit(&self) -> f32 {
        self.candidates
            .iter()
            .map(|c| c.logit)
            .fold(f32::MIN, f32::max)
    }
}

/// Checks that there are `vocab_size` logits and that all are finite.
fn check(logits: &[f32], vocab_size: usize) -> Result<()> {
    let problem = if logits.len() != vocab_size || logits.is_empty() {
        format!("{} logits for a vocabulary of {vocab_size}", logits.len())
    } else if let Some(id) = logits.iter().position(|l| !l.is_finite()) {
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
fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests;
