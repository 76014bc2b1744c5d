//! The model that a command runs.

use std::path::{Path, PathBuf};

use clap::Args;

#[derive(Clone, Debug, Default, Args)]
pub struct ModelArgument {
    /// A .gguf or .fbay file, or a safetensors folder; the embedded demo model if omitted.
    #[arg(value_name = "MODEL")]
    positional: Option<PathBuf>,
    /// The same as a flag, as in other programs.
    #[arg(long = "model", short = 'm', value_name = "MODEL", hide = true)]
    #[arg(conflicts_with = "positional", allow_hyphen_values = true)]
    flag: Option<PathBuf>,
}

impl ModelArgument {
    /// The model's path; `None` for the demo.
    pub fn path(&self) -> Option<&Path> {
        self.positional.as_deref().or(self.flag.as_deref())
    }
}
