//! A conversation as variables of a chat template.

use std::cell::Cell;
use std::collections::BTreeMap;

use forebay_models::tokenizer::Tokenizer;
use minijinja::value::Value;
use serde_json::Value as Json;

use super::message::{ChatRequest, Message};

/// Where breaks go in texts of strangers: see [`Tokenizer::breaks`].
#[derive(Clone, Copy)]
pub(super) struct Breaking<'a> {
    pub tokenizer: &'a Tokenizer,
    /// User-defined tokens that the template itself writes.
    pub written: &'a [u32],
    /// What stands for a break.
    pub sign: char,
}

/// Takes texts of strangers over.
pub(super) struct Texts<'a> {
    breaking: Option<Breaking<'a>>,
    /// Whether any text has breaks.
    broken: Cell<bool>,
    /// Whether the sign for breaks occurs in any text.
    ambiguous: Cell<bool>,
}

impl<'a> Texts<'a> {
    /// As they are.
    pub fn plain() -> Self {
        Self {
            breaking: None,
            broken: Cell::new(false),
            ambiguous: Cell::new(false),
        }
    }

    /// With breaks.
    pub fn broken(breaking: Breaking<'a>) -> Self {
        Self {
            breaking: Some(breaking),
            ..Self::plain()
        }
    }

    /// Whether any text so far has breaks.
    pub fn have_breaks(&self) -> bool {
        self.broken.get()
    }

    /// Whether the sign for breaks occurs in any text so far.
    pub fn are_ambiguous(&self) -> bool {
        self.ambiguous.get()
    }

    fn text(&self, text: &str) -> Value {
        let Some(Breaking {
            tokenizer,
            written,
            sign,
        }) = self.breaking
        else {
            return Value::from(text);
        };
        if text.contains(sign) {
            self.ambiguous.set(true);
        }
        let breaks = tokenizer.breaks(text, |id| written.contains(&id));
        if breaks.is_empty() {
            return Value::from(text);
        }
        self.broken.set(true);
        let mut marked = String::with_capacity(text.len() + 4 * breaks.len());
        let mut at = 0;
        for place in breaks {
            marked.push_str(&text[at..place]);
            marked.push(sign);
            at = place;
        }
        marked.push_str(&text[at..]);
        Value::from(marked)
    }

    fn json(&self, json: &Json) -> Value {
        match json {
            Json::Null => Value::from(()),
            Json::Bool(flag) => Value::from(*flag),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(n), _) => Value::from(n),
                (_, Some(n)) => Value::from(n),
                _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => self.text(text),
            Json::Array(items) => {
                Value::from(items.iter().map(|i| self.json(i)).collect::<Vec<_>>())
            }
            Json::Object(fields) => Value::from_pairs(
                fields
                    .iter()
                    .map(|(key, value)| (self.text(key), self.json(value))),
            ),
        }
    }

    fn message(&self, message: &Message) -> Value {
        let mut fields = vec![
            ("role", Value::from(message.role.name())),
            ("content", self.text(&message.content)),
        ];
        if let Some(reasoning) = &message.reasoning {
            // The usual name, and that of gpt-oss.
            fields.push(("thinking", self.text(reasoning)));
            fields.push(("reasoning_content", self.text(reasoning)));
        }
        if !message.tool_calls.is_empty() {
            let calls = message.tool_calls.iter().map(|call| {
                let function = [
                    ("name", self.text(&call.name)),
                    ("arguments", self.json(&call.arguments)),
                ];
                Value::from_pairs([
                    ("id", self.text(&call.id)),
                    ("type", Value::from("function")),
                    ("function", Value::from_pairs(function)),
                ])
            });
            fields.push(("tool_calls", Value::from(calls.collect::<Vec<_>>())));
        }
        if let Some(id) = &message.tool_call_id {
            fields.push(("tool_call_id", self.text(id)));
        }
        if let Some(name) = &message.name {
            fields.push(("name", self.text(name)));
        }
        Value::from_pairs(fields)
    }

    /// The variables for the next message of a conversation; `tokens` are texts of special tokens.
    pub fn variables(
        &self,
        request: &ChatRequest,
        tokens: &BTreeMap<String, String>,
        asks_for_answer: bool,
    ) -> Value {
        let tokens = tokens
            .iter()
            .map(|(name, text)| (name.clone(), Value::from(text.as_str())));
        let options = request.template_options.iter();
        let options = options.map(|(name, value)| (name.clone(), self.json(value)));
        let messages: Vec<_> = request.messages.iter().map(|m| self.message(m)).collect();
        let tools = match request.tools.is_empty() {
            true => Value::from(()),
            false => Value::from(
                request
                    .tools
                    .iter()
                    .map(|t| self.json(t))
                    .collect::<Vec<_>>(),
            ),
        };
        let own = [
            Value::from(messages),
            tools,
            // Nobody can give any.
            Value::from(()),
            Value::from(asks_for_answer),
        ];
        let names = ChatRequest::OWN_VARIABLES.map(String::from);
        let own = names.into_iter().zip(own);
        // The last of equal names counts.
        Value::from_pairs(tokens.chain(options).chain(own))
    }
}

/// JSON as a value of templates.
#[cfg(test)]
pub(super) fn plain(json: &Json) -> Value {
    Texts::plain().json(json)
}
