//! Conversations: chat templates, messages, answers.

mod answer;
mod calls;
mod filters;
#[cfg(test)]
mod golden;
mod json;
mod message;
mod prompt;
mod stops;
mod stream;
mod template;
mod time;
mod transcript;
mod values;

pub use message::{ChatRequest, Message, Role, ToolCall};
pub use stream::{ChatAnswer, ChatFinish, ChatItem, ChatItems, ChatStream};

pub(crate) use answer::{AnswerReader, Part, is_inside_reasoning, marks};
pub(crate) use prompt::ChatFormat;
pub(crate) use stops::Stops;
pub(crate) use transcript::{Begin, Transcript};
