//! Calls whose arguments stand between tags, a pair of them for each argument.

use serde_json::{Map, Value};

use super::tools::OfferedTools;
use crate::chat::message::ToolCall;

/// How one argument is written.
struct Argument {
    /// What comes before its name.
    opening: &'static str,
    /// What comes between its name and its value: one of these after the other, perhaps with white space in between.
    middle: &'static [&'static str],
    closing: &'static str,
    /// Whether the value has a line of its own.
    own_line: bool,
}

/// `<parameter=NAME>VALUE</parameter>`.
fn parameter(own_line: bool) -> Argument {
    Argument {
        opening: "<parameter=",
        middle: &[">"],
        closing: "</parameter>",
        own_line,
    }
}

/// `<arg_key>NAME</arg_key>`, a new line, and `<arg_value>VALUE</arg_value>`.
const KEY_AND_VALUE: Argument = Argument {
    opening: "<arg_key>",
    middle: &["</arg_key>", "<arg_value>"],
    closing: "</arg_value>",
    own_line: false,
};

/// What a call as a function begins and ends with.
pub(crate) const FUNCTION: &str = "<function=";
pub(crate) const FUNCTION_END: &str = "</function>";

/// A call as `<function=NAME>`, parameters, `</function>`. `own_line` says that each value has a line of its own.
pub(super) fn function(text: &str, tools: &OfferedTools, own_line: bool) -> Option<ToolCall> {
    let (name, rest) = text.strip_prefix(FUNCTION)?.split_once('>')?;
    arguments(name, rest, (&parameter(own_line), FUNCTION_END), tools)
}

/// A call as its name, keys and values. A name alone is a call only if there is such a tool: it may be any word.
pub(super) fn keys_and_values(text: &str, tools: &OfferedTools) -> Option<ToolCall> {
    let end = text.find(KEY_AND_VALUE.opening).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if rest.is_empty() && !tools.have(name.trim()) {
        return None;
    }
    arguments(name, rest, (&KEY_AND_VALUE, ""), tools)
}

/// The call of the tool `name` with the arguments in `text`, which end with `end`.
fn arguments(
    name: &str,
    text: &str,
    (argument, end): (&Argument, &str),
    tools: &OfferedTools,
) -> Option<ToolCall> {
    let name = name.trim();
    if name.is_empty() || name.contains(char::is_whitespace) {
        return None;
    }
    let mut arguments = Map::new();
    let mut text = text.trim();
    while text != end {
        let (key, value, rest) = argument.read(text, end)?;
        arguments.insert(key.to_owned(), tools.argument(name, key, value));
        text = rest;
    }
    Some(ToolCall {
        id: String::new(),
        name: name.to_owned(),
        arguments: Value::Object(arguments),
    })
}

impl Argument {
    /// The name and the value of the argument at the front of `text`, and what follows.
    fn read<'a>(&self, text: &'a str, end: &str) -> Option<(&'a str, &'a str, &'a str)> {
        let (first, others) = self.middle.split_first()?;
        let (key, mut rest) = text.strip_prefix(self.opening)?.split_once(first)?;
        for mark in others {
            rest = rest.trim_start().strip_prefix(mark)?;
        }
        // A value may be any text, also one with tags: it ends where the next argument or the end follows.
        let mut ends = rest.match_indices(self.closing).filter_map(|(at, mark)| {
            let after = rest[at + mark.len()..].trim_start();
            (after == end || after.starts_with(self.opening)).then_some((at, after))
        });
        let (at, after) = ends.next()?;
        let mut value = &rest[..at];
        if self.own_line {
            value = value.strip_prefix('\n').unwrap_or(value);
            value = value.strip_suffix('\n').unwrap_or(value);
        }
        Some((key.trim(), value, after))
    }
}
