//! Kullback-Leibler divergence from a reference run, over the positions that perplexity scores.

use std::io::BufWriter;
use std::path::Path;

use forebay_models::error::ModelError;
use forebay_models::files::write_output;
use serde::{Deserialize, Serialize};

use super::saved_logits::{Header, LogitsReader, LogitsWriter};
use crate::engine::{Engine, best_and_log_sum, chunks_to_score};
use crate::error::Error;

/// Log-probabilities below this are the end of what a file can say.
const NOTHING: f32 = -16.0;

/// How far a run is from its reference.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Divergence {
    /// Mean of `KL(reference || run)` over all positions, nats.
    pub mean: f64,
    /// Its standard error.
    pub stderr: f64,
    /// Half the positions diverge by less.
    pub median: f64,
    /// All but one of a hundred positions diverge by less.
    pub p99: f64,
    /// The largest.
    pub max: f64,
    /// Part of the positions at which both have the same most likely token, 0 to 1.
    pub same_top: f64,
    /// Root mean square of the difference of the actual next token's probability.
    pub rms_probability: f64,
    /// Perplexity of the run.
    pub perplexity: f64,
    /// Perplexity of the reference.
    pub reference_perplexity: f64,
    /// Positions compared.
    pub tokens: usize,
}

/// Saves the logits of a run as a reference: chunks of `ctx` of the `tokens`, as [`Engine::perplexity`] scores them.
/// `progress` is told the chunks done and their number.
///
/// # Errors
/// As [`Engine::perplexity`]; the file cannot be written.
pub fn save(
    engine: &Engine,
    path: &Path,
    (tokens, ctx): (&[u32], usize),
    chunks: Option<usize>,
    mut progress: impl FnMut(usize, usize),
) -> Result<(), Error> {
    let chunks = chunks_to_score(tokens.len(), ctx, chunks)?;
    let header = Header {
        ctx,
        vocabulary: engine.network().vocab_size,
        tokens: tokens[..chunks * ctx].to_vec(),
    };
    let mut failed = None;
    let written = write_output(path, |file| {
        let mut writer = LogitsWriter::new(BufWriter::new(file), &header)?;
        for (chunk, tokens) in header.tokens.chunks_exact(ctx).enumerate() {
            let mut result = Ok(());
            let run = chunk_rows(engine, tokens, |_, logits| {
                if result.is_ok() {
                    result = writer.row(logits);
                }
            });
            result?;
            if let Err(e) = run {
                failed = Some(e);
                return Err(std::io::Error::other("the run failed"));
            }
            progress(chunk + 1, chunks);
        }
        writer.finish()
    });
    match (failed, written) {
        (Some(error), _) => Err(error),
        (None, Err(e)) => Err(ModelError::io(path, "write the logits", e).into()),
        (None, Ok(())) => Ok(()),
    }
}

/// Calls `each` with the rows of a chunk that are scored: the token after it, and its logits.
fn chunk_rows(
    engine: &Engine,
    tokens: &[u32],
    mut each: impl FnMut(u32, &[f32]),
) -> Result<(), Error> {
    let tokens = engine.tokenizer().piece(tokens);
    // The last row scores a token that the chunk does not have.
    engine.logits(&tokens, tokens.len() / 2, |position, logits| {
        if let Some(&next) = tokens.get(position + 1) {
            each(next, logits);
        }
    })
}

/// Compares a run with the saved logits of a reference, over the first `chunks` of the file's chunks. `progress` is
/// told the chunks done, their number and the divergence so far.
///
/// # Errors
/// A bad file, one of another vocabulary, chunks that the engine's context does not hold, or a fault.
pub fn compare(
    engine: &Engine,
    path: &Path,
    chunks: Option<usize>,
    mut progress: impl FnMut(usize, usize, &Divergence),
) -> Result<Divergence, Error> {
    let mut saved = LogitsReader::open(path)?;
    let header = saved.header().clone();
    let vocabulary = engine.network().vocab_size;
    if header.vocabulary != vocabulary {
        return Err(ModelError::Format {
            path: path.into(),
            field: "vocabulary".into(),
            problem: format!(
                "{} tokens, but the model has {vocabulary}",
                header.vocabulary
            ),
            remedy: "compare with a reference of the same vocabulary".into(),
        }
        .into());
    }
    let chunks = chunks.unwrap_or(usize::MAX).clamp(1, header.chunks());
    let mut sums = Sums::default();
    for (chunk, tokens) in header
        .tokens
        .chunks_exact(header.ctx)
        .take(chunks)
        .enumerate()
    {
        let mut read = Ok(());
        chunk_rows(engine, tokens, |next, logits| {
            if read.is_ok() {
                read = saved.row().map(|row| sums.add(row, logits, next as usize));
            }
        })?;
        read?;
        progress(chunk + 1, chunks, &sums.result());
    }
    Ok(sums.result())
}

