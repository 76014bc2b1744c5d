//! Scoring given tokens: their logits, and perplexity by llama.cpp's protocol.

use flume::Sender;
use serde::Serialize;

use super::evaluator::Evaluator;
use super::said::Said;
use super::softmax::best_and_log_sum;
use crate::error::Error;

/// Result of [`crate::Engine::perplexity`].
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Perplexity {
    /// `exp(nll)`.
    pub perplexity: f64,
    /// Standard error of the perplexity.
    pub stderr: f64,
    /// Mean negative log-likelihood per scored token, in nats.
    pub nll: f64,
    /// Chunks evaluated.
    pub chunks: usize,
    /// Tokens per chunk.
    pub ctx: usize,
    /// Tokens scored.
    pub tokens: usize,
}

/// After a chunk: its number, their count and the perplexity so far.
pub(in crate::engine) type ChunkDone = (usize, usize, f64);

#[derive(Debug)]
pub(in crate::engine) struct ScoreJob {
    pub tokens: Vec<u32>,
    /// Tokens per chunk.
    pub ctx: usize,
    /// As [`chunks_to_score`] counts them.
    pub chunks: usize,
    pub said: Sender<Said<ChunkDone, Perplexity>>,
}

/// Tokens of the shortest chunk of which one is scored.
const LEAST_CTX: usize = 3;

/// How many chunks of `ctx` tokens are scored of a text: all, or at most `chunks`.
///
/// # Errors
/// Chunks that are too short, too few, or longer than the text.
pub(crate) fn chunks_to_score(
    tokens: usize,
    ctx: usize,
    chunks: Option<usize>,
) -> Result<usize, Error> {
    if ctx < LEAST_CTX {
        let problem = format!("no token of a chunk of {ctx} is scored; give at least {LEAST_CTX}");
        return Err(Error::parameter("ctx", problem));
    }
    if chunks == Some(0) {
        let problem = "nothing is scored without any; give at least 1";
        return Err(Error::parameter("chunks", problem));
    }
    match chunks.unwrap_or(usize::MAX).min(tokens / ctx) {
        0 => Err(Error::TooFewTokens { tokens, piece: ctx }),
        chunks => Ok(chunks),
    }
}

/// Receives rows for [`crate::Engine::logits`]: a position and its logits, `[vocab_size]`.
pub(in crate::engine) type Rows = Sender<Result<(usize, Vec<f32>), Error>>;

#[derive(Debug)]
pub(in crate::engine) struct LogitsJob {
    pub tokens: Vec<u32>,
    pub first: usize,
    pub rows: Rows,
}

impl LogitsJob {
    pub fn run(&self, evaluator: &mut Evaluator) {
        let row =
            |position, logits: &[f32]| self.rows.send(Ok((position, logits.to_vec()))).is_ok();
        if let Err(error) = evaluator.evaluate(&self.tokens, self.first, row) {
            // The caller may have gone.
            let _ = self.rows.send(Err(error));
        }
    }
}

#[derive(Default)]
struct Sums {
    nll: f64,
    squares: f64,
    count: usize,
}

impl Sums {
    fn add(&mut self, nll: f64) {
        self.nll += nll;
        self.squares += nll * nll;
        self.count += 1;
    }

    fn result(&self, chunks: usize, ctx: usize) -> Perplexity {
        let n = self.count.max(1) as f64;
        let nll = self.nll / n;
        let variance = (self.squares / n - nll * nll).max(0.0) / (n - 1.0).max(1.0);
        let perplexity = nll.exp();
        let stderr = variance.sqrt() * perplexity;
        Perplexity {
            perplexity,
            stderr,
            nll,
            chunks,
            ctx,
            tokens: self.count,
        }
    }
}

/// `-ln softmax(logits)[target]`.
fn negative_log_likelihood(logits: &[f32], target: u32) -> f64 {
    let (_, log_sum) = best_and_log_sum(logits);
    log_sum - f64::from(logits[target as usize])
}

impl ScoreJob {
    pub fn answer(&self, evaluator: &mut Evaluator) {
        let result = self.run(evaluator);
        // Nobody may be listening any more.
        let _ = self.said.send(Said::Result(result));
    }

    fn run(&self, evaluator: &mut Evaluator) -> Result<Perplexity, Error> {
        let (ctx, chunks, context) = (self.ctx, self.chunks, evaluator.context());
        if ctx > context {
            return Err(evaluator.facts.too_long(ctx));
        }
        let mut sums = Sums::default();
        for (chunk, tokens) in self.tokens.chunks_exact(ctx).take(chunks).enumerate() {
            let tokens = evaluator.facts.tokenizer.piece(tokens);
            // The first one may be the tokenizer's.
            evaluator.facts.check_tokens(&tokens)?;
            // Position `p` predicts token `p + 1`; the first half only gives context.
            let first = ctx / 2;
            evaluator.evaluate(&tokens, first, |position, logits| {
                if position + 1 < ctx {
                    sums.add(negative_log_likelihood(logits, tokens[position + 1]));
                }
                true
            })?;
            let done = (chunk + 1, chunks, sums.result(chunk + 1, ctx).perplexity);
            if self.said.send(Said::Progress(done)).is_err() {
                return Err(Error::Stopped);
            }
        }
        Ok(sums.result(chunks, ctx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_logits_give_the_vocabulary_as_perplexity() {
        let mut sums = Sums::default();
        for target in 0..8 {
            sums.add(negative_log_likelihood(&[1.5; 8], target));
        }
        let p = sums.result(1, 8);
        assert!((p.perplexity - 8.0).abs() < 1e-9);
        assert!(p.stderr < 1e-6);
    }

    #[test]
    fn certain_predictions_cost_nothing() {
        let logits = [0.0, 1000.0, 0.0];
        assert!(negative_log_likelihood(&logits, 1) < 1e-9);
        assert!((negative_log_likelihood(&logits, 0) - 1000.0).abs() < 1e-6);
    }
}
