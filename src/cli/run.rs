//! `forebay run`

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use clap::Args;
use forebay::{
    DeviceStatistics, Engine, EngineBuilder, Error, Message, Request, SamplerConfig, Statistics,
    StreamItem, TokenStream, demo,
};

use super::chat::Screen;
use super::chat_flags::ChatFlags;
use super::context_flag::ContextFlag;
use super::draft_flags::DraftFlags;
use super::engine_flags::EngineFlags;
use super::expert_flags::say_what_is_lost;
use super::follow::{follow, prompt_bar};
use super::model_argument::ModelArgument;
use super::numbers::limit;
use super::output::{check_targets, explain, print_text, say, warn_of_loss, write_json};
use super::progress::reporter;
use super::sampling::Sampling;
use super::stopping::Generating;
use super::text::{read_prompt, some_text};

/// Records per trace lane of a core: the last quarter of a million slices, 16 MiB.
pub const TRACE_RECORDS: usize = 1 << 18;

/// Tokens of usual texts have at least so many bytes.
const BYTES_PER_TOKEN: usize = 3;
/// Positions for a chat template and a short answer, where the context would otherwise be too small for a prompt.
const SHORT_ANSWER: usize = 128;

#[derive(Debug, Default, Args)]
pub struct Run {
    #[command(flatten)]
    model: ModelArgument,
    #[command(flatten)]
    context: ContextFlag,
    /// The text to continue, as it is: the next argument, even if it begins with a hyphen.
    #[arg(long, short, value_name = "TEXT", conflicts_with = "file")]
    #[arg(allow_hyphen_values = true, help_heading = "Prompt")]
    prompt: Option<String>,
    /// Read the prompt from a file; - is standard input, as without -p and -f.
    #[arg(long, short, value_name = "FILE", help_heading = "Prompt")]
    file: Option<PathBuf>,
    /// Maximum number of tokens to generate; -1 is no limit [default: to the end of the text or of the context].
    #[arg(
        long = "n-predict",
        short = 'n',
        value_name = "N",
        help_heading = "Prompt"
    )]
    #[arg(value_parser = limit)]
    n_predict: Option<usize>,
    /// End the text before this string; may be given several times.
    #[arg(long, short = 'r', alias = "reverse-prompt", value_name = "TEXT")]
    #[arg(allow_hyphen_values = true, value_parser = some_text, help_heading = "Prompt")]
    stop: Vec<String>,
    /// Continue past an end-of-generation token.
    #[arg(long, help_heading = "Prompt")]
    ignore_eog: bool,
    /// Take the prompt as the user's message in a conversation, written by the model's chat template; control tokens
    /// named in it are then only text. By default the prompt is continued unmodified.
    #[arg(long, conflicts_with = "ignore_eog", help_heading = "Chat")]
    chat: bool,
    #[command(flatten)]
    chat_flags: ChatFlags,
    #[command(flatten)]
    sampling: Sampling,
    /// Write statistics as JSON; - is standard output, where nothing else is then printed.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    stats: Option<PathBuf>,
    /// Write a Chrome trace (open it in Perfetto or chrome://tracing).
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    trace: Option<PathBuf>,
    /// Print more: the budget by item, notes about the system, where the time went.
    #[arg(long, short, conflicts_with = "quiet", help_heading = "Output")]
    verbose: bool,
    /// Print the generated text only.
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    draft: DraftFlags,
}

impl Run {
    /// What runs without arguments: a story by the demo model, in less memory than its weights take.
    pub fn demo() -> Self {
        let sampling = Sampling {
            temp: Some(0.7),
            min_p: 0.0,
            top_k: 0,
            seed: Some(7),
            ..Sampling::default()
        };
        Self {
            sampling,
            n_predict: Some(220),
            ..Self::default()
        }
    }

