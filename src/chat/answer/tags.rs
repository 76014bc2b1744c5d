//! Answers as most models write them: the reasoning between tags, then the text, and calls of tools between other
//! marks.

use super::reasoning::{ReasoningTags, response_tags};
use super::{Gathered, Part, up_to};
use crate::chat::calls::{CallFormat, FUNCTION, FUNCTION_END, OfferedTools, may_be_bare};
use crate::chat::message::ToolCall;

/// What is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far: text or calls may begin, and reasoning at the begin of the answer.
    Begin {
        first: bool,
    },
    Reasoning,
    Text,
    /// Behind the opening of calls, which may stand in reasoning that was never closed.
    Calls {
        in_reasoning: bool,
    },
    /// A function without the opening that should come before it.
    Function,
    /// Behind it: the closing of calls may follow.
    AfterFunction,
    /// An answer that may be nothing but calls.
    BareCalls,
}

/// Reads an answer.
#[derive(Clone, Debug)]
pub(super) struct TagReader {
    state: State,
    /// Of calls, if tools were offered.
    format: Option<CallFormat>,
    tools: OfferedTools,
    /// Whether calls are functions, before which models forget the opening.
    has_functions: bool,
    tags: ReasoningTags,
    /// What may stand around the text.
    response: Option<[&'static str; 2]>,
    /// Whether its opening has been read, and its closing has not.
    in_response: bool,
    /// What was read since the first call that stands in reasoning, with the calls that it is if the reasoning is never
    /// closed; if it is, they were only thoughts.
    pending: Vec<(String, Vec<ToolCall>)>,
    /// Text whose meaning is not known yet.
    pub held: String,
    pub answer: Gathered,
}

impl TagReader {
    /// For the model of this `template`; `inside_reasoning` says that the prompt ends within the reasoning.
    pub fn new(
        template: &str,
        tools: OfferedTools,
        inside_reasoning: bool,
        answer: Gathered,
    ) -> Self {
        let format = (!tools.is_empty()).then(|| CallFormat::of(template));
        Self {
            state: match inside_reasoning {
                true => State::Reasoning,
                false => State::Begin { first: true },
            },
            format,
            tools,
            has_functions: format == Some(CallFormat::Hermes) && template.contains(FUNCTION),
            tags: ReasoningTags::of(template),
            response: response_tags(template),
            in_response: false,
            pending: Vec::new(),
            held: String::new(),
            answer,
        }
    }

    /// Ends the answer: returns the rest of its parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let rest = std::mem::take(&mut self.held);
        let pending = std::mem::take(&mut self.pending);
        for (text, calls) in pending {
            match calls.is_empty() {
                true => self.answer.reason(text, &mut parts),
                false => self.answer.call(calls, &mut parts),
            }
        }
        match self.state {
            // It only looked like the begin of something else.
            State::Begin { .. } | State::AfterFunction if !rest.trim().is_empty() => {
                self.answer.say(rest, &mut parts);
            }
            State::Begin { .. } | State::AfterFunction => {}
            State::Reasoning => self.answer.reason(rest, &mut parts),
            State::Text => self.answer.say(rest, &mut parts),
            State::Calls { .. } => {
                self.call(&rest, (self.opening(), ""), &mut parts);
            }
            State::Function | State::BareCalls => {
                self.call(&rest, ("", ""), &mut parts);
            }
        }
        parts
    }