/// Of the positions so far.
#[derive(Default)]
pub(super) struct Sums {
    divergences: Vec<f64>,
    same_top: usize,
    squares: f64,
    nll: f64,
    reference_nll: f64,
}

impl Sums {
    /// Adds a position: the reference's log-probabilities and the run's logits, `[vocabulary]` each, and the token that
    /// came next.
    pub(super) fn add(&mut self, reference: &[f32], logits: &[f32], next: usize) {
        let (best, log_sum) = best_and_log_sum(logits);
        let (reference_best, _) = best_and_log_sum(reference);
        let each = reference.iter().zip(logits).filter(|(r, _)| **r > NOTHING);
        let divergence = each
            .map(|(&r, &l)| f64::from(r).exp() * (f64::from(r) - f64::from(l) + log_sum))
            .sum();
        self.divergences.push(divergence);
        self.same_top += usize::from(best == reference_best);
        let log_p = f64::from(logits[next]) - log_sum;
        let reference_log_p = f64::from(reference[next]);
        self.squares += (log_p.exp() - reference_log_p.exp()).powi(2);
        self.nll -= log_p;
        self.reference_nll -= reference_log_p;
    }

    pub(super) fn result(&self) -> Divergence {
        let count = self.divergences.len();
        let n = count.max(1) as f64;
        let mean = self.divergences.iter().sum::<f64>() / n;
        let squares = self.divergences.iter().map(|d| (d - mean).powi(2));
        let variance = squares.sum::<f64>() / (n - 1.0).max(1.0);
        let mut sorted = self.divergences.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| sorted.get((part * n) as usize).copied().unwrap_or(0.0);
        Divergence {
            mean,
            stderr: (variance / n).sqrt(),
            median: at(0.5),
            p99: at(0.99),
            max: sorted.last().copied().unwrap_or(0.0),
            same_top: self.same_top as f64 / n,
            rms_probability: (self.squares / n).sqrt(),
            perplexity: (self.nll / n).exp(),
            reference_perplexity: (self.reference_nll / n).exp(),
            tokens: count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_softmax(logits: &[f32]) -> Vec<f32> {
        let (_, log_sum) = best_and_log_sum(logits);
        logits
            .iter()
            .map(|&l| (f64::from(l) - log_sum) as f32)
            .collect()
    }

    #[test]
    fn the_same_logits_do_not_diverge_whatever_is_added_to_them() {
        let logits = [1.0, -2.0, 0.25];
        let mut sums = Sums::default();
        sums.add(&log_softmax(&logits), &logits.map(|l| l + 5.0), 2);
        let d = sums.result();
        assert!(d.mean.abs() < 1e-6 && d.rms_probability < 1e-6, "{d:?}");
        assert_eq!((d.same_top, d.tokens), (1.0, 1));
        assert!((d.perplexity - d.reference_perplexity).abs() < 1e-5);
    }

    #[test]
    fn the_divergence_is_that_of_its_formula() {
        // p = (3/4, 1/4) and q = (1/4, 3/4): (3/4 - 1/4) ln 3.
        let (p, q) = ([3f32.ln(), 0.0], [0.0, 3f32.ln()]);
        let mut sums = Sums::default();
        sums.add(&log_softmax(&p), &q, 0);
        let d = sums.result();
        assert!((d.mean - 0.5 * 3f64.ln()).abs() < 1e-6, "{d:?}");
        assert!((d.rms_probability - 0.5).abs() < 1e-6);
        assert_eq!(d.same_top, 0.0);
        assert!((d.perplexity - 4.0).abs() < 1e-5);
    }
}
