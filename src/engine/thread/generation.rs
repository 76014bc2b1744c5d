//! A generation: what was asked for, and how far it is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use flume::Sender;
use forebay_models::sampler::{Sampler, SamplerConfig};
use forebay_models::tokenizer::Detokenizer;
use parking_lot::Mutex;
use tracing::Span;

use super::meter::Meter;
use crate::chat::{AnswerReader, Stops};
use crate::error::Error;
use crate::request::Request;
use crate::stream::StreamItem;

/// Tokens of a conversation, shared between its session and the engine thread.
pub(in crate::engine) type History = Arc<Mutex<Vec<u32>>>;

/// How many items a reader may fall behind.
pub(in crate::engine) const QUEUE: usize = 64;
/// A paused generation continues when this much of its queue is free: its text is then run again, which should pay off.
const ROOM_TO_RESUME: usize = QUEUE / 2;
#[derive(Debug)]
pub(in crate::engine) struct GenerateJob {
    pub prompt: Vec<u32>,
    /// Goes in front of the prompt if the conversation begins with it, which shows when its turn comes.
    pub bos: Option<u32>,
    /// The request, if an earlier one of its session was not over: how a text is encoded depends on what it follows.
    pub again: Option<Request>,
    pub max_tokens: usize,
    pub sampler: SamplerConfig,
    pub ignore_eog: bool,
    pub stop: Vec<String>,
    pub answer: Option<AnswerReader>,
    pub stop_tokens: Vec<u32>,
    pub shown_tokens: Vec<u32>,
    pub log_probabilities: Option<usize>,
    pub history: History,
    /// Whether the prompt takes the history's place.
    pub anew: bool,
    pub asked: Instant,
    pub sender: Sender<Result<StreamItem, Error>>,
    pub cancelled: Arc<AtomicBool>,
    /// Child of the caller's span.
    pub span: Span,
}

/// A running or paused generation.
#[derive(Debug)]
pub(in crate::engine) struct Generation {
    pub history: History,
    pub sender: Sender<Result<StreamItem, Error>>,
    pub cancelled: Arc<AtomicBool>,
    /// Items that have not been handed to the reader yet.
    pub outbox: VecDeque<Result<StreamItem, Error>>,
    pub over: bool,
    /// The conversation: the session's history, the prompt, and the generated tokens.
    pub tokens: Vec<u32>,
    /// Whether the prompt has been read.
    pub has_read: bool,
    /// Whether others may have run since the last step.
    pub interrupted: bool,
    /// The generated tokens.
    pub ids: Vec<u32>,
    pub text: String,
    /// Tokens to generate, and whether the request sets that limit, not the context.
    pub max_tokens: usize,
    pub limited_by_request: bool,
    pub ignore_eog: bool,
    pub stop_tokens: Vec<u32>,
    /// How many tokens are told besides the chosen one, if any are.
    pub log_probabilities: Option<usize>,
    pub seed: Option<u64>,
    pub sampler: Sampler,
    pub detokenizer: Detokenizer,
    pub stops: Stops,
    pub meter: Meter,
    pub asked: Instant,
    /// Entered while the generation runs; single tokens have no spans.
    pub span: Span,
}

impl Generation {
    /// Whether `history` is that of the same session: a session's requests run in order.
    pub fn is_of(&self, history: &History) -> bool {
        Arc::ptr_eq(&self.history, history)
    }

    /// Whether a paused generation should continue: its reader has caught up, or has gone.
    pub fn is_wanted(&self) -> bool {
        self.sender.is_disconnected() || QUEUE - self.sender.len().min(QUEUE) >= ROOM_TO_RESUME
    }

    /// Where its items go.
    pub fn sender(&self) -> Sender<Result<StreamItem, Error>> {
        self.sender.clone()
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub fn fail(&mut self, error: Error) {
        self.outbox.push_back(Err(error));
        self.over = true;
    }
}
