//! `forebay trace`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use forebay::traces::report::Report;

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
        println!("{}", Report::read(&arguments.file)?);
        Ok(())
    }
}
