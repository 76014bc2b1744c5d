//! `forebay eval`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use forebay::Engine;
use forebay_models::tokenizer::EncodeOptions;

use super::engine_flags::EngineFlags;
use super::output::{print_json, print_text, say};
use super::progress::reporter;
use super::text::read_text;

/// Tokens per step while scoring.
const BATCH: usize = 128;

#[derive(Debug, Subcommand)]
pub enum Eval {
    /// Perplexity of a text by llama.cpp's protocol.
    Perplexity(Perplexity),
}

#[derive(Debug, Args)]
pub struct Perplexity {
    /// A .gguf or .fbay file, or a safetensors folder.
    model: PathBuf,
    /// The text.
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    engine: EngineFlags,
    /// Tokens per chunk; the second half of each is scored.
    #[arg(long, short = 'c', value_name = "N", default_value_t = 512)]
    ctx: usize,
    /// Chunks to evaluate [default: all].
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Eval {
    pub fn execute(self) -> anyhow::Result<()> {
        match self {
            Self::Perplexity(perplexity) => perplexity.execute(),
        }
    }
}

impl Perplexity {
    fn execute(self) -> anyhow::Result<()> {
        let text = read_text(&self.file)?;
        let builder = Engine::builder().model(&self.model).context(self.ctx);
        let builder = builder.max_batch(BATCH.min(self.ctx)).max_logits(32);
        let builder = self
            .engine
            .configure(builder)?
            .on_preparation(reporter(self.json));
        let engine = builder.build()?;
        let add_bos = engine.tokenizer().adds_bos();
        let options = EncodeOptions {
            add_bos,
            parse_special: false,
        };
        let tokens = engine.tokenizer().encode(&text, options)?;
        let json = self.json;
        let progress = move |chunk: usize, chunks: usize, perplexity: f64| {
            if !json {
                say(format_args!("chunk {chunk} of {chunks}: {perplexity:.4}"));
            }
        };
        let result = engine.perplexity(&tokens, self.ctx, self.chunks, progress)?;
        if self.json {
            // Some readers know the figures by their short names.
            let mut object = serde_json::to_value(result)?;
            object["ppl"] = result.perplexity.into();
            object["ppl_stderr"] = result.stderr.into();
            return print_json(&object);
        }
        print_text(&format!(
            "perplexity {:.4} ± {:.4} over {} tokens in {} chunks of {}\n",
            result.perplexity, result.stderr, result.tokens, result.chunks, result.ctx
        ))
    }
}
