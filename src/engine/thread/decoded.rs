//! Given tokens, run one by one as if they were generated: for what is different then.

use std::ops::AddAssign;

use flume::Sender;
use forebay_actors::io_counters::IoCounters;
use serde::{Deserialize, Serialize};

use super::evaluator::Evaluator;
use super::said::Said;
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

/// A position and its logits, `[vocab_size]`.
pub(in crate::engine) type Row = (usize, Vec<f32>);

#[derive(Debug)]
pub(in crate::engine) struct DecodeJob {
    pub tokens: Vec<u32>,
    pub first: usize,
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
