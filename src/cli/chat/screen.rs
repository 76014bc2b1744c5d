//! What an answer looks like while it comes.

use std::io::{IsTerminal, Write};

use forebay::{
    ChatAnswer, ChatFinish, ChatItem, ChatStream, DeviceStatistics, FinishReason, Statistics,
};
use forebay_plans::size::format_size;

use crate::cli::follow::{follow, prompt_bar};
use crate::cli::output::{print_text, say, warn_of_loss};
use crate::cli::stopping::Generating;

/// Where things are shown: answers on standard output, all else on standard error.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    quiet: bool,
    verbose: bool,
    /// Whether standard error may be coloured.
    styled: bool,
    /// Whether answers are shown at all.
    shows_text: bool,
}

impl Screen {
    pub fn new(quiet: bool, verbose: bool) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            quiet,
            verbose,
            styled: !plain && std::io::stderr().is_terminal(),
            shows_text: true,
        }
    }

    /// With nothing but what standard error gets.
    pub fn without_text(mut self) -> Self {
        self.shows_text = false;
        self
    }

    /// Says something beside the conversation.
    pub fn remark(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            say(text);
        }
    }

    /// Prints an answer as it comes, to its end. `generating` began before the answer was asked for.
    ///
    /// # Errors
    /// Those of the stream and of printing.
    pub fn show(&self, stream: ChatStream, generating: &Generating) -> anyhow::Result<ChatAnswer> {
        let bar = prompt_bar(self.quiet);
        let mut thinks = false;
        let answer = follow((stream, generating), ChatStream::cancel, |item| {
            match item {
                ChatItem::Prompt(progress) => {
                    bar.set_length(progress.total as u64);
                    bar.set_position(progress.done as u64);
                    return Ok(None);
                }
                ChatItem::Reasoning(text) => {
                    bar.finish_and_clear();
                    thinks = true;
                    self.whisper(&text);
                }
                ChatItem::Text(text) => {
                    bar.finish_and_clear();
                    if std::mem::take(&mut thinks) {
                        self.whisper("\n\n");
                    }
                    if self.shows_text {
                        print_text(&text)?;
                    }
                }
                ChatItem::Call(call) => {
                    bar.finish_and_clear();
                    say(format_args!("call of {}: {}", call.name, call.arguments));
                }
                ChatItem::Done(answer) => return Ok(Some(*answer)),
                _ => {}
            }
            Ok(None)
        })?;
        if self.shows_text {
            print_text("\n")?;
        }
        self.finish(&answer);
        Ok(answer)
    }

    /// What the model thinks, without a new line.
    fn whisper(&self, text: &str) {
        if self.quiet {
            return;
        }
        // A closed standard error is no reason to end.
        let _ = write!(std::io::stderr(), "{}", self.dim(text));
    }

    fn finish(&self, answer: &ChatAnswer) {
        if self.quiet {
            return;
        }
        let end = match (answer.finish, answer.statistics.finish_reason) {
            (ChatFinish::Length, FinishReason::ContextFull) => "; cut off: the context is full",
            (ChatFinish::Length, _) => "; cut off by the limit",
            (ChatFinish::Cancelled, _) => "; stopped",
            _ => "",
        };
        let line = format!("[{}{end}]", line(&answer.statistics));
        say(self.dim(&line));
        let device = answer.statistics.device.as_ref();
        warn_of_loss(device.and_then(DeviceStatistics::loss));
        if self.verbose {
            say(self.dim(&answer.statistics.details()));
        }
    }

    fn dim(&self, text: &str) -> String {
        match self.styled {
            true => format!("\u{1b}[2m{text}\u{1b}[0m"),
            false => text.to_owned(),
        }
    }
}

/// Statistics of an answer in one line.
fn line(statistics: &Statistics) -> String {
    let tokens = statistics.tokens.len();
    let reused = match statistics.prompt.reused_tokens {
        0 => String::new(),
        n => format!(" ({n} kept)"),
    };
    // The first token comes with the prompt, whose reads are not those of a token.
    let decoded = (statistics.decode.tokens as u64).max(1);
    let bytes = statistics.io.bytes.saturating_sub(statistics.prompt.bytes);
    format!(
        "read {} tokens{reused}, {:.1} tok/s; answered {tokens}, {:.1} tok/s; {} from disk per token",
        statistics.prefill.tokens,
        statistics.prefill.tokens_per_second,
        statistics.decode.tokens_per_second,
        format_size(bytes / decoded),
    )
}

/// Statistics of an answer in some lines.
pub fn lines(statistics: &Statistics) -> String {
    let plan = &statistics.plan;
    format!(
        "{}\n{}\nplan: {} threads, a context of {}; memory {} of {}",
        line(statistics),
        statistics.details(),
        plan.threads,
        plan.context,
        format_size(statistics.memory.peak_rss_bytes),
        format_size(statistics.memory.budget_bytes),
    )
}
