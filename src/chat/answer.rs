//! Taking an answer apart while it comes: what the model thinks, what it says, and which tools it wants called.

mod channels;
mod reasoning;
mod tags;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::calls::{CallFormat, OfferedTools};
use super::message::{Message, Role, ToolCall};
use channels::{ChannelReader, MARKS};
use reasoning::{ReasoningTags, response_tags};
use tags::TagReader;

pub(crate) use channels::{for_template, has_channels};

/// Control tokens that mean something within an answer; they are shown to the reader of answers by their names.
pub(crate) fn marks(template: &str) -> Vec<&'static str> {
    match has_channels(template) {
        true => MARKS.to_vec(),
        false => {
            let reasoning = ReasoningTags::of(template).marks();
            let calls = CallFormat::of(template).marks();
            let response = response_tags(template);
            [
                &reasoning[..],
                calls,
                response.as_ref().map_or(&[], |tags| &tags[..]),
            ]
            .concat()
        }
    }
}

/// Whether a prompt leaves the model of this `template` in the middle of its reasoning.
pub(crate) fn is_inside_reasoning(template: &str, prompt: &str) -> bool {
    ReasoningTags::of(template).are_open_in(prompt)
}

/// Leaves out what the model has said up to the end of its reasoning, as many templates do.
pub(crate) fn leave_out_reasoning(template: &str, message: &mut Message) {
    let closing = ReasoningTags::of(template).closing;
    if message.role == Role::Assistant
        && let Some((_, text)) = message.content.rsplit_once(closing)
    {
        message.content = text.trim_start_matches('\n').to_owned();
    }
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// More of the reasoning.
    Reasoning(String),
    /// More of the text.
    Text(String),
    /// A whole call.
    Call(ToolCall),
}

/// Reads an answer.
#[derive(Clone, Debug)]
pub(crate) struct AnswerReader(Format);

/// In the format of its model.
#[derive(Clone, Debug)]
enum Format {
    Tags(TagReader),
    Channels(ChannelReader),
}

impl AnswerReader {
    /// For the model of this `template`, which may call these `tools`. `inside_reasoning` says that the prompt ends
    /// within the reasoning, `calls_before` how many calls the conversation has so far.
    pub fn new(
        template: &str,
        tools: Vec<Value>,
        inside_reasoning: bool,
        calls_before: usize,
    ) -> Self {
        let answer = Gathered::new(calls_before);
        if has_channels(template) {
            return Self(Format::Channels(ChannelReader::new(
                !tools.is_empty(),
                answer,
            )));
        }
        let tools = OfferedTools::new(tools);
        let reader = TagReader::new(template, tools, inside_reasoning, answer);
        Self(Format::Tags(reader))
    }

    /// Takes more of the answer; returns what has become clear.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        match &mut self.0 {
            Format::Tags(reader) => {
                reader.held.push_str(text);
                while reader.step(&mut parts) {}
            }
            Format::Channels(reader) => {
                reader.held.push_str(text);
                while reader.step(&mut parts) {}
            }
        }
        parts
    }

    /// Ends the answer: returns the rest of its parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let (parts, answer) = match &mut self.0 {
            Format::Tags(reader) => (reader.finish(), &mut reader.answer),
            Format::Channels(reader) => (reader.finish(), &mut reader.answer),
        };
        answer.finish();
        parts
    }

    /// All of it.
    pub fn message(&self) -> &Message {
        match &self.0 {
            Format::Tags(reader) => &reader.answer.message,
            Format::Channels(reader) => &reader.answer.message,
        }
    }
}

/// An answer as far as it is known.
#[derive(Clone, Debug)]
struct Gathered {
    message: Message,
    /// Number of the next call, for those without an id.
    next_call: usize,
}

impl Gathered {
    fn new(calls_before: usize) -> Self {
        Self {
            message: Message::new(Role::Assistant, ""),
            next_call: calls_before,
        }
    }

    fn has_text(&self) -> bool {
        !self.message.content.is_empty()
    }

    fn has_reasoning_or_calls(&self) -> bool {
        self.message.reasoning.is_some() || !self.message.tool_calls.is_empty()
    }

    fn reason(&mut self, text: String, parts: &mut Vec<Part>) {
        let reasoning = self.message.reasoning.get_or_insert_default();
        let text = match reasoning.is_empty() {
            true => text.trim_start().to_owned(),
            false => text,
        };
        reasoning.push_str(&text);
        if !text.is_empty() {
            parts.push(Part::Reasoning(text));
        }
    }

    fn say(&mut self, text: String, parts: &mut Vec<Part>) {
        if !text.is_empty() {
            self.message.content.push_str(&text);
            parts.push(Part::Text(text));
        }
    }

    fn call(&mut self, calls: Vec<ToolCall>, parts: &mut Vec<Part>) {
        for mut call in calls {
            if call.id.is_empty() {
                // Nine letters and digits, which is what Mistral's templates insist on.
                call.id = format!("call{:05}", self.next_call % 100_000);
            }
            self.next_call += 1;
            self.message.tool_calls.push(call.clone());
            parts.push(Part::Call(call));
        }
    }

    fn finish(&mut self) {
        if let Some(reasoning) = &mut self.message.reasoning {
            reasoning.truncate(reasoning.trim_end().len());
        }
        self.message
            .reasoning
            .take_if(|reasoning| reasoning.is_empty());
    }
}

/// Takes `held` up to the first of `marks`, which is removed and returned as well, or as far as it can be no part of
/// one.
fn up_to(held: &mut String, marks: &[&'static str]) -> (String, Option<&'static str>) {
    let places = marks
        .iter()
        .filter_map(|mark| Some((held.find(mark)?, *mark)));
    if let Some((at, mark)) = places.min() {
        let rest = held.split_off(at + mark.len());
        let mut before = std::mem::replace(held, rest);
        before.truncate(at);
        return (before, Some(mark));
    }
    let mut tails = held.char_indices().map(|(at, _)| at);
    let begins = |tail: &str| marks.iter().any(|mark| mark.starts_with(tail));
    let kept = tails.find(|&at| begins(&held[at..]));
    let rest = held.split_off(kept.unwrap_or(held.len()));
    (std::mem::replace(held, rest), None)
}
