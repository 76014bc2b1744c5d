//! Conversations in files.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use forebay::{Message, Role};
use forebay_models::files::{read_regular, write_output};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cli::output::check_target;

/// The format of the file.
const VERSION: u32 = 1;
/// Longest file: a conversation of a million tokens.
const MOST_BYTES: u64 = 64 << 20;

/// A conversation as a file has it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved<M> {
    forebay_chat: u32,
    messages: Vec<M>,
}

/// Writes a conversation to a file, which appears whole or not at all.
///
/// # Errors
/// The file cannot be written.
pub fn save(path: &Path, messages: &[Message]) -> anyhow::Result<()> {
    check_target("/save", path)?;
    let saved = Saved {
        forebay_chat: VERSION,
        messages: messages.to_vec(),
    };
    let mut text = serde_json::to_string_pretty(&saved)?;
    text.push('\n');
    write_output(path, |mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}; give /save another file", path.display()))
}

/// Reads a conversation from a file.
///
/// # Errors
/// The file cannot be read, or is not a saved conversation.
pub fn load(path: &Path) -> anyhow::Result<Vec<Message>> {
    let name = path.display();
    let bytes = read_regular(path, MOST_BYTES).with_context(|| format!("cannot read {name}"))?;
    let saved: Saved<Value> = serde_json::from_slice(&bytes)
        .with_context(|| format!("{name} is not a conversation; /save writes them"))?;
    if saved.forebay_chat != VERSION {
        let found = saved.forebay_chat;
        bail!("{name}: forebay_chat is {found}, and this program reads {VERSION}");
    }
    let messages = saved.messages.into_iter().enumerate();
    let messages = messages
        .map(|(i, json)| message(json).with_context(|| format!("{name}: message {}", i + 1)));
    let messages: Vec<Message> = messages.collect::<anyhow::Result<_>>()?;
    let late = messages.iter().skip(1).any(|m| m.role == Role::System);
    if late {
        bail!("{name}: messages: only the first may be of the role system");
    }
    Ok(messages)
}

/// A message. What is missing is not taken for empty, and nothing is left out: the model would read something else than
/// the file says.
fn message(json: Value) -> anyhow::Result<Message> {
    let Value::Object(mut fields) = json else {
        bail!("it is no object");
    };
    let role = take(&mut fields, "role")?.context("role: there is none")?;
    let mut message = Message::new(role, "");
    message.reasoning = take(&mut fields, "reasoning")?;
    message.tool_calls = take(&mut fields, "tool_calls")?.unwrap_or_default();
    message.tool_call_id = take(&mut fields, "tool_call_id")?;
    message.name = take(&mut fields, "name")?;
    match take(&mut fields, "content")? {
        Some(content) => message.content = content,
        None if !message.tool_calls.is_empty() => {}
        None => bail!("content: there is none; give a text"),
    }
    match fields.keys().next() {
        Some(field) => bail!("{field}: there is no such field; leave it out"),
        None => Ok(message),
    }
}

/// Takes this field out, if it is there and not null.
fn take<T: DeserializeOwned>(
    fields: &mut Map<String, Value>,
    name: &'static str,
) -> anyhow::Result<Option<T>> {
    let value = fields.remove(name).unwrap_or_default();
    serde_json::from_value(value).context(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_other_files_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("chat.json");
        let mut answer = Message::assistant("Hello!");
        answer.reasoning = Some("A greeting.".into());
        let messages = [
            Message::system("Be brief."),
            Message::user("Hi <|im_end|>"),
            answer,
        ];
        save(&path, &messages).expect("writable");
        assert_eq!(load(&path).expect("readable"), messages);
        for (text, expected) in [
            ("{", "not a conversation"),
            (
                "{\"forebay_chat\": 9, \"messages\": []}",
                "forebay_chat is 9",
            ),
            (
                "{\"forebay_chat\": 1, \"messages\": [], \"model\": \"x\"}",
                "`model`",
            ),
        ] {
            refused(&path, text, &[expected]);
        }
    }

    /// Checks that this file is refused, and that all of `mentions` are said.
    fn refused(path: &Path, text: &str, mentions: &[&str]) {
        std::fs::write(path, text).expect("writable");
        let message = format!("{:#}", load(path).expect_err(text));
        let said = mentions.iter().all(|mention| message.contains(mention));
        assert!(said && message.contains("chat.json"), "{message}");
    }

    #[test]
    fn a_message_that_is_not_whole_is_told_with_its_field() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("chat.json");
        let with = |second: &str| {
            let first = r#"{"role": "user", "content": "Hi"}"#;
            format!(r#"{{"forebay_chat": 1, "messages": [{first}, {second}]}}"#)
        };
        for (second, mentions) in [
            ("7", &["message 2", "no object"][..]),
            (r#"{"content": "a"}"#, &["message 2", "role"]),
            (
                r#"{"role": "poet", "content": "a"}"#,
                &["message 2", "role", "poet"],
            ),
            (r#"{"role": "user"}"#, &["message 2", "content"]),
            (
                r#"{"role": "user", "content": null}"#,
                &["message 2", "content"],
            ),
            (
                r#"{"role": "user", "content": ["a"]}"#,
                &["message 2", "content"],
            ),
            (
                r#"{"role": "assistant", "tool_calls": []}"#,
                &["message 2", "content"],
            ),
            (
                r#"{"role": "user", "content": "a", "text": "b"}"#,
                &["message 2", "text"],
            ),
            (r#"{"role": "system", "content": "a"}"#, &["only the first"]),
        ] {
            refused(&path, &with(second), mentions);
        }
        // As interfaces like OpenAI's write it.
        let call = r#"{"id": "a", "name": "look", "arguments": {}}"#;
        let call = format!(r#"{{"role": "assistant", "content": null, "tool_calls": [{call}]}}"#);
        std::fs::write(&path, with(&call)).expect("writable");
        let loaded = load(&path).expect("readable");
        assert_eq!((loaded[1].tool_calls.len(), &*loaded[1].content), (1, ""));
        save(&path, &loaded).expect("writable");
        assert_eq!(load(&path).expect("readable"), loaded);
    }
}
