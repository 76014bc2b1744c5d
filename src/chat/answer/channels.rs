//! Answers in channels, as gpt-oss writes them (OpenAI's Harmony format): messages with a header each, of which one is
//! the reasoning, one the text, and one each call of a tool.
//!
//! ```text
//! <|channel|>analysis<|message|>REASONING<|end|><|start|>assistant<|channel|>final<|message|>TEXT
//! <|channel|>analysis<|message|>REASONING<|end|><|start|>assistant to=functions.NAME<|channel|>commentary json…
//! ```
//!
//! and after that `<|message|>{…}`. The prompt has the first `<|start|>assistant`. The recipient may also stand after
//! the channel.

use serde_json::Value;

use super::{Gathered, Part, up_to};
use crate::chat::message::{Message, ToolCall};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
const RECIPIENT: &str = "to=";
const AUTHOR: &str = "assistant";
/// Bytes of a header, in which only the name of a tool can be long.
const LONGEST_HEADER: usize = 200;

/// Control tokens of which an answer is made.
pub(crate) const MARKS: [&str; 5] = [START, CHANNEL, "<|constrain|>", MESSAGE, END];

/// Whether a model with this template answers in channels.
pub(crate) fn has_channels(template: &str) -> bool {
    template.contains(CHANNEL) && template.contains(MESSAGE)
}

/// A message as templates with channels take it: what is said before a call is part of the reasoning, since one of the
/// two is allowed there.
pub(crate) fn for_template(message: &Message) -> Message {
    let mut message = message.clone();
    if let (Some(reasoning), false) = (&mut message.reasoning, message.tool_calls.is_empty())
        && !message.content.is_empty()
    {
        reasoning.push_str("\n\n");
        reasoning.push_str(&std::mem::take(&mut message.content));
    }
    message
}

/// What is being read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// A message's header.
    Header,
    Reasoning,
    Text,
    /// Arguments for the tool of this name.
    Call(String),
}

impl State {
    /// The message of this header.
    fn of(header: &str, offers_tools: bool) -> Self {
        let word_after = |mark: &str| {
            let (_, rest) = header.split_once(mark)?;
            rest.split(|c: char| c.is_whitespace() || c == '<').next()
        };
        match (word_after(RECIPIENT), word_after(CHANNEL)) {
            (Some(tool), _) if offers_tools => {
                Self::Call(tool.strip_prefix("functions.").unwrap_or(tool).to_owned())
            }
            (None, Some("analysis")) => Self::Reasoning,
            _ => Self::Text,
        }
    }
}

/// Reads an answer.
#[derive(Clone, Debug)]
pub(super) struct ChannelReader {
    state: State,
    /// Whether a message has begun.
    has_begun: bool,
    /// Whether the header stands in a text that has not ended: it may be a part of it.
    in_text: bool,
    offers_tools: bool,
    /// Text whose meaning is not known yet.
    pub held: String,
    pub answer: Gathered,
}

impl ChannelReader {
    pub fn new(offers_tools: bool, answer: Gathered) -> Self {
        Self {
            state: State::Header,
            has_begun: false,
            in_text: false,
            offers_tools,
            held: String::new(),
            answer,
        }
    }

