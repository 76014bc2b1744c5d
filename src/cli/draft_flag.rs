//! The model that drafts.

use std::path::PathBuf;

use clap::Args;
use forebay::EngineBuilder;

#[derive(Clone, Debug, Default, Args)]
pub struct DraftFlag {
    /// A smaller model with the same tokens: what it would say next is run ahead where that is faster; the tokens stay
    /// the same. It is all in memory, as a part of --memory.
    #[arg(long, value_name = "MODEL", conflicts_with = "no_drafts")]
    #[arg(help_heading = "Model")]
    draft: Option<PathBuf>,
}

impl DraftFlag {
    /// Applies the flag.
    pub fn configure(&self, builder: EngineBuilder) -> EngineBuilder {
        match &self.draft {
            Some(model) => builder.draft_model(model),
            None => builder,
        }
    }
}
