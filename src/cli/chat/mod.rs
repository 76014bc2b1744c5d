//! `forebay chat`

mod commands;
mod conversation;
mod input;
mod saved;
mod screen;
mod settings;

use std::io::IsTerminal;

use anyhow::bail;
use clap::Args;
use forebay::{Engine, EngineBuilder};

use super::chat_flags::ChatFlags;
use super::context_flag::ContextFlag;
use super::draft_flags::DraftFlags;
use super::engine_flags::EngineFlags;
use super::expert_flags::say_what_is_lost;
use super::model_argument::ModelArgument;
use super::numbers::limit;
use super::output::{explain, say};
use super::progress::reporter;
use super::sampling::Sampling;
use super::stopping::{Generating, put_terminal_back};
use super::text::{read_standard_input, some_text};
use commands::{Command, Next};
use conversation::Conversation;
use input::{Entry, Input};
pub use screen::Screen;
use settings::Settings;

#[derive(Debug, Args)]
pub struct Chat {
    #[command(flatten)]
    model: ModelArgument,
    #[command(flatten)]
    context: ContextFlag,
    #[command(flatten)]
    chat: ChatFlags,
    /// Maximum number of tokens of an answer; -1 is no limit [default: to the end of the answer or of the context].
    #[arg(
        long = "n-predict",
        short = 'n',
        value_name = "N",
        help_heading = "Chat"
    )]
    #[arg(value_parser = limit)]
    n_predict: Option<usize>,
    /// End answers before this string; may be given several times.
    #[arg(long, short = 'r', alias = "reverse-prompt", value_name = "TEXT")]
    #[arg(allow_hyphen_values = true, value_parser = some_text, help_heading = "Chat")]
    stop: Vec<String>,
    #[command(flatten)]
    sampling: Sampling,
    /// Print more: the budget by item, notes about the system, where the time went.
    #[arg(long, short, conflicts_with = "quiet", help_heading = "Output")]
    verbose: bool,
    /// Print the answers only.
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    draft: DraftFlags,
}

impl Chat {
    pub fn execute(self) -> anyhow::Result<()> {
        // Checked before a message is read, and before a model is packed and loaded.
        let sampler = self.sampling.config()?;
        let builder = self.builder()?;
        builder.check()?;
        let is_interactive = std::io::stdin().is_terminal();
        let turn = match is_interactive {
            true => None,
            false => Some(piped_turn()?),
        };
        let engine = builder.build()?;
        if self.verbose {
            explain(&engine);
        }
        if !self.quiet {
            say_what_is_lost(&engine);
        }
        let settings = Settings {
            sampler,
            max_tokens: self.n_predict,
            stop: self.stop,
            flags: self.chat,
        };
        let screen = Screen::new(self.quiet, self.verbose);
        let mut conversation = Conversation::new(&engine, settings, screen);
        match turn {
            Some(text) => conversation.say(text),
            None => converse(&mut conversation),
        }
    }

    fn builder(&self) -> anyhow::Result<EngineBuilder> {
        let builder = self.engine.configure(Engine::builder())?;
        let mut builder = self.draft.configure(self.chat.configure(builder));
        builder = builder.on_preparation(reporter(self.quiet)).for_chat();
        if let Some(model) = self.model.path() {
            builder = builder.model(model);
        }
        Ok(self.context.configure(builder))
    }
}

/// All of standard input, as what the user says.
fn piped_turn() -> anyhow::Result<String> {
    let text = read_standard_input("message")?;
    let trimmed = text.trim_end_matches(['\n', '\r']);
    if trimmed.trim().is_empty() {
        bail!(
            "the message is empty; write it to standard input, or use `forebay run --chat -p TEXT`"
        );
    }
    Ok(trimmed.to_owned())
}

/// Reads messages and commands until the user leaves.
fn converse(conversation: &mut Conversation<'_>) -> anyhow::Result<()> {
    conversation.greet();
    put_terminal_back();
    let mut input = Input::new()?;
    // Ctrl-C ends answers and lines, never the conversation, also between the two.
    let _generating = Generating::begin();
    loop {
        let next = match input.next()? {
            Entry::End => break,
            Entry::Interrupted => {
                say("Ctrl-D or /bye quits; /help lists the commands");
                continue;
            }
            Entry::Message(text) => Command::Say(text).execute(conversation, &mut input),
            Entry::Command(line) => {
                Command::parse(&line).and_then(|command| command.execute(conversation, &mut input))
            }
        };
        match next {
            Ok(Next::GoOn) => {}
            Ok(Next::Leave) => break,
            Err(error) if conversation.ends_with(&error) => return Err(error),
            Err(error) => say(format_args!("error: {}", super::message_of(&error))),
        }
    }
    Ok(())
}
