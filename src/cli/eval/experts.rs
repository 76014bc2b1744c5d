//! `forebay eval experts`

use std::path::PathBuf;

use clap::Args;
use forebay::quality::{AllExperts, ExpertsDivergence};
use forebay::{Decoded, Engine};
use forebay_plans::size::format_size;

use super::super::engine_flags::EngineFlags;
use super::super::expert_flags::ExpertFlags;
use super::super::numbers::at_least;
use super::super::output::{print_json, print_text, say, warn_of_loss};
use super::super::text::read_text;
use super::{builder, spread, tokens_of};

#[derive(Debug, Args)]
pub struct Experts {
    /// A .gguf or .fbay file, or a safetensors folder.
    model: PathBuf,
    /// The text.
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    engine: EngineFlags,
    /// Tokens per chunk; the first half of each is read as a prompt, the second token by token, and scored.
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

impl Experts {
    pub fn execute(self) -> anyhow::Result<()> {
        let text = read_text(&self.file, "text")?;
        let (ctx, chunks) = (self.ctx as usize, self.chunks.map(|n| n as usize));
        let said = |experts: &'static str| {
            move |chunk: usize, chunks: usize| {
                if !self.json {
                    say(format_args!("{experts}: chunk {chunk} of {chunks}"));
                }
            }
        };
        let engine = self.start(&ExpertFlags::default())?;
        let tokens = tokens_of(&engine, &text)?;
        let (fewer, texts) = (self.engine.experts.fewer(), (&tokens[..], ctx));
        let all = AllExperts::run(&engine, fewer, texts, chunks, said("all experts"))?;
        warn_of_loss(engine.device_problem());
        drop(engine);
        let engine = self.start(&self.engine.experts)?;
        let measured = all.compare(&engine, said("fewer experts"))?;
        warn_of_loss(engine.device_problem());
        measured.save(&engine)?;
        match self.json {
            true => print_json(&measured),
            false => print_text(&summary(&measured)),
        }
    }

    /// An engine with an empty cache, which the first half of the first chunk fills: both runs begin alike.
    fn start(&self, experts: &ExpertFlags) -> anyhow::Result<Engine> {
        let flags = EngineFlags {
            experts: experts.clone(),
            cold: true,
            ..self.engine.clone()
        };
        let builder = builder(&self.model, self.ctx as usize, &flags, self.json)?;
        Ok(builder.build()?)
    }
}

fn summary(measured: &ExpertsDivergence) -> String {
    let d = &measured.divergence;
    let per_token = |n: u64, of: &Decoded| n as f64 / of.tokens.max(1) as f64;
    let reads = |of: &Decoded| {
        format!(
            "{:.1} reads, {}",
            per_token(of.reads, of),
            format_size(per_token(of.bytes, of) as u64)
        )
    };
    format!(
        "{}same most likely token {:.2}%\n\
         perplexity {:.4}, with all experts {:.4}, over {} tokens\n\
         per token {}, with all experts {}; {:.1} clusters left out\n",
        spread(d),
        100.0 * d.same_top,
        d.perplexity,
        d.reference_perplexity,
        d.tokens,
        reads(&measured.fewer),
        reads(&measured.all),
        per_token(measured.fewer.left_out_clusters, &measured.fewer)
    )
}
