//! `forebay eval kl`

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use forebay::Engine;
use forebay::quality::{self, Divergence, LogitsReader};

use super::super::engine_flags::EngineFlags;
use super::super::numbers::at_least;
use super::super::output::{check_targets, print_json, print_text, say, warn_of_loss};
use super::super::text::read_text;
use super::{engine, spread, tokens_of};

/// Tokens per chunk.
const CTX: u32 = 512;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("way").required(true).args(["save", "against"]))]
pub struct Kl {
    /// A .gguf or .fbay file, or a safetensors folder.
    model: PathBuf,
    /// Save this run's logits as the reference, in llama.cpp's format: about 2 bytes per token of the vocabulary for
    /// every second token of the text.
    #[arg(long, value_name = "OUT", requires = "file")]
    save: Option<PathBuf>,
    /// Compare with saved logits, also those that llama.cpp's `--kl-divergence-base` wrote.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "ctx"])]
    against: Option<PathBuf>,
    /// The text; a comparison takes the reference's.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineFlags,
    /// Tokens per chunk; the second half of each is scored [default: 512].
    #[arg(long, short = 'c', alias = "ctx-size", value_name = "N", value_parser = at_least::<3>)]
    ctx: Option<u32>,
    /// Chunks to evaluate [default: all].
    #[arg(long, value_name = "N", value_parser = at_least::<1>)]
    chunks: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Kl {
    pub fn execute(self) -> anyhow::Result<()> {
        match &self.against {
            Some(reference) => self.compare(reference),
            None => self.save(),
        }
    }

    fn engine(&self, ctx: usize) -> anyhow::Result<Engine> {
        engine(&self.model, ctx, &self.engine, self.json)
    }

    fn chunks(&self) -> Option<usize> {
        self.chunks.map(|n| n as usize)
    }

    fn save(&self) -> anyhow::Result<()> {
        let (Some(out), Some(file)) = (&self.save, &self.file) else {
            return Ok(()); // clap asks for both
        };
        check_targets(&[("--save", out)], &[("the text", file)])?;
        let text = read_text(file, "text")?;
        let ctx = self.ctx.unwrap_or(CTX) as usize;
        let engine = self.engine(ctx)?;
        let tokens = tokens_of(&engine, &text)?;
        let said = |chunk, chunks| {
            if !self.json {
                say(format_args!("chunk {chunk} of {chunks}"));
            }
        };
        quality::save(&engine, out, (&tokens, ctx), self.chunks(), said)?;
        warn_of_loss(engine.device_problem());
        Ok(())
    }

    fn compare(&self, reference: &std::path::Path) -> anyhow::Result<()> {
        let ctx = LogitsReader::open(reference)?.header().ctx;
        let engine = self.engine(ctx)?;
        let json = self.json;
        let said = |chunk, chunks, so_far: &Divergence| {
            if !json {
                let mean = so_far.mean;
                say(format_args!("chunk {chunk} of {chunks}: {mean:.6}"));
            }
        };
        let d = quality::compare(&engine, reference, self.chunks(), said)?;
        warn_of_loss(engine.device_problem());
        if json {
            return print_json(&d);
        }
        print_text(&format!(
            "{}same most likely token {:.2}%, probability of the next token differs by {:.2}% (RMS)\n\
             perplexity {:.4}, reference {:.4}, over {} tokens\n",
            spread(&d),
            100.0 * d.same_top,
            100.0 * d.rms_probability,
            d.perplexity,
            d.reference_perplexity,
            d.tokens
        ))
    }
}
