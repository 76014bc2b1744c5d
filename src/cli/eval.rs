//! `forebay eval`

mod kl;
mod multiple_choice;
mod perplexity;

use clap::Subcommand;
use forebay::Engine;
use forebay_models::tokenizer::EncodeOptions;

/// Tokens per step while scoring.
const BATCH: usize = 128;

#[derive(Debug, Subcommand)]
pub enum Eval {
    /// Perplexity of a text by llama.cpp's protocol.
    Perplexity(Box<perplexity::Perplexity>),
    /// Divergence of a run from a reference: of a quantisation, a KV format, a threshold or predictors.
    Kl(Box<kl::Kl>),
    /// Accuracy on multiple-choice questions, such as HellaSwag's.
    MultipleChoice(Box<multiple_choice::MultipleChoice>),
}

impl Eval {
    pub fn execute(self) -> anyhow::Result<()> {
        match self {
            Self::Perplexity(perplexity) => perplexity.execute(),
            Self::Kl(kl) => kl.execute(),
            Self::MultipleChoice(questions) => questions.execute(),
        }
    }
}

/// Tokens of a text that is scored: no special ones in it.
fn tokens_of(engine: &Engine, text: &str) -> anyhow::Result<Vec<u32>> {
    let options = EncodeOptions {
        add_bos: engine.tokenizer().adds_bos(),
        parse_special: false,
    };
    Ok(engine.tokenizer().encode(text, options)?)
}
