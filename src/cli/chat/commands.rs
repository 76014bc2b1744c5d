//! Commands of a conversation: lines that begin with a slash.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use forebay_models::files::read_regular;

use super::conversation::Conversation;
use super::input::Input;
use super::settings;
use crate::cli::output::say;

/// Longest file that can be put in front of a message.
const MOST_BYTES: u64 = 16 << 20;

const HELP: &str = "\
/system [TEXT]     what the model is told first; without a text, nothing
/set NAME VALUE    changes a setting: /set temp 0.5, /set n 200, /set nothink, /set nohistory; /show lists them
/show [messages]   shows the settings, or what was said
/read FILE         puts a text file in front of the next message
/regen             answers the last message anew
/undo              takes the last turn back
/clear             forgets what was said
/save FILE         writes the conversation to a file
/load FILE         goes on with the conversation of a file
/stats             statistics of the last answer: speed, bytes read, memory
/bye               quits, as Ctrl-D does
A message over several lines stands between lines with \"\"\", or has lines that end with a backslash.
Ctrl-C stops an answer; what has come of it stays in the conversation.";

/// What the user wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Say(String),
    Help,
    System(Option<String>),
    Set(String, String),
    Show(bool),
    Clear,
    Undo,
    Regenerate,
    Read(PathBuf),
    Save(PathBuf),
    Load(PathBuf),
    Statistics,
    Leave,
}

/// What follows a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    GoOn,
    Leave,
}

impl Command {
    /// Reads a line without its slash.
    ///
    /// # Errors
    /// There is no such command, or something is missing.
    pub fn parse(line: &str) -> anyhow::Result<Self> {
        let (name, rest) = line
            .trim()
            .split_once(char::is_whitespace)
            .unwrap_or((line.trim(), ""));
        let rest = rest.trim();
        let file = || match rest {
            "" => bail!("/{name} takes the name of a file"),
            path => Ok(PathBuf::from(path)),
        };
        Ok(match name {
            "help" | "?" => Self::Help,
            "system" => Self::System(Some(rest.to_owned()).filter(|text| !text.is_empty())),
            "set" => match rest.split_once(char::is_whitespace).unwrap_or((rest, "")) {
                ("", _) => bail!("/set takes one of {}", settings::NAMES),
                (name, value) => Self::Set(name.to_owned(), value.trim().to_owned()),
            },
            "show" => match rest {
                "" | "settings" => Self::Show(false),
                "messages" => Self::Show(true),
                other => bail!("/show takes messages, or nothing, and not {other:?}"),
            },
            "clear" => Self::Clear,
            "undo" => Self::Undo,
            "regen" => Self::Regenerate,
            "read" => Self::Read(file()?),
            "save" => Self::Save(file()?),
            "load" => Self::Load(file()?),
            "stats" => Self::Statistics,
            "bye" | "exit" | "quit" => Self::Leave,
            other => bail!("/{other}: there is no such command; /help lists them"),
        })
    }

    /// Does it.
    ///
    /// # Errors
    /// It cannot be done.
    pub fn execute(self, talk: &mut Conversation<'_>, input: &mut Input) -> anyhow::Result<Next> {
        match self {
            Self::Say(text) => talk.say(text)?,
            Self::Help => say(HELP),
            Self::System(text) => talk.settings.flags.system = text,
            Self::Set(name, _) if name == "history" => input.keep_history(true),
            Self::Set(name, _) if name == "nohistory" => input.keep_history(false),
            Self::Set(name, value) => talk.set(&name, &value)?,
            Self::Show(true) => talk.show_messages(),
            Self::Show(false) => {
                let system = talk.settings.flags.system.as_deref().unwrap_or("(nothing)");
                say(format_args!("{}\nsystem {system}", talk.settings.lines()));
            }
            Self::Clear => talk.clear(),
            Self::Undo => match talk.undo() {
                Some(said) => talk.remark(format_args!("taken back: {said}")),
                None => talk.remark("there is nothing to take back"),
            },
            Self::Regenerate => {
                if !talk.regenerate()? {
                    talk.remark("there is no message to answer");
                }
            }
            Self::Read(path) => {
                talk.attach(&text_of(&path)?);
                talk.remark(format_args!(
                    "{} goes in front of the next message",
                    path.display()
                ));
            }
            Self::Save(path) => {
                talk.save(&path)?;
                talk.remark(format_args!("written to {}", path.display()));
            }
            Self::Load(path) => {
                let messages = talk.load(&path)?;
                talk.remark(format_args!("{messages} messages from {}", path.display()));
            }
            Self::Statistics => talk.show_statistics(),
            Self::Leave => return Ok(Next::Leave),
        }
        Ok(Next::GoOn)
    }
}

fn text_of(path: &Path) -> anyhow::Result<String> {
    let name = path.display();
    let bytes = read_regular(path, MOST_BYTES).with_context(|| format!("cannot read {name}"))?;
    String::from_utf8(bytes).with_context(|| format!("{name} is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_with_what_they_take() {
        for (line, command) in [
            ("help", Command::Help),
            ("?", Command::Help),
            ("bye ", Command::Leave),
            (
                "system  Be brief. ",
                Command::System(Some("Be brief.".into())),
            ),
            ("system", Command::System(None)),
            ("set temp  0.5", Command::Set("temp".into(), "0.5".into())),
            ("set nothink", Command::Set("nothink".into(), String::new())),
            ("save my chat.json", Command::Save("my chat.json".into())),
            ("show messages", Command::Show(true)),
        ] {
            assert_eq!(Command::parse(line).expect(line), command);
        }
        for wrong in ["", "sing", "set", "save", "show off"] {
            let message = Command::parse(wrong).expect_err(wrong).to_string();
            assert!(message.starts_with('/'), "{message}");
        }
    }
}
