//! Texts that commands are given.

use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail};

use super::again::note_standard_input;

/// Tokens of a piece of text where --ctx does not say and the model allows it.
pub const USUAL_PIECE: usize = 512;

/// Reads a file of UTF-8 text, or standard input for `-`; `what` it is to be is named in messages.
pub fn read_text(file: &Path, what: &str) -> anyhow::Result<String> {
    if file == Path::new("-") {
        return read_standard_input(what);
    }
    std::fs::read_to_string(file).with_context(|| {
        format!(
            "cannot read the {what} from {} (-f takes a file of UTF-8 text)",
            file.display()
        )
    })
}

/// Reads all of standard input; `what` it is to be is named in messages.
pub fn read_standard_input(what: &str) -> anyhow::Result<String> {
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() {
        bail!("there is no {what}; give one with -p TEXT, -f FILE or on standard input");
    }
    let mut text = String::new();
    stdin.read_to_string(&mut text).with_context(|| {
        format!("cannot read the {what} from standard input (it must be UTF-8 text)")
    })?;
    note_standard_input(&text);
    Ok(text)
}

/// A text that is not empty.
pub fn some_text(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err("give some text".into()),
        false => Ok(text.to_owned()),
    }
}

/// Checks, before a model is packed for it, that there are enough tokens for a piece of text.
pub fn enough(tokens: usize, ctx: usize) -> anyhow::Result<()> {
    if tokens < ctx {
        bail!(
            "--tokens {tokens} is less than one piece of --ctx {ctx}; give more tokens or a smaller --ctx"
        );
    }
    Ok(())
}
