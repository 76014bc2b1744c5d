//! Conversations in files.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use forebay::{Message, Role};
use forebay_models::files::{read_regular, write_output};
use serde::{Deserialize, Serialize};

use crate::cli::output::check_target;

/// The format of the file.
const VERSION: u32 = 1;
/// Longest file: a conversation of a million tokens.
const MOST_BYTES: u64 = 64 << 20;

/// A conversation as a file has it.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    forebay_chat: u32,
    messages: Vec<Message>,
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
    let saved: Saved = serde_json::from_slice(&bytes)
        .with_context(|| format!("{name} is not a conversation; /save writes them"))?;
    if saved.forebay_chat != VERSION {
        let found = saved.forebay_chat;
        bail!("{name}: forebay_chat is {found}, and this program reads {VERSION}");
    }
    let late = saved
        .messages
        .iter()
        .skip(1)
        .any(|m| m.role == Role::System);
    if late {
        bail!("{name}: messages: only the first may be of the role system");
    }
    Ok(saved.messages)
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
                "{\"forebay_chat\": 1, \"messages\": [{\"role\": \"poet\"}]}",
                "not a conversation",
            ),
            (
                "{\"forebay_chat\": 1, \"messages\": [{\"role\": \"user\"}, {\"role\": \"system\"}]}",
                "only the first",
            ),
        ] {
            std::fs::write(&path, text).expect("writable");
            let message = format!("{:#}", load(&path).expect_err(text));
            assert!(
                message.contains(expected) && message.contains("chat.json"),
                "{message}"
            );
        }
    }
}
