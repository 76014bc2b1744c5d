//! A second, smaller model that drafts: what it would say next is run ahead. It is all in memory.

use forebay_models::sampler::argmax;
use forebay_models::tokenizer::Tokenizer;

use super::MOST;
use super::pace::Mean;
use crate::engine::evaluator::Evaluator;
use crate::error::Error;

/// Tokens of a step in which it reads what it has not seen.
pub(crate) const BATCH: usize = 64;
/// Steps in which it reads a long text before the large model has its turn, so that a generation can be cancelled.
const BATCHES_AT_ONCE: usize = 4;
/// Which part of its tokens is taken to be right before any was seen, and for how many tokens that counts.
const TRUST: Mean = Mean { value: 0.6, n: 2 };
/// Running means follow as if they were those of this many latest values.
const LATEST: u32 = 32;

/// The model that drafts.
#[derive(Debug)]
pub(in crate::engine) struct DraftModel {
    evaluator: Evaluator,
    /// Token ids below this mean the same in both models.
    shared_ids: usize,
    /// How often its token is right, all before it in the draft having been, by its place, `[MOST]`.
    right: [Mean; MOST],
    /// Time of one of its tokens, nanoseconds.
    token_ns: Mean,
}

impl DraftModel {
    /// `shared_ids`: as many ids mean the same in both models.
    pub fn new(evaluator: Evaluator, shared_ids: usize) -> Self {
        Self {
            evaluator,
            shared_ids,
            right: [TRUST; MOST],
            token_ns: Mean::default(),
        }
    }

    /// How many tokens to draft, at most `most`: as many as give the most tokens per second, if steps take `times` by the
    /// number of drafted tokens.
    pub fn length(&self, times: &[f64; 1 + MOST], most: usize) -> usize {
        let (mut best, mut speed) = (0, 1.0 / times[0]);
        let (mut all_right, mut tokens) = (1.0, 1.0);
        let lengths = (1..=most).zip(&self.right).zip(&times[1..]);
        for ((drafted, right), step) in lengths {
            all_right *= right.value;
            tokens += all_right;
            let time = step + drafted as f64 * self.token_ns.value;
            if tokens / time > speed {
                (best, speed) = (drafted, tokens / time);
            }
        }
        best
    }

    /// Writes what it would say after `text` to `drafted`, and returns how many tokens that are: none where there is no
    /// room for them, where it does not know the text's tokens, or before it has read a long text.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub fn draft(&mut self, text: &[u32], drafted: &mut [u32]) -> Result<usize, Error> {
        let known = |id: &u32| (*id as usize) < self.shared_ids;
        if text.len() + drafted.len() > self.evaluator.context() || !text.iter().all(known) {
            return Ok(0);
        }
        self.evaluator.forget_costs();
        let seen = self.evaluator.keep_common(text, text.len());
        let mut left = &text[seen..];
        for _ in 0..BATCHES_AT_ONCE {
            let (part, rest) = left.split_at(left.len().min(BATCH));
            left = rest;
            let is_last = left.is_empty();
            self.evaluator.step_of(part, usize::from(is_last), left)?;
            if is_last {
                return self.go_on(drafted);
            }
        }
        Ok(0)
    }

    /// Writes the tokens that follow the last step's.
    fn go_on(&mut self, drafted: &mut [u32]) -> Result<usize, Error> {
        for i in 0..drafted.len() {
            let start = std::time::Instant::now();
            if i > 0 {
                self.evaluator.decode(drafted[i - 1])?;
            }
            self.evaluator.take_logits(0);
            let best = argmax(&self.evaluator.logits);
            if best as usize >= self.shared_ids {
                return Ok(i);
            }
            drafted[i] = best;
            if i > 0 {
                self.token_ns.add(start.elapsed().as_nanos() as f64, LATEST);
            }
        }
        Ok(drafted.len())
    }

    /// Its `i`-th token of a draft, all before it having been right, was right or not.
    pub fn add(&mut self, i: usize, right: bool) {
        self.right[i].add(f64::from(u8::from(right)), LATEST);
    }
}

/// As many ids as mean the same in both vocabularies; `None` if they differ in any that both have.
pub(in crate::engine) fn shared_ids(a: &Tokenizer, b: &Tokenizer) -> Option<usize> {
    let shared = a.vocab_size().min(b.vocab_size());
    let same = |id: u32| a.token_bytes(id) == b.token_bytes(id) && a.is_eog(id) == b.is_eog(id);
    (0..shared as u32).all(same).then_some(shared)
}
