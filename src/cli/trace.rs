//! `forebay trace`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use forebay::traces::report::Report;

use super::output::print_text;

#[derive(Debug, Subcommand)]
pub enum Trace {
    /// Bubbles per core and stage, with their causes.
    Report(ReportArguments),
}

#[derive(Debug, Args)]
pub struct ReportArguments {
    /// A trace written by `forebay run --trace`.
    file: PathBuf,
}

impl Trace {
    pub fn execute(self) -> anyhow::Result<()> {
        let Self::Report(arguments) = self;
        print_text(&format!("{}\n", Report::read(&arguments.file)?))
    }
}
