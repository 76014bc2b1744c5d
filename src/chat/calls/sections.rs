//! Sections of calls, in which each call has marks of its own: DeepSeek's and Kimi's.

use crate::chat::message::ToolCall;

/// The marks of a call: before it, between its name and its arguments, and after it.
type Marks = [&'static str; 3];

const DEEPSEEK: Marks = [
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
];
const KIMI: Marks = [
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
];

/// Calls of DeepSeek V3.1, `NAME` and `{…}`; or of V3 and R1, `function` and the name with a block of JSON.
pub(super) fn deepseek(text: &str) -> Option<Vec<ToolCall>> {
    const BLOCK: &str = "```";
    calls(text, DEEPSEEK, |first, second| {
        let block = second.trim().strip_suffix(BLOCK);
        let (name, arguments) = match block.and_then(|block| block.split_once("```json")) {
            Some(named) => named,
            None => (first, second),
        };
        call("", name, arguments)
    })
}

/// Calls of Kimi K2: `functions.NAME:NUMBER`, which is also the id, and `{…}`.
pub(super) fn kimi(text: &str) -> Option<Vec<ToolCall>> {
    calls(text, KIMI, |id, arguments| {
        let (name, _) = id.rsplit_once(':')?;
        let name = name.trim();
        let name = name.strip_prefix("functions.").unwrap_or(name);
        call(id.trim(), name, arguments)
    })
}

fn call(id: &str, name: &str, arguments: &str) -> Option<ToolCall> {
    let name = name.trim();
    (!name.is_empty()).then_some(ToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: serde_json::from_str(arguments).ok()?,
    })
}

/// All the calls of a section: `one` makes them from what stands before and after the mark in the middle.
fn calls(
    text: &str,
    [begin, middle, end]: Marks,
    one: impl Fn(&str, &str) -> Option<ToolCall>,
) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut text = text.trim();
    while !text.is_empty() {
        let (written, rest) = text.strip_prefix(begin)?.split_once(end)?;
        let (first, second) = written.split_once(middle)?;
        calls.push(one(first, second)?);
        text = rest.trim_start();
    }
    (!calls.is_empty()).then_some(calls)
}
