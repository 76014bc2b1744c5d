//! How much longer a file's steps before encoding may make a text: every step works on what the one before left, so
//! that a few dozen of them, each harmless, would take all memory and time.

use serde_json::Value;

use super::{FILE, flatten};
use crate::error::{ModelError, Result};

/// Most that the steps of a file may make of a byte; usual ones make 3, a space in SentencePiece's spelling.
const MOST: usize = 64;

/// How many bytes the steps may make of one; steps that could make a text much longer are refused.
///
/// # Errors
/// They could; the field is named.
pub(super) fn check(normalizer: Option<&Value>, pre_tokenizer: Option<&Value>) -> Result<usize> {
    let mut growth = 1usize;
    for (field, value) in [("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer)] {
        let mut steps = Vec::new();
        if let Some(value) = value {
            flatten(value, &mut steps);
        }
        for step in steps {
            growth = growth.saturating_mul(of_step(step));
            if growth > MOST {
                return Err(ModelError::unsupported(
                    FILE,
                    field,
                    format!(
                        "a sequence of steps that may make a text more than {MOST} times longer"
                    ),
                    "leave repeated steps away, or convert the model to GGUF",
                ));
            }
        }
    }
    Ok(growth)
}

/// Most bytes that a step makes of one.
fn of_step(step: &Value) -> usize {
    let text = |field: &str| step[field].as_str().map_or(1, |t| t.len().max(1));
    match step["type"].as_str() {
        // A byte becomes a letter of two.
        Some("ByteLevel") => 2,
        Some("Replace") => text("content"),
        Some("Metaspace") => text("replacement"),
        _ => 1,
    }
}
