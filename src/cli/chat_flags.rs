//! Flags of everything that applies a chat template.

use std::path::PathBuf;

use clap::Args;
use forebay::{ChatRequest, EngineBuilder, Message};
use serde_json::Value;

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Chat")]
pub struct ChatFlags {
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// A chat template in Jinja to use instead of the model's own.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// A variable of the chat template, as JSON or text; may be given several times: enable_thinking=false.
    #[arg(long, value_name = "NAME=VALUE", value_parser = template_option)]
    pub template_option: Vec<(String, Value)>,
}

impl ChatFlags {
    /// Those of the engine.
    pub fn configure(&self, builder: EngineBuilder) -> EngineBuilder {
        match &self.chat_template {
            Some(file) => builder.chat_template_file(file),
            None => builder,
        }
    }

    /// A request for the next message, with the flags' options.
    pub fn request(&self, messages: Vec<Message>) -> ChatRequest {
        let mut request = ChatRequest::new(messages);
        for (name, value) in &self.template_option {
            request = request.template_option(name, value.clone());
        }
        request
    }

    /// The first of these flags that is given, if any is.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            (self.system.is_some(), "--system"),
            (self.chat_template.is_some(), "--chat-template"),
            (!self.template_option.is_empty(), "--template-option"),
        ];
        let first = given.into_iter().find(|(is_given, _)| *is_given);
        first.map(|(_, flag)| flag)
    }
}

/// `NAME=VALUE`; a value that is not JSON is text.
pub fn template_option(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, _)) if ChatRequest::OWN_VARIABLES.contains(&name) => Err(format!(
            "the engine sets {name} itself, from the conversation; leave it out"
        )),
        Some((name, value)) if !name.is_empty() => {
            let json = serde_json::from_str(value);
            let value = json.unwrap_or_else(|_| Value::String(value.to_owned()));
            Ok((name.to_owned(), value))
        }
        _ => Err("give NAME=VALUE, such as enable_thinking=false".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_json_or_text() {
        let of = |text| template_option(text).map(|(_, value)| value);
        assert_eq!(of("enable_thinking=false"), Ok(Value::Bool(false)));
        assert_eq!(of("date=1 May"), Ok(Value::String("1 May".into())));
        assert!(of("enable_thinking").is_err() && of("=1").is_err());
        for name in ChatRequest::OWN_VARIABLES {
            let refusal = template_option(&format!("{name}=[]")).expect_err(name);
            assert!(refusal.contains(name), "{refusal}");
        }
    }
}
