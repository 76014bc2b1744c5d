//! The streaming token channel.

use std::pin::Pin;
use std::task::{Context, Poll};

use flume::Receiver;
use flume::r#async::RecvStream;
use futures_core::Stream;

use crate::error::Error;
use crate::stats::Statistics;

/// A generated token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Text that has become complete with it; may be empty while a character is unfinished.
    pub text: String,
}

/// How far the reading of a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptProgress {
    /// Tokens that have been read.
    pub done: usize,
    /// Tokens that have to be read, without those that were in the KV cache already.
    pub total: usize,
}

/// What a stream yields.
#[derive(Clone, Debug)]
pub enum StreamItem {
    /// A part of a long prompt has been read, and more of it follows.
    Prompt(PromptProgress),
    /// A token.
    Token(Token),
    /// What was left of an unfinished character at the very end, as U+FFFD; belongs to no token.
    Rest(String),
    /// The end, with the statistics of the generation; always the last item of a successful stream.
    Done(Box<Statistics>),
}

/// Tokens of one generation: a [`Stream`] and a blocking [`Iterator`]. Dropping it cancels the generation
/// at the next token.
pub struct TokenStream {
    receiver: Receiver<Result<StreamItem, Error>>,
    stream: RecvStream<'static, Result<StreamItem, Error>>,
}

impl std::fmt::Debug for TokenStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenStream")
            .field("queued", &self.receiver.len())
            .finish()
    }
}

impl TokenStream {
    pub(crate) fn new(receiver: Receiver<Result<StreamItem, Error>>) -> Self {
        let stream = receiver.clone().into_stream();
        Self { receiver, stream }
    }

    /// Reads the stream to its end: all text and the statistics.
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

impl Iterator for TokenStream {
    type Item = Result<StreamItem, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.receiver.recv().ok()
    }
}

impl Stream for TokenStream {
    type Item = Result<StreamItem, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.stream).poll_next(cx)
    }
}
