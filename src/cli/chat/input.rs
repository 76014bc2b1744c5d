//! What the user types: lines with history, put together into messages and commands.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};

/// Lines that are kept.
const MOST_LINES: usize = 1000;
/// What a message over several lines stands between.
const BLOCK: &str = "\"\"\"";

/// What the user has typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Message(String),
    /// Without its slash.
    Command(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D.
    End,
}

/// A line, or what came instead.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Text(String),
    Interrupted,
    End,
}

/// Reads from the terminal.
pub struct Input {
    editor: Editor<(), FileHistory>,
    /// Where lines are kept, if they are.
    history: Option<PathBuf>,
    keeps: bool,
}

impl Input {
    /// On the terminal, whatever standard output is.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn new() -> anyhow::Result<Self> {
        let failed = |e: ReadlineError| anyhow!("cannot read from the terminal: {e}");
        let config = Config::builder()
            .max_history_size(MOST_LINES)
            .map_err(failed)?
            .behavior(Behavior::PreferTerm)
            .build();
        let mut editor = Editor::with_config(config).map_err(failed)?;
        let history = history_file();
        if let Some(path) = &history {
            // There is none at first.
            let _ = editor.load_history(path);
        }
        Ok(Self {
            editor,
            history,
            keeps: true,
        })
    }

    /// Whether lines are remembered from now on, here and in the file.
    pub fn keep_history(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// The next message or command.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub fn next(&mut self) -> anyhow::Result<Entry> {
        let entry = compose(|continues| {
            let prompt = if continues { "... " } else { ">>> " };
            match self.editor.readline(prompt) {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => Ok(Line::Interrupted),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(error).context("cannot read from the terminal"),
            }
        })?;
        let typed = match &entry {
            Entry::Message(text) => Some(text.clone()),
            Entry::Command(line) => Some(format!("/{line}")),
            Entry::Interrupted | Entry::End => None,
        };
        if let Some(typed) = typed.filter(|_| self.keeps) {
            // Only a convenience.
            let _ = self.editor.add_history_entry(typed);
            self.write_history();
        }
        Ok(entry)
    }

    /// Keeps the line for the next time, however this time ends.
    fn write_history(&mut self) {
        let Some(path) = &self.history else {
            return;
        };
        // Nobody else may read it.
        let folder = path
            .parent()
            .map(|folder| DirBuilder::new().recursive(true).mode(0o700).create(folder));
        if folder.is_some_and(|made| made.is_ok()) && self.editor.append_history(path).is_ok() {
            let _ = std::fs::set_permissions(path, Permissions::from_mode(0o600));
        }
    }
}

/// `forebay/chat_history` in the folder for state.
fn history_file() -> Option<PathBuf> {
    let folder = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("forebay/chat_history"))
}

/// Puts lines together: `read` is told whether it is to go on with a message.
fn compose(mut read: impl FnMut(bool) -> anyhow::Result<Line>) -> anyhow::Result<Entry> {
    let mut message = String::new();
    let mut continues = false;
    // Whether the message stands in a block.
    let mut block = false;
    loop {
        let line = match read(continues)? {
            Line::Text(line) => line,
            Line::Interrupted => return Ok(Entry::Interrupted),
            Line::End if continues => return Ok(Entry::Message(message)),
            Line::End => return Ok(Entry::End),
        };
        let mut text = line.as_str();
        if !continues {
            if text.trim().is_empty() {
                continue;
            }
            if let Some(command) = text.trim_start().strip_prefix('/') {
                return Ok(Entry::Command(command.to_owned()));
            }
            if let Some(rest) = text.trim_start().strip_prefix(BLOCK) {
                block = true;
                text = rest;
            }
        }
        if block {
            if let Some(last) = text.trim_end().strip_suffix(BLOCK) {
                message.push_str(last);
                return Ok(Entry::Message(message.trim_end_matches('\n').to_owned()));
            }
            // Nothing stands on the line that begins the block.
            if continues || !text.is_empty() {
                message.push_str(text);
                message.push('\n');
            }
        } else {
            let Some(more) = text.strip_suffix('\\') else {
                message.push_str(text);
                return Ok(Entry::Message(message));
            };
            message.push_str(more);
            message.push('\n');
        }
        continues = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Entry {
        let mut lines = lines.iter();
        let read = |_| {
            Ok(match lines.next() {
                Some(&"^C") => Line::Interrupted,
                Some(line) => Line::Text((*line).to_owned()),
                None => Line::End,
            })
        };
        compose(read).expect("lines")
    }

    #[test]
    fn lines_become_messages_and_commands() {
        let message = |text: &str| Entry::Message(text.into());
        for (lines, entry) in [
            (&["Hello"][..], message("Hello")),
            (&["", "  ", "Hello"], message("Hello")),
            (&["one\\", "two\\", "three"], message("one\ntwo\nthree")),
            (
                &["\"\"\"", "one", "", "/two", "\"\"\""],
                message("one\n\n/two"),
            ),
            (&["\"\"\"one", "two\"\"\""], message("one\ntwo")),
            (&["\"\"\"one\"\"\""], message("one")),
            (&["/set temp 1"], Entry::Command("set temp 1".into())),
            (&["a\\", "^C"], Entry::Interrupted),
            (&["\"\"\"", "unfinished"], message("unfinished\n")),
            (&[], Entry::End),
        ] {
            assert_eq!(of(lines), entry, "{lines:?}");
        }
    }
}
