//! Taking an answer apart while it comes: what the model thinks, what it says, and which tools it wants called.

use super::calls::CallFormat;
use super::message::{Message, Role, ToolCall};

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";

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
pub(crate) struct AnswerReader {
    state: State,
    /// Of calls, if tools were offered.
    format: Option<CallFormat>,
    /// Text whose meaning is not known yet.
    held: String,
    message: Message,
    /// Number of the next call, for those without an id.
    next_call: usize,
}

impl AnswerReader {
    /// `inside_reasoning` says that the prompt ends within the reasoning, `calls_before` how many calls the
    /// conversation has so far.
    pub fn new(format: Option<CallFormat>, inside_reasoning: bool, calls_before: usize) -> Self {
        Self {
            next_call: calls_before,
            state: match inside_reasoning {
                true => State::Reasoning,
                false => State::Begin { reasoning: true },
            },
            format,
            held: String::new(),
            message: Message::new(Role::Assistant, ""),
        }
    }

    /// Takes more of the answer; returns what has become clear.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Ends the answer: returns the rest of its parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Begin { .. } => {}
            State::Reasoning => self.reason(rest, &mut parts),
            State::Text => self.say(rest, &mut parts),
            State::Calls => self.call(&rest, true, &mut parts),
            State::BareCalls => self.call(&rest, false, &mut parts),
        }
        if let Some(reasoning) = &mut self.message.reasoning {
            reasoning.truncate(reasoning.trim_end().len());
        }
        self.message
            .reasoning
            .take_if(|reasoning| reasoning.is_empty());
        parts
    }

    /// All of it.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Reads on as far as the held text allows; whether it may go on from there.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Begin { reasoning } => self.begin(reasoning),
            State::Reasoning => {
                let (before, found) = self.up_to(THINK_END);
                self.reason(before, parts);
                if found {
                    self.state = State::Begin { reasoning: false };
                }
                found
            }
            State::Text => {
                let Some(opening) = self.format.and_then(CallFormat::opening) else {
                    let text = std::mem::take(&mut self.held);
                    self.say(text, parts);
                    return false;
                };
                let (before, found) = self.up_to(opening);
                self.say(before, parts);
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
                self.call(&call[..at], true, parts);
                self.state = State::Begin { reasoning: false };
                true
            }
            State::BareCalls => false,
        }
    }

    /// Decides what begins, when that is clear.
    fn begin(&mut self, reasoning: bool) -> bool {
        let start = self.held.trim_start();
        if start.is_empty() || (reasoning && start.len() < THINK.len() && THINK.starts_with(start))
        {
            return false;
        }
        if let Some(rest) = start.strip_prefix(THINK).filter(|_| reasoning) {
            self.held = rest.trim_start().to_owned();
            self.state = State::Reasoning;
            return true;
        }
        // White space between reasoning, calls and text means nothing; at the begin of an answer, it is text.
        let is_first = self.message.reasoning.is_none() && self.message.tool_calls.is_empty();
        if !is_first {
            self.held = start.to_owned();
        }
        let first = self.held.trim_start().chars().next();
        let bare = first
            .zip(self.format)
            .is_some_and(|(c, format)| format.may_begin_bare(c));
        self.state = match bare && self.message.content.is_empty() {
            true => State::BareCalls,
            false => State::Text,
        };
        true
    }

    /// Takes the held text up to `mark`, which is removed, or as far as it can be no part of one.
    fn up_to(&mut self, mark: &str) -> (String, bool) {
        if let Some(at) = self.held.find(mark) {
            let rest = self.held.split_off(at + mark.len());
            let mut before = std::mem::replace(&mut self.held, rest);
            before.truncate(at);
            return (before, true);
        }
        let mut tails = self.held.char_indices().map(|(at, _)| at);
        let kept = tails.find(|&at| mark.starts_with(&self.held[at..]));
        let rest = self.held.split_off(kept.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, rest), false)
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

    /// What stood where calls stand; `opened` by what begins them. If it is something else, it is text.
    fn call(&mut self, text: &str, opened: bool, parts: &mut Vec<Part>) {
        let format = self.format.unwrap_or(CallFormat::Json);
        let Some(calls) = format.parse(text) else {
            let opening = format.opening().filter(|_| opened).unwrap_or_default();
            let closing = format.closing().filter(|_| opened).unwrap_or_default();
            return self.say(format!("{opening}{text}{closing}"), parts);
        };
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(format: Option<CallFormat>, inside: bool, pieces: &[&str]) -> Message {
        let mut reader = AnswerReader::new(format, inside, 3);
        let mut shown = Message::new(Role::Assistant, "");
        let mut parts: Vec<_> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
        parts.extend(reader.finish());
        for part in parts {
            match part {
                Part::Text(text) => shown.content += &text,
                Part::Reasoning(text) => *shown.reasoning.get_or_insert_default() += &text,
                Part::Call(call) => shown.tool_calls.push(call),
            }
        }
        let message = reader.message().clone();
        assert_eq!(
            (&shown.content, &shown.tool_calls),
            (&message.content, &message.tool_calls)
        );
        message
    }

    #[test]
    fn reasoning_is_split_off() {
        for (inside, answer) in [
            (false, "<think>\nhm, 1 < 2\n</think>\n\nYes."),
            (false, "\n<think>hm, 1 < 2</think>Yes."),
            (true, "hm, 1 < 2\n</think>\n\nYes."),
        ] {
            let message = read(None, inside, &[answer]);
            assert_eq!(message.reasoning.as_deref(), Some("hm, 1 < 2"), "{answer}");
            assert_eq!(message.content, "Yes.", "{answer}");
        }
        let cut = read(None, true, &["never done"]);
        assert_eq!(
            (cut.reasoning.as_deref(), &*cut.content),
            (Some("never done"), "")
        );
        let quoted = read(None, false, &["The tag <think> is text here."]);
        assert_eq!(
            (quoted.reasoning, &*quoted.content),
            (None, "The tag <think> is text here.")
        );
        assert_eq!(read(None, false, &["  two spaces"]).content, "  two spaces");
    }

    #[test]
    fn calls_are_split_off_and_numbered() {
        let call = "{\"name\": \"add\", \"arguments\": {\"a\": 1}}";
        let hermes = format!(
            "Let me see.\n<tool_call>\n{call}\n</tool_call>\n<tool_call>{call}</tool_call>"
        );
        let message = read(Some(CallFormat::Hermes), false, &[&hermes]);
        assert_eq!(message.content, "Let me see.\n");
        assert_eq!(message.tool_calls.len(), 2);
        assert_eq!(message.tool_calls[1].arguments, json!({"a": 1}));
        assert_ne!(message.tool_calls[0].id, message.tool_calls[1].id);
        assert_eq!(message.tool_calls[0].id.len(), 9);

        let bare = read(
            Some(CallFormat::Llama),
            false,
            &["{\"name\": \"add\", \"parameters\": {}}"],
        );
        assert_eq!((bare.tool_calls.len(), &*bare.content), (1, ""));
        let text = read(Some(CallFormat::Llama), false, &["{\"sum\": 3}"]);
        assert_eq!((text.tool_calls.len(), &*text.content), (0, "{\"sum\": 3}"));
        let broken = read(
            Some(CallFormat::Hermes),
            false,
            &["<tool_call>no</tool_call> end"],
        );
        assert_eq!(broken.content, "<tool_call>no</tool_call> end");
        let none_offered = read(None, false, &[&hermes]);
        assert_eq!(none_offered.content, hermes);
    }

    proptest! {
        /// However an answer is cut into pieces, its parts are the same.
        #[test]
        fn pieces_make_no_difference(cuts in prop::collection::vec(0usize..120, 0..12)) {
            let answer = "<think>a < b\n</think>\n\nText <too é\n<tool_call>{\"name\": \"f\"}</tool_call>\nmore";
            let mut places: Vec<_> = cuts.into_iter().filter(|&at| answer.is_char_boundary(at.min(answer.len()))).map(|at| at.min(answer.len())).collect();
            places.extend([0, answer.len()]);
            places.sort_unstable();
            let pieces: Vec<_> = places.windows(2).map(|w| &answer[w[0]..w[1]]).collect();
            let format = Some(CallFormat::Hermes);
            prop_assert_eq!(read(format, false, &pieces), read(format, false, &[answer]));
        }
    }
}
