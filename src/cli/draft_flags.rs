//! Tokens that are run ahead, and the model that drafts them.

use std::path::PathBuf;

use clap::Args;
use forebay::EngineBuilder;

#[derive(Clone, Debug, Default, Args)]
pub struct DraftFlags {
    /// A smaller model with the same tokens: what it would say next is run ahead where that is faster; the tokens stay
    /// the same. It is all in memory, as a part of --memory.
    #[arg(long, value_name = "MODEL", conflicts_with = "no_drafts")]
    #[arg(help_heading = "Model")]
    draft: Option<PathBuf>,
    /// Run no tokens ahead. By default, tokens that followed the last ones earlier in the text, or that the model
    /// expects without what it reads from disk, are run in the same step where that is faster; the tokens are the same.
    #[arg(long, help_heading = "Advanced")]
    no_drafts: bool,
}

impl DraftFlags {
    /// Applies the flags.
    pub fn configure(&self, builder: EngineBuilder) -> EngineBuilder {
        let builder = builder.drafts(!self.no_drafts);
        match &self.draft {
            Some(model) => builder.draft_model(model),
            None => builder,
        }
    }
}
