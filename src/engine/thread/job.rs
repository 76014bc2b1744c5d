//! What the engine thread is asked to do.

use std::any::Any;

use super::bench::BenchJob;
use super::decoded::DecodeJob;
use super::generation::{GenerateJob, Generation};
use super::score::{LogitsJob, ScoreJob};

/// A job of the engine thread.
#[derive(Debug)]
pub(in crate::engine) enum Job {
    Generate(Box<GenerateJob>),
    /// A paused generation continues.
    Resume(Box<Generation>),
    Logits(Box<LogitsJob>),
    Decode(Box<DecodeJob>),
    Score(Box<ScoreJob>),
    Bench(Box<BenchJob>),
    /// The budget was changed, perhaps while the engine is idle.
    Budget,
    Stop,
}

impl Job {
    /// Keeps whoever waits for the job's answer waiting for as long as it lives.
    pub fn answer(&self) -> Option<Box<dyn Any + Send>> {
        match self {
            Self::Generate(job) => Some(Box::new(job.sender.clone())),
            Self::Resume(generation) => Some(Box::new(generation.sender())),
            Self::Logits(job) => Some(Box::new(job.rows.clone())),
            Self::Decode(job) => Some(Box::new(job.said.clone())),
            Self::Score(job) => Some(Box::new(job.said.clone())),
            Self::Bench(job) => Some(Box::new(job.said.clone())),
            Self::Budget | Self::Stop => None,
        }
    }
}
