//! A second, smaller model that drafts: what it would say next is run ahead. It is all in memory.

use forebay_models::sampler::argmax;
use forebay_models::tokenizer::Tokenizer;

use super::record::Record;
use crate::engine::thread::evaluator::Evaluator;
use crate::error::Error;

/// Tokens of a step in which it reads what it has not seen.
pub(crate) const BATCH: usize = 64;
/// Steps in which it reads a long text before the large model has its turn, so that a generation can be cancelled.
const BATCHES_AT_ONCE: usize = 4;

/// The model that drafts.
#[derive(Debug)]
pub(in crate::engine) struct DraftModel {
    evaluator: Evaluator,
    /// Token ids below this mean the same in both models.
    shared_ids: usize,
}

impl DraftModel {
    /// `shared_ids`: as many ids mean the same in both models.
    pub fn new(evaluator: Evaluator, shared_ids: usize) -> Self {
        Self {
            evaluator,
            shared_ids,
        }
    }

    /// Writes what it would say after `text` to `drafted`, and returns how many tokens that are: none where there is no
    /// room for them, where it does not know the text's tokens, or before it has read a long text.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub fn draft(
        &mut self,
        text: &[u32],
        drafted: &mut [u32],
        record: &mut Record,
    ) -> Result<usize, Error> {
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
                return self.go_on(drafted, record);
            }
        }
        Ok(0)
    }

    /// Writes the tokens that follow the last step's.
    fn go_on(&mut self, drafted: &mut [u32], record: &mut Record) -> Result<usize, Error> {
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
                record.took(start.elapsed().as_nanos() as f64);
            }
        }
        Ok(drafted.len())
    }
}

/// As many ids as mean the same in both vocabularies; `None` if they differ in any that both have.
pub(in crate::engine) fn shared_ids(a: &Tokenizer, b: &Tokenizer) -> Option<usize> {
    let shared = a.vocab_size().min(b.vocab_size());
    let same = |id: u32| a.token_bytes(id) == b.token_bytes(id) && a.is_eog(id) == b.is_eog(id);
    (0..shared as u32).all(same).then_some(shared)
}
