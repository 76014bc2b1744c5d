//! `forebay run`

use std::io::{IsTerminal, Read};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use forebay::{Engine, Error, Prompt, Request, Statistics, StreamItem, TokenStream, demo};
use futures_util::StreamExt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::engine_flags::EngineFlags;
use super::output::{print_text, say, write_json};
use super::progress::reporter;
use super::sampling::Sampling;

/// Records per core lane of a trace: the last quarter of a million slices, 16 MiB.
pub const TRACE_RECORDS: usize = 1 << 18;

#[derive(Debug, Default, Args)]
pub struct Run {
    /// A .gguf or .fbay file, or a safetensors folder; the embedded demo model if left away.
    model: Option<PathBuf>,
    /// The text to go on from.
    #[arg(long, short, value_name = "TEXT", conflicts_with = "file")]
    prompt: Option<String>,
    /// Read the prompt from a file; without -p and -f it is read from standard input.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Most tokens to generate [default: to the end of the text or of the context].
    #[arg(long = "n-predict", short = 'n', value_name = "N")]
    n_predict: Option<usize>,
    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    sampling: Sampling,
    /// Positions of the KV cache, at most what the model was trained for [default: 4096, or less where -n
    /// or the budget allows no more].
    #[arg(long, value_name = "N")]
    ctx: Option<usize>,
    /// Go on behind an end-of-generation token.
    #[arg(long)]
    ignore_eog: bool,
    /// Write a chrome trace (open it in Perfetto or chrome://tracing).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write statistics as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Print the generated text only.
    #[arg(long, short)]
    quiet: bool,
}

impl Run {
    /// What runs without any command: a story by the demo model, in less memory than its weights take.
    pub fn demo() -> Self {
        let sampling = Sampling {
            temp: 0.7,
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
        let prompt = self.prompt_text()?;
        if prompt.is_empty() {
            bail!("the prompt is empty; give some text with -p TEXT, -f FILE or on standard input");
        }
        let mut builder = self.engine.configure(Engine::builder())?;
        builder = builder.on_preparation(reporter(self.quiet));
        match &self.model {
            Some(model) => builder = builder.model(model),
            None if self.engine.memory.is_none() => {
                builder = builder.weight_memory(demo::weight_bytes() * 3 / 4);
            }
            None => {}
        }
        builder = match (self.ctx, self.n_predict) {
            (Some(ctx), _) => builder.context(ctx),
            // A token is at least a byte of text: with BOS and a prefix space this is always enough.
            (None, Some(n)) => builder.context_hint(n.saturating_add(prompt.len() + 2)),
            (None, None) => builder,
        };
        if self.trace.is_some() {
            builder = builder.trace_records(TRACE_RECORDS);
        }
        let engine = builder.build()?;
        if !self.quiet {
            say(engine.budget());
            engine
                .notes()
                .iter()
                .for_each(|note| say(format_args!("note: {note}")));
            if let Some(e) = engine.expected() {
                say(format_args!(
                    "expected: {:.1} tokens per second, bound by {}",
                    e.decode_tokens_per_second, e.bound_by
                ));
            }
        }
        let request = Request {
            prompt: Prompt::Text(prompt.clone()),
            max_tokens: self.n_predict,
            sampler: self.sampling.config(),
            parse_special: true,
            ignore_eog: self.ignore_eog,
        };
        let stream = engine.session().generate(request)?;
        if !self.quiet {
            print_text(&prompt)?;
        }
        let statistics = print_stream(stream)?;
        print_text("\n")?;
        if let Some(statistics) = statistics {
            if !self.quiet {
                say(statistics.summary());
                if let Some(text) = &statistics.unexpected {
                    say(format_args!("note: {text}"));
                }
            }
            if let Some(path) = &self.stats {
                write_json(path, &statistics)?;
            }
        }
        if let Some(path) = &self.trace {
            engine.finish_with_trace(path)?;
            if !self.quiet {
                say(format_args!("trace written to {}", path.display()));
            }
        }
        Ok(())
    }

    fn prompt_text(&self) -> anyhow::Result<String> {
        if let Some(text) = &self.prompt {
            return Ok(text.clone());
        }
        if let Some(path) = &self.file {
            return std::fs::read_to_string(path).with_context(|| {
                format!(
                    "cannot read the prompt from {} (-f takes a file of UTF-8 text)",
                    path.display()
                )
            });
        }
        if self.model.is_none() {
            return Ok(demo::PROMPT.into());
        }
        let mut stdin = std::io::stdin();
        if stdin.is_terminal() {
            bail!("there is no prompt; give one with -p TEXT, -f FILE or on standard input");
        }
        let mut text = String::new();
        stdin
            .read_to_string(&mut text)
            .context("cannot read the prompt from standard input (it must be UTF-8 text)")?;
        Ok(text)
    }
}

/// Prints tokens as they come. Ctrl-C ends the generation, not the program: what was recorded so far is
/// still written. Returns `None` if it was cut short that way.
fn print_stream(mut stream: TokenStream) -> anyhow::Result<Option<Statistics>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) =
        ProgressStyle::with_template("reading the prompt [{bar:30}] {pos}/{len} {eta}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    runtime.block_on(async {
        loop {
            let item = tokio::select! {
                item = StreamExt::next(&mut stream) => item,
                _ = tokio::signal::ctrl_c() => return Ok(None),
            };
            match item {
                None => return Err(Error::Stopped.into()),
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(StreamItem::Prompt(progress))) => {
                    bar.set_length(progress.total as u64);
                    bar.set_position(progress.done as u64);
                }
                Some(Ok(StreamItem::Token(token))) => {
                    bar.finish_and_clear();
                    print_text(&token.text)?;
                }
                Some(Ok(StreamItem::Rest(rest))) => print_text(&rest)?,
                Some(Ok(StreamItem::Done(statistics))) => return Ok(Some(*statistics)),
            }
        }
    })
}
