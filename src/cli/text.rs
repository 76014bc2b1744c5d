//! Texts that commands are given.

use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail};

use super::again::note_passing;

/// Tokens of a piece of text where --ctx does not say and the model allows it.
pub const USUAL_PIECE: usize = 512;

/// Reads a prompt from a file, or from standard input. A line break at the very end ends the file, or what a command
/// printed; it is no part of the prompt.
pub fn read_prompt(file: Option<&Path>) -> anyhow::Result<String> {
    let mut text = match file {
        Some(file) => read_text(file, "prompt")?,
        None => read_standard_input("prompt")?,
    };
    let line = text
        .strip_suffix('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line));
    text.truncate(line.map_or(text.len(), str::len));
    Ok(text)
}

/// Reads a file of UTF-8 text, or standard input for `-`; `what` it is to be is named in messages.
pub fn read_text(file: &Path, what: &str) -> anyhow::Result<String> {
    if file == Path::new("-") {
        return read_standard_input(what);
    }
    let text = std::fs::read_to_string(file).with_context(|| {
        format!(
            "cannot read the {what} from {} (-f takes a file of UTF-8 text)",
            file.display()
        )
    })?;
    if !file.is_file() {
        note_passing(file, &text);
    }
    Ok(text)
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
    note_passing(Path::new("-"), &text);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_last_line_is_no_part_of_a_prompt() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("prompt");
        for (text, prompt) in [
            ("hi", "hi"),
            ("hi\n", "hi"),
            ("hi\r\n", "hi"),
            ("hi\r", "hi\r"),
            ("one\n\n", "one\n"),
            ("\n", ""),
            ("", ""),
        ] {
            std::fs::write(&file, text).expect("writable");
            assert_eq!(read_prompt(Some(&file)).expect("text"), prompt, "{text:?}");
        }
    }
}
