//! The model's next message as it comes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use serde::Serialize;

use super::answer::{AnswerReader, Part};
use super::message::{Message, ToolCall};
use super::stops::Stops;
use crate::error::Error;
use crate::stats::{FinishReason, Statistics};
use crate::stream::{BlockingTokens, Canceller, PromptProgress, StreamItem, Token, TokenStream};

/// Why a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ChatFinish {
    /// The model ended it, or one of the request's strings did.
    Stop,
    /// The request's limit or the end of the context cut it off.
    Length,
    /// The model waits for the results of its calls.
    ToolCalls,
    /// Its reader cancelled it.
    Cancelled,
}

/// The model's next message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ChatAnswer {
    /// The message, to be appended to the conversation.
    pub message: Message,
    /// Why it ended.
    pub finish: ChatFinish,
    /// Statistics of the generation.
    pub statistics: Statistics,
}

/// What a stream of a message yields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ChatItem {
    /// A part of a long conversation has been read, and more of it follows.
    Prompt(PromptProgress),
    /// A token, if the request asked for log-probabilities. What it adds to the message comes as items of its own,
    /// which may begin later.
    Token(Token),
    /// More of what the model thinks.
    Reasoning(String),
    /// More of what the model says.
    Text(String),
    /// A call of a tool.
    Call(ToolCall),
    /// The end; always the last item of a successful stream.
    Done(Box<ChatAnswer>),
}

/// Turns tokens into parts of a message.
#[derive(Debug)]
pub(crate) struct Translation {
    reader: AnswerReader,
    /// The strings that end the text.
    stops: Stops,
    /// Whether one was found: then nothing more is passed on.
    is_stopped: bool,
    /// How many bytes of text and how many calls were passed on.
    shown: usize,
    called: usize,
    ready: VecDeque<ChatItem>,
}

impl Translation {
    /// `stop` has the strings before which the text ends.
    pub fn new(reader: AnswerReader, stop: Vec<String>) -> Self {
        Self {
            reader,
            stops: Stops::new(stop, None),
            is_stopped: false,
            shown: 0,
            called: 0,
            ready: VecDeque::new(),
        }
    }

    fn take(&mut self, item: StreamItem) {
        let parts = match item {
            StreamItem::Prompt(progress) => {
                self.ready.push_back(ChatItem::Prompt(progress));
                return;
            }
            StreamItem::Token(token) => {
                let parts = self.reader.push(&token.text);
                if token.log_probabilities.is_some() {
                    self.ready.push_back(ChatItem::Token(token));
                }
                parts
            }
            StreamItem::Rest(text) => self.reader.push(&text),
            StreamItem::Done(statistics) => {
                let parts = self.reader.finish();
                self.pass_on(parts);
                self.pass_on_held();
                let mut message = self.reader.message().clone();
                message.content.truncate(self.shown);
                message.tool_calls.truncate(self.called);
                let finish = match statistics.finish_reason {
                    FinishReason::Cancelled => ChatFinish::Cancelled,
                    FinishReason::MaxTokens | FinishReason::ContextFull => ChatFinish::Length,
                    _ if message.tool_calls.is_empty() => ChatFinish::Stop,
                    _ => ChatFinish::ToolCalls,
                };
                let answer = ChatAnswer {
                    message,
                    finish,
                    statistics: *statistics,
                };
                self.ready.push_back(ChatItem::Done(Box::new(answer)));
                return;
            }
        };
        self.pass_on(parts);
    }

    fn pass_on(&mut self, parts: Vec<Part>) {
        for part in parts {
            if self.is_stopped {
                return;
            }
            let item = match part {
                Part::Text(text) => {
                    let (text, found) = self.stops.push(text);
                    self.show(text);
                    self.is_stopped = found;
                    continue;
                }
                Part::Reasoning(text) => ChatItem::Reasoning(text),
                Part::Call(call) => {
                    self.called += 1;
                    ChatItem::Call(call)
                }
            };
            self.pass_on_held();
            self.ready.push_back(item);
        }
    }

    /// Passes on what might have become a string that ends the text, and did not.
    fn pass_on_held(&mut self) {
        if !self.is_stopped {
            let (text, _) = self.stops.finish(String::new());
            self.show(text);
        }
    }

    fn show(&mut self, text: String) {
        self.shown += text.len();
        if !text.is_empty() {
            self.ready.push_back(ChatItem::Text(text));
        }
    }
}

/// The model's next message as a [`Stream`]; [`ChatStream::blocking`] turns it into an iterator for threads that may
/// wait. Dropping it cancels the generation at the next token.
#[derive(Debug)]
pub struct ChatStream {
    tokens: TokenStream,
    translation: Translation,
}

impl ChatStream {
    pub(crate) fn new(tokens: TokenStream, reader: AnswerReader, stop: Vec<String>) -> Self {
        Self {
            tokens,
            translation: Translation::new(reader, stop),
        }
    }

    /// Ends the message at the next token: see [`TokenStream::cancel`].
    pub fn cancel(&self) {
        self.tokens.cancel();
    }

    /// What does the same from elsewhere, while a thread waits for the next item.
    pub fn canceller(&self) -> Canceller {
        self.tokens.canceller()
    }

    /// The same items as an iterator that waits for each.
    pub fn blocking(self) -> ChatItems {
        ChatItems {
            tokens: self.tokens.blocking(),
            translation: self.translation,
        }
    }

    /// Waits for the end of the message.
    ///
    /// # Errors
    /// The first error of the stream.
    pub fn finish(self) -> Result<ChatAnswer, Error> {
        for item in self.blocking() {
            if let ChatItem::Done(answer) = item? {
                return Ok(*answer);
            }
        }
        Err(Error::Stopped)
    }
}

impl Stream for ChatStream {
    type Item = Result<ChatItem, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(item) = self.translation.ready.pop_front() {
                return Poll::Ready(Some(Ok(item)));
            }
            match Pin::new(&mut self.tokens).poll_next(cx) {
                Poll::Ready(Some(Ok(item))) => self.translation.take(item),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// The model's next message as an iterator that waits for each part. Dropping it cancels the generation at the next
/// token.
#[derive(Debug)]
pub struct ChatItems {
    tokens: BlockingTokens,
    translation: Translation,
}

impl ChatItems {
    /// Ends the message at the next token: see [`TokenStream::cancel`].
    pub fn cancel(&self) {
        self.tokens.cancel();
    }
}

impl Iterator for ChatItems {
    type Item = Result<ChatItem, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.translation.ready.pop_front() {
                return Some(Ok(item));
            }
            match self.tokens.next()? {
                Ok(item) => self.translation.take(item),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