    /// Reads on as far as the held text allows; whether it may go on from there.
    pub fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Begin { first } => self.begin(first),
            State::Reasoning => self.reasoning(parts),
            State::Text => self.text(parts),
            State::Calls { in_reasoning } => self.calls(in_reasoning, parts),
            State::Function => self.function(parts),
            State::AfterFunction => self.after_function(),
            State::BareCalls if may_be_bare(&self.held) => false,
            State::BareCalls => {
                self.state = State::Text;
                true
            }
        }
    }

    /// Decides what begins, when that is clear.
    fn begin(&mut self, first: bool) -> bool {
        let start = self.held.trim_start();
        let opening = Some(self.tags.opening).filter(|_| first);
        // A tag in an answer without reasoning is text; a control token is not.
        let response = self.response.map(|[opening, _]| opening);
        let response = response.filter(|mark| !first || mark.starts_with("<|"));
        let may_open = |mark: &str| start.len() < mark.len() && mark.starts_with(start);
        if start.is_empty() || opening.into_iter().chain(response).any(may_open) {
            return false;
        }
        if let Some(rest) = opening.and_then(|mark| start.strip_prefix(mark)) {
            self.held = rest.trim_start().to_owned();
            self.state = State::Reasoning;
            return true;
        }
        if let Some(rest) = response.and_then(|mark| start.strip_prefix(mark)) {
            self.held = rest.to_owned();
            self.in_response = true;
            self.state = State::Begin { first: false };
            return true;
        }
        let bare = start.chars().next().zip(self.format);
        let bare = bare.is_some_and(|(c, format)| format.may_begin_bare(c));
        // White space between reasoning, calls and text means nothing; at the begin of an answer, it is text.
        if !first {
            self.held = start.to_owned();
        }
        self.state = match bare && !self.answer.has_text() {
            true => State::BareCalls,
            false => State::Text,
        };
        true
    }

    fn reasoning(&mut self, parts: &mut Vec<Part>) -> bool {
        let closing = self.tags.closing;
        let opening = self.format.and_then(CallFormat::opening);
        let marks: Vec<_> = [closing].into_iter().chain(opening).collect();
        let (before, mark) = up_to(&mut self.held, &marks);
        self.think(before, parts);
        self.state = match mark {
            None => return false,
            Some(mark) if mark == closing => {
                for (text, _) in std::mem::take(&mut self.pending) {
                    self.answer.reason(text, parts);
                }
                State::Begin { first: false }
            }
            Some(_) => State::Calls { in_reasoning: true },
        };
        true
    }

    /// Reasoning, which waits behind a call.
    fn think(&mut self, text: String, parts: &mut Vec<Part>) {
        match self.pending.is_empty() {
            true => self.answer.reason(text, parts),
            false => self.pending.push((text, Vec::new())),
        }
    }

    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        let opening = self.format.and_then(CallFormat::opening);
        let function = self.has_functions.then_some(FUNCTION);
        let response = self.response.filter(|_| self.in_response);
        let response = response.map(|[_, closing]| closing);
        let marks: Vec<_> = opening
            .into_iter()
            .chain(function)
            .chain(response)
            .collect();
        let (before, mark) = up_to(&mut self.held, &marks);
        self.answer.say(before, parts);
        match mark {
            None => return false,
            Some(FUNCTION) => {
                self.held.insert_str(0, FUNCTION);
                self.state = State::Function;
            }
            mark if mark == opening => {
                self.state = State::Calls {
                    in_reasoning: false,
                };
            }
            // What stands behind the text.
            Some(_) => self.in_response = false,
        }
        true
    }

    fn calls(&mut self, in_reasoning: bool, parts: &mut Vec<Part>) -> bool {
        let closing = self.format.and_then(CallFormat::closing);
        // In reasoning, the opening may only be named.
        let named = match in_reasoning {
            true => [Some(self.tags.closing), closing.map(|_| self.opening())],
            false => [None, None],
        };
        let named = named.into_iter().flatten();
        let found = named.filter_map(|mark| Some((self.held.find(mark)?, mark)));
        let Some((at, mark)) = found.chain(self.end_of_call()).min() else {
            return false;
        };
        if Some(mark) != closing {
            self.think(self.opening().to_owned(), parts);
            self.state = State::Reasoning;
            return true;
        }
        let rest = self.held.split_off(at + mark.len());
        let call = std::mem::replace(&mut self.held, rest);
        if in_reasoning {
            self.call_in_reasoning(&call[..at], mark, parts);
            self.state = State::Reasoning;
            return true;
        }
        let is_call = self.call(&call[..at], (self.opening(), mark), parts);
        self.state = match is_call {
            true => State::Begin { first: false },
            false => State::Text,
        };
        true
    }

    /// Where the call in what is held ends, and with what mark. An argument may have that in it, unless another call
    /// begins after it: then this one was never finished, and ends with the first mark.
    fn end_of_call(&self) -> Option<(usize, &'static str)> {
        let format = self.format?;
        let closing = format.closing()?;
        let mut first = None;
        for (at, _) in self.held.match_indices(closing) {
            if !format.is_in_argument(&self.held[..at]) {
                return Some((at, closing));
            }
            let first = *first.get_or_insert(at);
            let after = &self.held[at + closing.len()..];
            let until_next = after.split(closing).next().unwrap_or_default();
            if until_next.contains(self.opening()) {
                return Some((first, closing));
            }
        }
        None
    }

    fn function(&mut self, parts: &mut Vec<Part>) -> bool {
        let name = self.held[FUNCTION.len()..].split_once('>');
        if name.is_some_and(|(name, _)| !self.tools.have(name.trim())) {
            self.held.drain(..FUNCTION.len());
            self.answer.say(FUNCTION.to_owned(), parts);
            self.state = State::Text;
            return true;
        }
        // A value may have the same mark in it.
        let ends = self.held.match_indices(FUNCTION_END);
        let read = |at: usize| CallFormat::Hermes.parse(&self.held[..at], &self.tools, true);
        let mut calls = ends.filter_map(|(at, end)| Some((at + end.len(), read(at + end.len())?)));
        let Some((end, calls)) = calls.next() else {
            return false;
        };
        self.held.drain(..end);
        self.answer.call(calls, parts);
        self.state = State::AfterFunction;
        true
    }

    fn after_function(&mut self) -> bool {
        let closing = self.format.and_then(CallFormat::closing);
        let (start, closing) = (self.held.trim_start(), closing.unwrap_or_default());
        if start.len() < closing.len() && closing.starts_with(start) {
            return false;
        }
        let rest = start.strip_prefix(closing).unwrap_or(start);
        self.held = rest.to_owned();
        self.state = State::Begin { first: false };
        true
    }

    /// What stands between marks of calls in reasoning: a call, if that is never closed.
    fn call_in_reasoning(&mut self, text: &str, closing: &str, parts: &mut Vec<Part>) {
        let all = format!("{}{text}{closing}", self.opening());
        let format = self.format.unwrap_or(CallFormat::Json);
        let calls = format.parse(text, &self.tools, true).unwrap_or_default();
        match !calls.is_empty() && calls.iter().all(|call| self.tools.have(&call.name)) {
            true => self.pending.push((all, calls)),
            false => self.think(all, parts),
        }
    }

    /// What calls begin with.
    fn opening(&self) -> &'static str {
        self.format
            .and_then(CallFormat::opening)
            .unwrap_or_default()
    }

    /// What stood where calls stand, between such marks. If it is something else, it is what it stands in. Without
    /// marks, only calls of tools that there are count: JSON may be an answer.
    fn call(&mut self, text: &str, (before, after): (&str, &str), parts: &mut Vec<Part>) -> bool {
        let closed = !after.is_empty();
        let format = self.format.unwrap_or(CallFormat::Json);
        let calls = format.parse(text, &self.tools, closed).filter(|calls| {
            // Reasoning may only show how a call would be written.
            let in_reasoning = self.state == State::Calls { in_reasoning: true };
            !before.is_empty() && !in_reasoning
                || calls.iter().all(|call| self.tools.have(&call.name))
        });
        let is_call = calls.is_some();
        let all = || format!("{before}{text}{after}");
        match (calls, self.state) {
            (Some(calls), _) => self.answer.call(calls, parts),
            (None, State::Calls { in_reasoning: true }) => self.answer.reason(all(), parts),
            (None, _) => self.answer.say(all(), parts),
        }
        is_call
    }
}
