//! The streaming token channel.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use flume::Receiver;
use flume::r#async::RecvStream;
use futures_core::Stream;
use serde::Serialize;

use crate::error::Error;
use crate::stats::Statistics;

/// A token and how likely the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TokenLogProbability {
    /// Its id.
    pub id: u32,
    /// Natural logarithm of its probability, without biases, penalties or temperature.
    pub log_probability: f32,
}

/// How likely a token was, and which others were likely.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LogProbabilities {
    /// The token.
    pub chosen: TokenLogProbability,
    /// As many as the request asked for, the most likely first; the chosen one may be among them.
    pub most_likely: Vec<TokenLogProbability>,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Text that has become complete with it; empty while a character is unfinished, or while the text may
    /// be the beginning of a stop string.
    pub text: String,
    /// If the request asked for them.
    pub log_probabilities: Option<Box<LogProbabilities>>,
}

/// Progress in reading a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromptProgress {
    /// Tokens that have been read.
    pub done: usize,
    /// Tokens that have to be read, excluding those that were already in the KV cache.
    pub total: usize,
}

/// What a stream yields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StreamItem {
    /// A part of a long prompt has been read, and more of it follows.
    Prompt(PromptProgress),
    /// A token.
    Token(Token),
    /// Text at the very end that was not part of a token's text: an unfinished character as U+FFFD, or what might have
    /// become a stop string and did not.
    Rest(String),
    /// The end, with the statistics of the generation; always the last item of a successful stream.
    Done(Box<Statistics>),
}

/// Tokens of one generation, as a [`Stream`]; [`TokenStream::blocking`] turns it into an iterator for
/// threads that may wait. Dropping it cancels the generation at the next token.
pub struct TokenStream {
    receiver: Receiver<Result<StreamItem, Error>>,
    stream: RecvStream<'static, Result<StreamItem, Error>>,
    canceller: Canceller,
    end: End,
}

/// What follows the items in the channel.
#[derive(Debug)]
struct End {
    last_words: Arc<LastWords>,
    /// Whether the last item has been handed out.
    over: bool,
}

impl End {
    /// Passes an item on. Where the channel ends without its last one, the last is why.
    fn follow(
        &mut self,
        item: Option<Result<StreamItem, Error>>,
    ) -> Option<Result<StreamItem, Error>> {
        let item = match item {
            None if !self.over => Some(Err(self.last_words.error().unwrap_or(Error::Stopped))),
            item => item,
        };
        self.over |= !matches!(
            item,
            Some(Ok(StreamItem::Prompt(_)
                | StreamItem::Token(_)
                | StreamItem::Rest(_)))
        );
        item
    }
}

impl std::fmt::Debug for TokenStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenStream")
            .field("queued", &self.receiver.len())
            .finish_non_exhaustive()
    }
}

impl TokenStream {
    pub(crate) fn new(
        receiver: Receiver<Result<StreamItem, Error>>,
        cancelled: Arc<AtomicBool>,
        last_words: Arc<LastWords>,
    ) -> Self {
        let stream = receiver.clone().into_stream();
        Self {
            receiver,
            stream,
            canceller: Canceller(cancelled),
            end: End {
                last_words,
                over: false,
            },
        }
    }

    /// Ends the generation at the next token. Unlike a dropped stream, this one continues to its end: what has been
    /// generated, then [`StreamItem::Done`] with [`FinishReason::Cancelled`](crate::FinishReason).
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// What does the same from elsewhere, while a thread waits for the next item.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// The same items as an iterator that waits for each.
    pub fn blocking(self) -> BlockingTokens {
        BlockingTokens {
            receiver: self.receiver,
            canceller: self.canceller,
            end: self.end,
        }
    }

    /// Waits for the end of the stream and returns all text and the statistics.
    ///
    /// # Errors
    /// The first error of the stream.
    pub fn finish(self) -> Result<(String, Statistics), Error> {
        self.blocking().finish()
    }
}

/// Ends a generation at its next token, from any thread: for a button beside a thread that waits for tokens.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// See [`TokenStream::cancel`].
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Stream for TokenStream {
    type Item = Result<StreamItem, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = Pin::new(&mut self.stream).poll_next(cx);
        item.map(|item| self.end.follow(item))
    }
}

/// Tokens of one generation, as an iterator that waits for each. Dropping it cancels the generation at the
/// next token.
#[derive(Debug)]
pub struct BlockingTokens {
    receiver: Receiver<Result<StreamItem, Error>>,
    canceller: Canceller,
    end: End,
}

impl BlockingTokens {
    /// Ends the generation at the next token: see [`TokenStream::cancel`].
    pub fn cancel(&self) {
        self.canceller.cancel();
    }

    /// Reads the remaining items: their text and the statistics.
    ///
    /// # Errors
    /// The first error of the stream.
    pub fn finish(self) -> Result<(String, Statistics), Error> {
        let mut text = String::new();
        for item in self {
            match item? {
                StreamItem::Prompt(_) => {}
                StreamItem::Token(token) => text.push_str(&token.text),
                StreamItem::Rest(rest) => text.push_str(&rest),
                StreamItem::Done(statistics) => return Ok((text, *statistics)),
            }
        }
        Err(Error::Stopped)
    }
}

impl Iterator for BlockingTokens {
    type Item = Result<StreamItem, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.receiver.recv().ok();
        self.end.follow(item)
    }
}

/// What the engine thread said when it panicked, if it did.
#[derive(Debug, Default)]
pub(crate) struct LastWords(OnceLock<String>);

impl LastWords {
    /// Keeps the first.
    pub fn say(&self, cause: String) {
        let _ = self.0.set(cause);
    }

    /// Why there is no answer, if a panic is the reason.
    pub fn error(&self) -> Option<Error> {
        let cause = self.0.get()?.clone();
        Some(Error::EngineFailed { cause })
    }
}
