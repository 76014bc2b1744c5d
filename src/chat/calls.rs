//! Calls of tools in what a model writes, in the ways of several families of models.

use serde_json::{Map, Value};

use super::message::ToolCall;

/// How a family of models writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen and many others.
    Hermes,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}]`, or `[TOOL_CALLS]name[ARGS]{…}`.
    Mistral,
    /// `{"name": …, "parameters": …}` as the whole answer, perhaps after `<|python_tag|>`.
    Llama,
    /// `{"name": …, "arguments": …}`, or a list of such objects, as the whole answer.
    Json,
}

impl CallFormat {
    /// The format that a template asks its model for.
    pub fn of(template: &str) -> Self {
        if template.contains("[TOOL_CALLS]") {
            Self::Mistral
        } else if template.contains("<tool_call>") {
            Self::Hermes
        } else if template.contains("<|start_header_id|>") || template.contains("<|python_tag|>") {
            Self::Llama
        } else {
            Self::Json
        }
    }

    /// What calls begin with, wherever they stand in an answer.
    pub fn opening(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some("<tool_call>"),
            Self::Mistral => Some("[TOOL_CALLS]"),
            Self::Llama => Some("<|python_tag|>"),
            Self::Json => None,
        }
    }

    /// What a call ends with, if not with the answer.
    pub fn closing(self) -> Option<&'static str> {
        match self {
            Self::Hermes => Some("</tool_call>"),
            _ => None,
        }
    }

    /// Whether an answer that begins with this character may be nothing but calls.
    pub fn may_begin_bare(self, first: char) -> bool {
        match self {
            Self::Llama => first == '{',
            Self::Json => first == '{' || first == '[',
            Self::Hermes | Self::Mistral => false,
        }
    }

    /// The calls in `text`, which came after [`Self::opening`] or was the whole answer; `None` if it is something
    /// else.
    pub fn parse(self, text: &str) -> Option<Vec<ToolCall>> {
        let text = text.trim();
        if self == Self::Mistral && !text.starts_with(['[', '{']) {
            return named(text);
        }
        let value: Value = serde_json::from_str(text).ok()?;
        let list = match value {
            Value::Array(list) => list,
            single => vec![single],
        };
        let calls: Option<Vec<_>> = list.into_iter().map(call).collect();
        calls.filter(|calls| !calls.is_empty())
    }
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
    let Some(Value::String(name)) = fields.remove("name") else {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(format: CallFormat, text: &str) -> Vec<(String, Value)> {
        let calls = format.parse(text).unwrap_or_default();
        calls.into_iter().map(|c| (c.name, c.arguments)).collect()
    }

    #[test]
    fn every_familys_calls_are_read() {
        let expected = [("weather".to_owned(), json!({"city": "Paris"}))];
        for (format, text) in [
            (
                CallFormat::Hermes,
                "\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n",
            ),
            (
                CallFormat::Mistral,
                " [{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}]",
            ),
            (CallFormat::Mistral, "weather[ARGS]{\"city\": \"Paris\"}"),
            (
                CallFormat::Mistral,
                "weather[CALL_ID]abc[ARGS]{\"city\": \"Paris\"}",
            ),
            (
                CallFormat::Llama,
                "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}",
            ),
            (
                CallFormat::Json,
                "[{\"name\": \"weather\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\"}\"}]",
            ),
            (
                CallFormat::Json,
                "{\"function\": {\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}}",
            ),
        ] {
            assert_eq!(names(format, text), expected, "{text}");
        }
        for other in [
            "{\"city\": \"Paris\"}",
            "[1]",
            "[]",
            "{",
            "weather",
            "\"name\"",
        ] {
            assert_eq!(CallFormat::Json.parse(other), None, "{other}");
        }
        assert_eq!(CallFormat::Mistral.parse("plain text"), None);
        assert_eq!(
            names(CallFormat::Mistral, "a{}[TOOL_CALLS]b[ARGS]{}").len(),
            2
        );
    }

    #[test]
    fn templates_show_their_format() {
        for (template, format) in [
            ("… [TOOL_CALLS] …", CallFormat::Mistral),
            ("… <tool_call> …", CallFormat::Hermes),
            ("<|start_header_id|>", CallFormat::Llama),
            ("<start_of_turn>", CallFormat::Json),
        ] {
            assert_eq!(CallFormat::of(template), format);
        }
    }
}
