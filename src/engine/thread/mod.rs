//! The engine thread: it takes jobs in turn, and drives the actors step by step.

pub(super) mod bench;
pub(super) mod context;
pub(super) mod decoded;
pub(super) mod device_share;
pub(super) mod drafts;
pub(super) mod evaluator;
pub(super) mod generate;
pub(super) mod generation;
pub(super) mod job;
pub(super) mod jobs;
pub(super) mod log_probabilities;
pub(super) mod meter;
pub(super) mod runner;
pub(super) mod said;
pub(super) mod score;
pub(super) mod softmax;
