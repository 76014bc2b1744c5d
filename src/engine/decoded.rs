//! Given tokens, run one by one as if they were generated: for what is different then.

use std::ops::AddAssign;

use flume::Sender;
use forebay_actors::io_counters::IoCounters;
use serde::{Deserialize, Serialize};

use super::Engine;
use super::evaluator::Evaluator;
use super::runner::Job;
use super::said::{Said, hear};
use crate::error::Error;

/// What it took to run tokens one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Decoded {
    /// Tokens that were run.
    pub tokens: usize,
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Clusters of experts that were left out, on request, because they were not in memory.
    pub left_out_clusters: u64,
}

impl AddAssign for Decoded {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.reads += other.reads;
        self.bytes += other.bytes;
        self.left_out_clusters += other.left_out_clusters;
    }
}

impl Engine {
    /// As [`Self::logits`], but only the tokens before `first` are run as a prompt; the others one by one, as if they
    /// had been generated. Unless the engine may leave out or prefer experts, the logits are the same.
    ///
    /// # Errors
    /// As [`Self::logits`]'s.
    pub fn decoded_logits(
        &self,
        tokens: &[u32],
        first: usize,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<Decoded, Error> {
        self.check_positions(tokens, first)?;
        // One row ahead: the next step runs while the caller looks at this one's.
        let (said, answer) = flume::bounded(1);
        let job = DecodeJob {
            tokens: tokens.to_vec(),
            first,
            said,
        };
        self.jobs.send(Job::Decode(Box::new(job)))?;
        hear(answer, &self.jobs, |(position, logits): Row| {
            each(position, &logits);
        })
    }
}

/// A position and its logits, `[vocab_size]`.
type Row = (usize, Vec<f32>);

#[derive(Debug)]
pub(super) struct DecodeJob {
    tokens: Vec<u32>,
    first: usize,
    pub said: Sender<Said<Row, Decoded>>,
}

impl DecodeJob {
    pub fn answer(&self, evaluator: &mut Evaluator) {
        let result = self.run(evaluator);
        // Nobody may be listening any more.
        let _ = self.said.send(Said::Result(result));
    }

    fn run(&self, evaluator: &mut Evaluator) -> Result<Decoded, Error> {
        let (prompt, rest) = self.tokens.split_at(self.first);
        evaluator.evaluate(prompt, self.first, |_, _| true)?;
        let (before, left_out) = (evaluator.io_counters(), evaluator.meter.left_out);
        for (i, token) in rest.iter().enumerate() {
            evaluator.decode(*token)?;
            evaluator.take_logits(0);
            let row = (self.first + i, evaluator.logits.clone());
            if self.said.send(Said::Progress(row)).is_err() {
                return Err(Error::Stopped);
            }
        }
        let IoCounters { reads, bytes, .. } = evaluator.io_counters();
        Ok(Decoded {
            tokens: rest.len(),
            reads: reads - before.reads,
            bytes: bytes - before.bytes,
            left_out_clusters: evaluator.meter.left_out - left_out,
        })
    }
}
