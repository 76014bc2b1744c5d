//! `forebay eval perplexity`

use std::path::PathBuf;

use clap::Args;

use super::super::engine_flags::EngineFlags;
use super::super::numbers::at_least;
use super::super::output::{print_json, print_text, say, warn_of_loss};
use super::super::text::read_text;
use super::{engine, tokens_of};

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
    #[arg(
        long,
        short = 'c',
        alias = "ctx-size",
        value_name = "N",
        default_value_t = 512
    )]
    #[arg(value_parser = at_least::<3>)]
    ctx: u32,
    /// Chunks to evaluate [default: all].
    #[arg(long, value_name = "N", value_parser = at_least::<1>)]
    chunks: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Perplexity {
    pub fn execute(self) -> anyhow::Result<()> {
        let text = read_text(&self.file, "text")?;
        let (ctx, chunks) = (self.ctx as usize, self.chunks.map(|n| n as usize));
        let engine = engine(&self.model, ctx, &self.engine, self.json)?;
        let tokens = tokens_of(&engine, &text)?;
        let json = self.json;
        let progress = move |chunk: usize, chunks: usize, perplexity: f64| {
            if !json {
                say(format_args!("chunk {chunk} of {chunks}: {perplexity:.4}"));
            }
        };
        let result = engine.perplexity(&tokens, ctx, chunks, progress)?;
        warn_of_loss(engine.device_problem());
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
