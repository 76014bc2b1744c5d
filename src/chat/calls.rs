//! Calls of tools in what a model writes, in the ways of several families of models.

mod gemma;
mod python;
mod sections;
mod tags;
#[cfg(test)]
mod tests;
mod tools;

use serde_json::{Map, Value};

use super::message::ToolCall;

pub(crate) use tags::{FUNCTION, FUNCTION_END};
pub(crate) use tools::OfferedTools;

/// How a family of models writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFormat {
    /// `<tool_call>…</tool_call>`. Most write JSON in it: `{"name": …, "arguments": …}`. Qwen3-Coder and Qwen3.5 write
    /// `<function=…>` with parameters, GLM a name with keys and values.
    Hermes,
    /// `<seed:tool_call>…</seed:tool_call>` with `<function=…>` and parameters.
    Seed,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}]`, or `[TOOL_CALLS]name[ARGS]{…}`.
    Mistral,
    /// All calls between two marks of DeepSeek, each between two others.
    DeepSeek,
    /// All calls between two marks of Kimi, each between two others.
    Kimi,
    /// `<|tool_call|>` and a list of `{"name": …, "arguments": …}`: Granite 3.
    Granite,
    /// `<|tool_call>call:name{…}<tool_call|>`: Gemma 4.
    Gemma,
    /// `<|START_ACTION|>[{"tool_name": …, "parameters": …}]<|END_ACTION|>`: Command R7B.
    Command,
    /// `<|tool_call_start|>[name(key='…')]<|tool_call_end|>`: LFM2.
    Python,
    /// `{"name": …, "parameters": …}` as the whole answer, perhaps after `<|python_tag|>`.
    Llama,
    /// `{"name": …, "arguments": …}`, or a list of such objects, as the whole answer.
    Json,
}

/// The formats that have a mark before calls, in the order in which templates are searched for it: what several
/// families' templates have is last.
const MARKED: [CallFormat; 9] = [
    CallFormat::Mistral,
    CallFormat::DeepSeek,
    CallFormat::Kimi,
    CallFormat::Seed,
    CallFormat::Granite,
    CallFormat::Gemma,
    CallFormat::Command,
    CallFormat::Python,
    CallFormat::Hermes,
];

impl CallFormat {
    /// The format that a template asks its model for.
    pub fn of(template: &str) -> Self {
        let has = |format: &Self| format.opening().is_some_and(|mark| template.contains(mark));
        if let Some(format) = MARKED.into_iter().find(has) {
            format
        } else if template.contains("<|tool_list_start|>") {
            // LFM2's, which shows no call.
            Self::Python
        } else if template.contains("<|start_header_id|>") || template.contains("<|python_tag|>") {
            Self::Llama
        } else {
            Self::Json
        }
    }

    /// All that may be control tokens in calls: first [`Self::opening`], then [`Self::closing`] if there is one.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &[
                "<tool_call>",
                "</tool_call>",
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
            ],
            Self::Seed => &["<seed:tool_call>", "</seed:tool_call>"],
            Self::Mistral => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
            Self::DeepSeek => &[
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁calls▁end｜>",
                "<｜tool▁call▁begin｜>",
                "<｜tool▁sep｜>",
                "<｜tool▁call▁end｜>",
            ],
            Self::Kimi => &[
                "<|tool_calls_section_begin|>",
                "<|tool_calls_section_end|>",
                "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>",
                "<|tool_call_end|>",
            ],
            Self::Granite => &["<|tool_call|>"],
            Self::Gemma => &["<|tool_call>", "<tool_call|>", gemma::QUOTE],
            Self::Command => &["<|START_ACTION|>", "<|END_ACTION|>"],
            Self::Python => &["<|tool_call_start|>", "<|tool_call_end|>"],
            Self::Llama => &["<|python_tag|>"],
            Self::Json => &[],
        }
    }

    /// What calls begin with, wherever they stand in an answer.
    pub fn opening(self) -> Option<&'static str> {
        self.marks().first().copied()
    }

    /// What a call ends with, if not with the answer.
    pub fn closing(self) -> Option<&'static str> {
        match self {
            Self::Hermes
            | Self::Seed
            | Self::DeepSeek
            | Self::Kimi
            | Self::Gemma
            | Self::Command
            | Self::Python => self.marks().get(1).copied(),
            Self::Mistral | Self::Granite | Self::Llama | Self::Json => None,
        }
    }

    /// Whether `text`, which came after [`Self::opening`], ends within the text of an argument, where
    /// [`Self::closing`] means nothing.
    pub fn is_in_argument(self, text: &str) -> bool {
        let is_open = |opening: &str, closing: &str| {
            let last = text.rfind(opening);
            last.is_some_and(|at| !text[at..].contains(closing))
        };
        match self {
            Self::Hermes | Self::Seed if !text.trim_start().starts_with(['{', '[']) => {
                is_open("<parameter=", "</parameter>") || is_open("<arg_value>", "</arg_value>")
            }
            Self::Hermes | Self::Command => ends_in_string(text),
            _ => false,
        }
    }

    /// Whether an answer that begins with this character may be nothing but calls.
    pub fn may_begin_bare(self, first: char) -> bool {
        match self {
            Self::Llama => first == '{',
            Self::Json => first == '{' || first == '[',
            _ => false,
        }
    }

    /// The calls of `tools` in `text`, which came after [`Self::opening`] or was the whole answer; `None` if it is
    /// something else. `closed` says that [`Self::closing`] came, too: without it, something may be missing.
    pub fn parse(self, text: &str, tools: &OfferedTools, closed: bool) -> Option<Vec<ToolCall>> {
        let text = text.trim();
        match self {
            Self::Mistral if !text.starts_with(['[', '{']) => named(text),
            Self::DeepSeek => sections::deepseek(text),
            Self::Kimi => sections::kimi(text),
            Self::Seed => tags::function(text, tools, false).map(|call| vec![call]),
            Self::Gemma => gemma::call(text).map(|call| vec![call]),
            // Whoever asks it to gets JSON.
            Self::Python => json(text).or_else(|| json(&python::to_json(text)?)),
            Self::Hermes => json(text).or_else(|| {
                let function = tags::function(text, tools, true);
                // Only the mark after them tells that no more arguments come.
                let call =
                    function.or_else(|| tags::keys_and_values(text, tools).filter(|_| closed));
                call.map(|call| vec![call])
            }),
            Self::Mistral | Self::Granite | Self::Command | Self::Llama | Self::Json => json(text),
        }
    }
}

/// Whether `text`, the begin of an answer, may with more become nothing but calls in JSON.
pub(crate) fn may_be_bare(text: &str) -> bool {
    const FIELDS: [&str; 6] = ["name", "function", "arguments", "parameters", "id", "type"];
    let text = text.trim_start();
    let object = text.strip_prefix('[').unwrap_or(text).trim_start();
    let Some(fields) = object.strip_prefix('{').map(str::trim_start) else {
        return object.is_empty();
    };
    let Some(field) = fields.strip_prefix('"') else {
        return fields.is_empty();
    };
    match field.split_once('"') {
        Some((field, _)) => FIELDS.contains(&field),
        None => FIELDS.iter().any(|name| name.starts_with(field)),
    }
}

/// One call, or a list of calls.
fn json(text: &str) -> Option<Vec<ToolCall>> {
    let list = match serde_json::from_str(text).ok()? {
        Value::Array(list) => list,
        single => vec![single],
    };
    let calls: Option<Vec<_>> = list.into_iter().map(call).collect();
    calls.filter(|calls| !calls.is_empty())
}

/// Whether JSON that is cut off here is cut off in a string.
fn ends_in_string(json: &str) -> bool {
    let (mut inside, mut chars) = (false, json.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => inside = !inside,
            '\\' if inside => drop(chars.next()),
            _ => {}
        }
    }
    inside
}

/// A call as a JSON object.
fn call(value: Value) -> Option<ToolCall> {
    let Value::Object(mut fields) = value else {
        return None;
    };
    // Some write it as the interface of OpenAI does.
    if let Some(Value::Object(function)) = fields.remove("function") {
        fields.extend(function);
    }
    let name = fields.remove("name").or_else(|| fields.remove("tool_name"));
    let Some(Value::String(name)) = name else {
        return None;
    };
    let arguments = fields
        .remove("arguments")
        .or_else(|| fields.remove("parameters"));
    let arguments = match arguments {
        Some(Value::String(text)) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        Some(arguments) => arguments,
        None => Value::Object(Map::new()),
    };
    let id = match fields.remove("id") {
        Some(Value::String(id)) if !id.is_empty() => id,
        _ => String::new(),
    };
    Some(ToolCall {
        id,
        name,
        arguments,
    })
}

/// Calls as `name[ARGS]{…}`, or `name{…}`, perhaps with `[CALL_ID]id` in between.
fn named(text: &str) -> Option<Vec<ToolCall>> {
    let one = |text: &str| {
        let begin = text.find('{')?;
        let arguments = serde_json::from_str(&text[begin..]).ok()?;
        let head = text[..begin].trim().trim_end_matches("[ARGS]");
        let (name, id) = head.split_once("[CALL_ID]").unwrap_or((head, ""));
        let name = name.trim().to_owned();
        let id = id.trim().to_owned();
        (!name.is_empty()).then_some(ToolCall {
            id,
            name,
            arguments,
        })
    };
    text.split("[TOOL_CALLS]").map(one).collect()
}
