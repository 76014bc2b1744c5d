//! Conversations as callers give and get them.

use forebay_models::sampler::SamplerConfig;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Whoever sets the model up.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool, whose result this is.
    Tool,
}

impl Role {
    /// Its name in chat templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A model's wish to have a tool called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// What the result refers to; nine letters and digits where the model gave none.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Its arguments, usually an object.
    pub arguments: Value,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said; may be empty beside tool calls.
    #[serde(default, deserialize_with = "text_or_null")]
    pub content: String,
    /// What the model thought first, if it showed that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Calls of tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call of which this is the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the tool that was called, or of the speaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }

    /// What the model is told before the conversation.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }

    /// What the user says.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// What the model has said.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// The result of a call.
    pub fn result_of(call: &ToolCall, content: impl Into<String>) -> Self {
        Self {
            tool_call_id: Some(call.id.clone()),
            name: Some(call.name.clone()),
            ..Self::new(Role::Tool, content)
        }
    }
}

/// Interfaces like OpenAI's write `null` for the content beside tool calls.
fn text_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A request for the next message of a conversation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ChatRequest {
    /// The conversation so far; the last message is usually the user's.
    pub messages: Vec<Message>,
    /// Tools that the model may call, as JSON: `{"type": "function", "function": {"name": …, "description": …,
    /// "parameters": …}}`.
    pub tools: Vec<Value>,
    /// Further variables of the model's chat template, such as `enable_thinking`, but none of
    /// [`Self::OWN_VARIABLES`].
    pub template_options: Map<String, Value>,
    /// Maximum number of tokens to generate; `None` continues to the end of the answer or of the context.
    pub max_tokens: Option<usize>,
    /// Positions of the context that have to stay free for the answer: a conversation that leaves fewer is refused as
    /// one that does not fit. One has to be free in any case.
    pub room: usize,
    /// How tokens are chosen.
    pub sampler: SamplerConfig,
    /// The answer ends before the first of these.
    pub stop: Vec<String>,
    /// Tell how likely each token was, and this number of the most likely ones (at most 64).
    pub log_probabilities: Option<usize>,
}

impl ChatRequest {
    /// Variables of chat templates that the engine itself sets from the request; no option may have their names.
    pub const OWN_VARIABLES: [&'static str; 4] =
        ["messages", "tools", "documents", "add_generation_prompt"];

    /// A request with the defaults: greedy, to the end of the answer.
    pub fn new(messages: impl Into<Vec<Message>>) -> Self {
        Self {
            messages: messages.into(),
            tools: Vec::new(),
            template_options: Map::new(),
            max_tokens: None,
            room: 0,
            sampler: SamplerConfig::greedy(),
            stop: Vec::new(),
            log_probabilities: None,
        }
    }

    /// Offers tools.
    #[must_use]
    pub fn tools(mut self, tools: impl Into<Vec<Value>>) -> Self {
        self.tools = tools.into();
        self
    }

    /// Sets a variable of the chat template.
    #[must_use]
    pub fn template_option(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.template_options.insert(name.into(), value.into());
        self
    }

    /// Limits the number of generated tokens.
    #[must_use]
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.max_tokens = Some(n);
        self
    }

    /// Refuses a conversation that leaves fewer positions of the context for the answer.
    #[must_use]
    pub fn room(mut self, n: usize) -> Self {
        self.room = n;
        self
    }

    /// Sets how tokens are chosen.
    #[must_use]
    pub fn sampler(mut self, sampler: SamplerConfig) -> Self {
        self.sampler = sampler;
        self
    }

    /// Ends the answer before the first of these strings.
    #[must_use]
    pub fn stop(mut self, strings: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.stop = strings.into_iter().map(Into::into).collect();
        self
    }

    /// Tells how likely each token was, and the `n` most likely ones, at most 64: as [`ChatItem::Token`].
    ///
    /// [`ChatItem::Token`]: super::ChatItem::Token
    #[must_use]
    pub fn log_probabilities(mut self, n: usize) -> Self {
        self.log_probabilities = Some(n);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_may_be_null_or_missing() {
        for text in [
            "{\"role\": \"assistant\", \"content\": null}",
            "{\"role\": \"assistant\"}",
        ] {
            let message: Message = serde_json::from_str(text).expect(text);
            assert_eq!(message, Message::assistant(""));
        }
    }
}
