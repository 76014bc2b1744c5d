//! A conversation with a model.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tracing::field::Empty;

use super::facts::{Facts, MOST_LIKELY};
use super::thread::generation::{GenerateJob, History, QUEUE};
use super::thread::job::Job;
use super::thread::jobs::Jobs;
use crate::chat::{AnswerReader, Transcript};
use crate::error::Error;
use crate::request::Request;
use crate::stream::TokenStream;

/// A conversation: its prompts and answers so far. [`Session::fork`] copies it.
#[derive(Debug)]
pub struct Session {
    pub(super) facts: Arc<Facts>,
    pub(super) jobs: Jobs,
    pub(super) history: History,
    /// Of [`Session::chat`].
    pub(super) transcript: Transcript,
}

impl Session {
    /// Generates a continuation of the session's history and the request's prompt.
    ///
    /// Requests of a session are served one after the other, and each waits for the reader of the one before: streams
    /// that one thread reads have to be read, or dropped, in the order in which they were asked for.
    ///
    /// # Errors
    /// An empty or unusable prompt, a prompt longer than the context, or bad sampler settings. Errors
    /// during generation come through the stream.
    pub fn generate(&mut self, request: Request) -> Result<TokenStream, Error> {
        let history = Arc::clone(&self.history);
        self.send(request, (history, false), None)
    }

    /// Generates a continuation of the request's prompt alone. It becomes the session's history once it has been read;
    /// until then, and if it is refused, that stays what it was. With an `answer`, its texts alone are searched for
    /// stop strings, and all of it is passed on.
    pub(super) fn generate_anew(
        &mut self,
        request: Request,
        answer: Option<AnswerReader>,
    ) -> Result<TokenStream, Error> {
        // An earlier stream that is still read goes on with its own.
        let history = Arc::new(Mutex::new(self.history()));
        let stream = self.send(request, (Arc::clone(&history), true), answer)?;
        self.history = history;
        Ok(stream)
    }

    /// Sends a generation that goes on after the history, or begins `anew`.
    fn send(
        &self,
        request: Request,
        (history, anew): (History, bool),
        answer: Option<AnswerReader>,
    ) -> Result<TokenStream, Error> {
        // Besides the session and this request only those hold the history that may still add to it.
        let grows = !anew && Arc::strong_count(&history) > 2;
        let (used, last) = match (anew, &*history.lock()) {
            (true, _) => (0, None),
            (false, ids) => (ids.len(), ids.last().copied()),
        };
        let (prompt, bos) = self.facts.tokens_of(&request, (used, last))?;
        request
            .sampler
            .validate_for(self.facts.network.vocab_size)?;
        if request.stop.iter().any(String::is_empty) {
            let problem = "an empty string would end every text at once; omit it";
            return Err(Error::parameter("stop", problem));
        }
        if request.log_probabilities.is_some_and(|n| n > MOST_LIKELY) {
            let problem = format!("at most {MOST_LIKELY} tokens can be told");
            return Err(Error::parameter("log_probabilities", problem));
        }
        if prompt.is_empty() && bos.is_none() && used == 0 && !grows {
            return Err(Error::EmptyPrompt);
        }
        let begins = bos.filter(|_| used == 0);
        self.facts
            .check_room(used + begins.iter().len() + prompt.len())?;
        // A slow reader holds the generation back here, a few tokens ahead.
        let (sender, receiver) = flume::bounded(QUEUE);
        let cancelled = Arc::default();
        let job = GenerateJob {
            prompt,
            bos,
            again: grows.then(|| request.clone()),
            max_tokens: request.max_tokens.unwrap_or(usize::MAX),
            sampler: request.sampler,
            ignore_eog: request.ignore_eog,
            stop: request.stop,
            answer,
            stop_tokens: request.stop_tokens,
            shown_tokens: request.shown_tokens,
            log_probabilities: request.log_probabilities,
            history,
            anew,
            asked: Instant::now(),
            sender,
            cancelled: Arc::clone(&cancelled),
            span: tracing::info_span!("request", used, tokens = Empty, finish_reason = Empty),
        };
        self.jobs.send(Job::Generate(Box::new(job)))?;
        let last_words = self.jobs.last_words();
        Ok(TokenStream::new(receiver, cancelled, last_words))
    }

    /// A second conversation that begins with this one's history so far.
    pub fn fork(&self) -> Self {
        Self {
            facts: Arc::clone(&self.facts),
            jobs: self.jobs.clone(),
            history: Arc::new(Mutex::new(self.history())),
            transcript: self.transcript.clone(),
        }
    }

    /// All tokens of the conversation so far, including the end-of-generation tokens of answers. Generated tokens are
    /// here as soon as they are sampled; those of a prompt, once it has been read.
    pub fn history(&self) -> Vec<u32> {
        self.history.lock().clone()
    }
}
