//! Answers as most models write them: the reasoning between tags, then the text, and calls of tools between other marks.

use super::reasoning::ReasoningTags;
use super::{Gathered, Part, up_to};
use crate::chat::calls::{CallFormat, OfferedTools};

/// What is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far: reasoning, text or bare calls may begin.
    Begin {
        reasoning: bool,
    },
    Reasoning,
    Text,
    /// Behind the opening of calls.
    Calls,
    /// An answer that may be nothing but calls.
    BareCalls,
}

/// Reads an answer.
#[derive(Debug)]
pub(super) struct TagReader {
    state: State,
    /// Of calls, if tools were offered.
    format: Option<CallFormat>,
    tools: OfferedTools,
    tags: ReasoningTags,
    /// Text whose meaning is not known yet.
    pub held: String,
    pub answer: Gathered,
}

impl TagReader {
    /// `format` is how calls of the `tools` are written, `inside_reasoning` says that the prompt ends within the
    /// reasoning.
    pub fn new(
        (format, tools): (CallFormat, OfferedTools),
        tags: ReasoningTags,
        inside_reasoning: bool,
        answer: Gathered,
    ) -> Self {
        Self {
            state: match inside_reasoning {
                true => State::Reasoning,
                false => State::Begin { reasoning: true },
            },
            format: (!tools.is_empty()).then_some(format),
            tools,
            tags,
            held: String::new(),
            answer,
        }
    }

    /// Ends the answer: returns the rest of its parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match self.state {
            // It only looked like the begin of something else.
            State::Begin { .. } if !rest.trim().is_empty() => self.answer.say(rest, &mut parts),
            State::Begin { .. } => {}
            State::Reasoning => self.answer.reason(rest, &mut parts),
            State::Text => self.answer.say(rest, &mut parts),
            State::Calls => self.call(&rest, (self.opening(), ""), &mut parts),
            State::BareCalls => self.call(&rest, ("", ""), &mut parts),
        }
        parts
    }

    /// Reads on as far as the held text allows; whether it may go on from there.
    pub fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Begin { reasoning } => self.begin(reasoning),
            State::Reasoning => {
                let (before, found) = up_to(&mut self.held, self.tags.closing);
                self.answer.reason(before, parts);
                if found {
                    self.state = State::Begin { reasoning: false };
                }
                found
            }
            State::Text => {
                let Some(opening) = self.format.and_then(CallFormat::opening) else {
                    let text = std::mem::take(&mut self.held);
                    self.answer.say(text, parts);
                    return false;
                };
                let (before, found) = up_to(&mut self.held, opening);
                self.answer.say(before, parts);
                if found {
                    self.state = State::Calls;
                }
                found
            }
            State::Calls => {
                let closing = self.format.and_then(CallFormat::closing);
                let Some((closing, at)) = closing.and_then(|c| Some((c, self.held.find(c)?)))
                else {
                    return false;
                };
                let rest = self.held.split_off(at + closing.len());
                let call = std::mem::replace(&mut self.held, rest);
                self.call(&call[..at], (self.opening(), closing), parts);
                self.state = State::Begin { reasoning: false };
                true
            }
            State::BareCalls => false,
        }
    }

    /// Decides what begins, when that is clear.
    fn begin(&mut self, reasoning: bool) -> bool {
        let start = self.held.trim_start();
        let opening = self.tags.opening;
        let may_open = reasoning && start.len() < opening.len() && opening.starts_with(start);
        if start.is_empty() || may_open {
            return false;
        }
        if let Some(rest) = start.strip_prefix(opening).filter(|_| reasoning) {
            self.held = rest.trim_start().to_owned();
            self.state = State::Reasoning;
            return true;
        }
        // White space between reasoning, calls and text means nothing; at the begin of an answer, it is text.
        let is_first = !self.answer.has_reasoning_or_calls();
        if !is_first {
            self.held = start.to_owned();
        }
        let first = self.held.trim_start().chars().next();
        let bare = first
            .zip(self.format)
            .is_some_and(|(c, format)| format.may_begin_bare(c));
        self.state = match bare && !self.answer.has_text() {
            true => State::BareCalls,
            false => State::Text,
        };
        true
    }

    /// What calls begin with.
    fn opening(&self) -> &'static str {
        self.format
            .and_then(CallFormat::opening)
            .unwrap_or_default()
    }

    /// What stood where calls stand, between such marks. If it is something else, it is text.
    fn call(&mut self, text: &str, (before, after): (&str, &str), parts: &mut Vec<Part>) {
        let closed = !after.is_empty();
        let format = self.format.unwrap_or(CallFormat::Json);
        match format.parse(text, &self.tools, closed) {
            Some(calls) => self.answer.call(calls, parts),
            None => self.answer.say(format!("{before}{text}{after}"), parts),
        }
    }
}
