//! Calls of Gemma 4: `call:NAME{key:<|"|>text<|"|>,other:[1,true]}`, which is JSON but for its quotes.

use serde_json::Value;

use crate::chat::message::ToolCall;

/// What stands before and after every string.
pub(super) const QUOTE: &str = "<|\"|>";

pub(super) fn call(text: &str) -> Option<ToolCall> {
    let text = text.strip_prefix("call:")?;
    let (name, arguments) = text.split_at(text.find('{')?);
    let name = name.trim();
    (!name.is_empty()).then_some(ToolCall {
        id: String::new(),
        name: name.to_owned(),
        arguments: serde_json::from_str(&to_json(arguments)).ok()?,
    })
}

/// With JSON's quotes, also around keys.
fn to_json(text: &str) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let mut json = String::with_capacity(text.len());
    for (i, part) in text.split(QUOTE).enumerate() {
        if i % 2 == 1 {
            json.push_str(&quoted(part));
            continue;
        }
        for piece in part.split_inclusive(['{', '}', '[', ']', ',', ':']) {
            match piece.strip_suffix(':').map(str::trim) {
                Some(key) if !key.is_empty() => {
                    json.push_str(&quoted(key));
                    json.push(':');
                }
                _ => json.push_str(piece),
            }
        }
    }
    json
}
