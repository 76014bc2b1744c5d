//! How long a context is.

use clap::Args;
use forebay::EngineBuilder;

#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ContextFlag {
    /// Positions of the KV cache, at most what the model was trained for; 0 is all of that [default: 4096, or more if
    /// the prompt is likely to need more, or less if
    /// the budget allows less, or if the prompt and -n need less].
    #[arg(
        long,
        short = 'c',
        alias = "ctx-size",
        value_name = "N",
        help_heading = "Model"
    )]
    ctx: Option<usize>,
}

impl ContextFlag {
    /// Whether the length is given.
    pub fn is_given(&self) -> bool {
        self.ctx.is_some()
    }

    /// Applies the flag.
    pub fn configure(&self, builder: EngineBuilder) -> EngineBuilder {
        match self.ctx {
            Some(0) => builder.trained_context(),
            Some(n) => builder.context(n),
            None => builder,
        }
    }
}
