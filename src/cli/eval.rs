//! `forebay eval`

mod experts;
mod kl;
mod multiple_choice;
mod perplexity;

use std::path::Path;

use clap::Subcommand;
use forebay::quality::Divergence;
use forebay::{Engine, EngineBuilder};
use forebay_models::tokenizer::EncodeOptions;

use super::engine_flags::EngineFlags;
use super::progress::reporter;

/// Tokens per step while scoring.
const BATCH: usize = 128;

#[derive(Debug, Subcommand)]
pub enum Eval {
    /// Perplexity of a text by llama.cpp's protocol.
    Perplexity(Box<perplexity::Perplexity>),
    /// Divergence of a run from a reference: of a quantisation, a KV format, a threshold or predictors.
    Kl(Box<kl::Kl>),
    /// Divergence of a run with --experts, --drop-cold-experts or --prefer-cached-experts from the run with all
    /// experts, and what either reads.
    Experts(Box<experts::Experts>),
    /// Accuracy on multiple-choice questions, such as HellaSwag's.
    MultipleChoice(Box<multiple_choice::MultipleChoice>),
}

impl Eval {
    pub fn execute(self) -> anyhow::Result<()> {
        match self {
            Self::Perplexity(perplexity) => perplexity.execute(),
            Self::Kl(kl) => kl.execute(),
            Self::Experts(experts) => experts.execute(),
            Self::MultipleChoice(questions) => questions.execute(),
        }
    }
}

/// Makes engines for texts of `ctx` tokens, most of whose logits are wanted.
fn builder(
    model: &Path,
    ctx: usize,
    flags: &EngineFlags,
    quiet: bool,
) -> anyhow::Result<EngineBuilder> {
    let builder = Engine::builder().model(model).context(ctx);
    let builder = builder.max_batch(BATCH.min(ctx)).max_logits(32);
    let builder = flags.configure(builder)?;
    Ok(builder.on_preparation(reporter(quiet)))
}

/// The engine of that builder.
fn engine(model: &Path, ctx: usize, flags: &EngineFlags, quiet: bool) -> anyhow::Result<Engine> {
    Ok(builder(model, ctx, flags, quiet)?.build()?)
}

/// The line that says how far a run is from its reference.
fn spread(d: &Divergence) -> String {
    format!(
        "mean KL divergence {:.6} ± {:.6} (median {:.6}, 99% below {:.6}, largest {:.6})\n",
        d.mean, d.stderr, d.median, d.p99, d.max
    )
}

/// Tokens of a text that is scored: no special ones in it.
fn tokens_of(engine: &Engine, text: &str) -> anyhow::Result<Vec<u32>> {
    let options = EncodeOptions {
        add_bos: engine.tokenizer().adds_bos(),
        parse_special: false,
    };
    Ok(engine.tokenizer().encode(text, options)?)
}