    pub fn execute(self) -> anyhow::Result<()> {
        // Checked before a prompt is read, and before a model is packed and loaded.
        let sampler = self.sampling.config()?;
        if let Some(flag) = self.chat_flags.given().filter(|_| !self.chat) {
            bail!("{flag} is for conversations; give --chat as well");
        }
        let builder = self.builder()?;
        builder.check()?;
        self.check_targets()?;
        let prompt = self.prompt_text()?;
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt.into());
        }
        let engine = self.with_room_for(&prompt, builder).build()?;
        if self.verbose {
            explain(&engine);
        }
        if !self.quiet {
            say_what_is_lost(&engine);
        }
        // Results go to standard output; if the statistics go there, nothing else does.
        let shows_text = self.stats.as_deref() != Some(Path::new("-"));
        let statistics = match self.chat {
            true => self.answer(&engine, prompt, sampler, shows_text)?,
            false => self.continuation(&engine, &prompt, sampler, shows_text)?,
        };
        if let Some(path) = &self.stats {
            write_json(path, &statistics)?;
        }
        if let Some(path) = &self.trace {
            engine
                .finish_with_trace(path)
                .map_err(|e| anyhow!("{e}; give --trace a writable file name"))?;
            if self.verbose {
                say(format_args!("trace written to {}", path.display()));
            }
        }
        Ok(())
    }

    /// Has the model continue the prompt.
    fn continuation(
        &self,
        engine: &Engine,
        prompt: &str,
        sampler: SamplerConfig,
        shows_text: bool,
    ) -> anyhow::Result<Statistics> {
        // Who writes prompts here may write control tokens, as in llama.cpp.
        let mut request = Request::text(prompt)
            .parse_special(true)
            .sampler(sampler)
            .ignore_eog(self.ignore_eog)
            .stop(&self.stop);
        request.max_tokens = self.n_predict;
        let stream = engine.session().generate(request)?;
        if shows_text && !self.quiet {
            print_text(prompt)?;
        }
        let statistics = print_stream(stream, (shows_text, self.quiet))?;
        if shows_text {
            print_text("\n")?;
        }
        self.summarise(&statistics);
        Ok(statistics)
    }

    /// Has the model answer the prompt.
    fn answer(
        &self,
        engine: &Engine,
        prompt: String,
        sampler: SamplerConfig,
        shows_text: bool,
    ) -> anyhow::Result<Statistics> {
        let system = self.chat_flags.system.as_ref().map(Message::system);
        let messages = system.into_iter().chain([Message::user(prompt)]);
        let mut request = self.chat_flags.request(messages.collect());
        request.sampler = sampler;
        request.stop.clone_from(&self.stop);
        request.max_tokens = self.n_predict;
        let screen = Screen::new(self.quiet, self.verbose);
        let screen = match shows_text {
            true => screen,
            false => screen.without_text(),
        };
        let generating = Generating::begin();
        let answer = screen.show(engine.session().chat(request)?, &generating)?;
        Ok(answer.statistics)
    }

    /// Files that are written in the end, beside those that are read.
    fn check_targets(&self) -> anyhow::Result<()> {
        let stats = self.stats.as_deref().filter(|path| *path != Path::new("-"));
        let outputs = [("--stats", stats), ("--trace", self.trace.as_deref())];
        let inputs = [
            ("the prompt", self.file.as_deref()),
            ("--plan", self.engine.plan.as_deref()),
            ("--chat-template", self.chat_flags.chat_template.as_deref()),
        ];
        check_targets(&given(outputs), &given(inputs))
    }

    fn builder(&self) -> anyhow::Result<EngineBuilder> {
        let builder = self.engine.configure(Engine::builder())?;
        let mut builder = self.draft.configure(self.chat_flags.configure(builder));
        builder = builder.on_preparation(reporter(self.quiet));
        match self.model.path() {
            Some(model) => builder = builder.model(model),
            None if self.engine.memory.is_none() => {
                builder = builder.weight_memory(demo::weight_bytes() * 3 / 4);
            }
            None => {}
        }
        if self.chat {
            builder = builder.for_chat();
        }
        if self.trace.is_some() {
            builder = builder.trace_records(TRACE_RECORDS);
        }
        Ok(self.context.configure(builder))
    }

    /// Without a given context: one that this prompt needs.
    fn with_room_for(&self, prompt: &str, builder: EngineBuilder) -> EngineBuilder {
        if self.context.is_given() {
            return builder;
        }
        let builder = builder.context_needed(prompt.len() / BYTES_PER_TOKEN + SHORT_ANSWER);
        match self.n_predict {
            // Nobody knows how much a chat template adds.
            _ if self.chat => builder,
            // A token is at least a byte of text: with BOS and a prefix space this is always enough.
            Some(n) => builder.context_hint(n.saturating_add(prompt.len() + 2)),
            None => builder,
        }
    }

    fn summarise(&self, statistics: &Statistics) {
        if self.quiet {
            return;
        }
        say(statistics.summary());
        warn_of_loss(statistics.device.as_ref().and_then(DeviceStatistics::loss));
        if !self.verbose {
            return;
        }
        say(statistics.details());
        if let Some(text) = &statistics.unexpected {
            say(format_args!(
                "note: {text}; `forebay plan MODEL --measure` measures the machine again"
            ));
        }
    }

    fn prompt_text(&self) -> anyhow::Result<String> {
        if let Some(text) = &self.prompt {
            return Ok(text.clone());
        }
        if self.file.is_none() && self.model.path().is_none() {
            return Ok(demo::PROMPT.into());
        }
        read_prompt(self.file.as_deref())
    }
}

/// Files with what names them, as far as they were given.
fn given<'a, const N: usize>(files: [(&'a str, Option<&'a Path>); N]) -> Vec<(&'a str, &'a Path)> {
    let files = files.into_iter();
    files
        .filter_map(|(name, file)| Some((name, file?)))
        .collect()
}

/// Reads the stream to its end and prints tokens as they come, if it `shows_text`, and nothing else if it is `quiet`.
/// Ctrl-C ends the generation, not the program: the statistics and the trace so far are still written.
fn print_stream(
    stream: TokenStream,
    (shows_text, quiet): (bool, bool),
) -> anyhow::Result<Statistics> {
    let generating = Generating::begin();
    let bar = prompt_bar(quiet);
    let show = |text: &str| match shows_text {
        true => print_text(text),
        false => Ok(()),
    };
    follow((stream, &generating), TokenStream::cancel, |item| {
        match item {
            StreamItem::Prompt(progress) => {
                bar.set_length(progress.total as u64);
                bar.set_position(progress.done as u64);
            }
            StreamItem::Token(token) => {
                bar.finish_and_clear();
                show(&token.text)?;
            }
            StreamItem::Rest(rest) => show(&rest)?,
            StreamItem::Done(statistics) => return Ok(Some(*statistics)),
            _ => {}
        }
        Ok(None)
    })
}