    /// Ends the answer: returns the rest of its parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Header) {
            // A header that was cut off says nothing. A recipient alone may be text.
            State::Header if rest.trim().is_empty() => {}
            State::Header if !self.in_text && self.begins_channel(&rest) => {}
            State::Header | State::Text => self.answer.say(rest, &mut parts),
            State::Reasoning => self.answer.reason(rest, &mut parts),
            State::Call(tool) => self.call(tool, rest, &mut parts),
        }
        parts
    }

    /// Reads on as far as the held text allows; whether it may go on from there.
    pub fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match &self.state {
            State::Header => return self.header(parts),
            State::Call(tool) => {
                let Some(at) = self.held.find(END) else {
                    return false;
                };
                let tool = tool.clone();
                let rest = self.held.split_off(at + END.len());
                let mut arguments = std::mem::replace(&mut self.held, rest);
                arguments.truncate(at);
                self.call(tool, arguments, parts);
            }
            State::Reasoning | State::Text => {
                // Models forget the end before the next message. Texts may name channels.
                self.in_text = self.state == State::Text;
                let marks = match self.in_text {
                    true => &[END, START][..],
                    false => &[END, START, CHANNEL],
                };
                let (before, mark) = up_to(&mut self.held, marks);
                match self.in_text {
                    true => self.answer.say(before, parts),
                    false => self.answer.reason(before, parts),
                }
                match mark {
                    None => return false,
                    Some(END) => self.in_text = false,
                    Some(next) => self.held.insert_str(0, next),
                }
            }
        }
        self.state = State::Header;
        true
    }

    /// Reads a header to its end, or finds that there is none.
    fn header(&mut self, parts: &mut Vec<Part>) -> bool {
        if self.in_text && !self.may_be_header_in_text() {
            let mark = self.held.drain(..START.len()).collect();
            self.answer.say(mark, parts);
            self.state = State::Text;
            return true;
        }
        let begins = self.begins_header();
        self.state = match self.held.split_once(MESSAGE).filter(|_| begins) {
            Some((header, rest)) => {
                let state = State::of(header, self.offers_tools);
                self.held = rest.to_owned();
                state
            }
            None if begins || self.may_begin_header() => return false,
            None => State::Text,
        };
        self.has_begun = true;
        // Two messages of a kind are two paragraphs.
        let gap = || "\n\n".to_owned();
        match self.state {
            State::Text if self.answer.has_text() => self.answer.say(gap(), parts),
            State::Reasoning if self.answer.has_reasoning_or_calls() => {
                self.answer.reason(gap(), parts);
            }
            _ => {}
        }
        true
    }

    /// Whether what begins with `START` in a text may be the next message's header. Texts may name the mark, too.
    fn may_be_header_in_text(&self) -> bool {
        let Some(rest) = self.held.strip_prefix(START) else {
            return true;
        };
        let header = rest.split(MESSAGE).next().unwrap_or_default();
        (rest.starts_with(AUTHOR) || AUTHOR.starts_with(rest))
            && header.len() <= LONGEST_HEADER
            && !header.contains('\n')
    }

    /// What a header may begin with. The prompt has the author of the first message; before the others, models forget
    /// `START`.
    fn begins(&self) -> &'static [&'static str] {
        match self.has_begun {
            true => &[START, CHANNEL, RECIPIENT, AUTHOR],
            false => &[START, CHANNEL, RECIPIENT],
        }
    }

    /// Whether the held text begins as a header does.
    fn begins_header(&self) -> bool {
        begins_with(&self.held, self.begins())
    }

    /// Whether `header` has come as far as its channel, or may.
    fn begins_channel(&self, header: &str) -> bool {
        let header = header.trim_start();
        let author = header.strip_prefix(AUTHOR).filter(|_| self.has_begun);
        author.is_some_and(|rest| rest.trim().is_empty())
            || begins_with(author.unwrap_or(header), &[START, CHANNEL])
    }

    /// Whether it may with more text.
    fn may_begin_header(&self) -> bool {
        let text = self.held.trim_start();
        self.begins().iter().any(|mark| mark.starts_with(text))
    }

    /// A call of `tool`; arguments that are no JSON are text. A tool without parameters may get none.
    fn call(&mut self, tool: String, arguments: String, parts: &mut Vec<Part>) {
        let json = match arguments.trim() {
            "" => "{}",
            given => given,
        };
        match serde_json::from_str::<Value>(json) {
            Ok(arguments) => {
                let call = ToolCall {
                    id: String::new(),
                    name: tool,
                    arguments,
                };
                self.answer.call(vec![call], parts);
            }
            Err(_) => self.answer.say(arguments, parts),
        }
    }
}

fn begins_with(text: &str, marks: &[&str]) -> bool {
    let text = text.trim_start();
    marks.iter().any(|mark| text.starts_with(mark))
}
