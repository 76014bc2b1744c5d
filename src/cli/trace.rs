//! `forebay trace`

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use forebay_models::files::write_output;
use forebay_traces::events::Trace as Recorded;
use forebay_traces::page::page;
use forebay_traces::report::Report;

use super::output::{check_targets, print_json, print_text};

#[derive(Debug, Subcommand)]
pub enum Trace {
    /// Bubbles per core and stage with their causes, and the critical path of the median and the P99 token.
    Report(ReportArguments),
}

#[derive(Debug, Args)]
pub struct ReportArguments {
    /// A trace written by `forebay run --trace`.
    file: PathBuf,
    /// Also write an HTML page: the bottleneck, the timelines of these two tokens, the fractions.
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl Trace {
    pub fn execute(self) -> anyhow::Result<()> {
        let Self::Report(arguments) = self;
        arguments.execute()
    }
}

impl ReportArguments {
    fn execute(self) -> anyhow::Result<()> {
        if let Some(html) = &self.html {
            check_targets(&[("--html", html)], &[("the trace", &self.file)])?;
        }
        let recorded = Recorded::read(&self.file)?;
        let report = Report::of(&recorded);
        match self.json {
            true => print_json(&report.to_json())?,
            false => print_text(&format!("{report}\n"))?,
        }
        let Some(html) = &self.html else {
            return Ok(());
        };
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let page = page(&recorded, &report, &name)
            .with_context(|| format!("cannot draw {}", self.file.display()))?;
        write_output(html, |mut file| file.write_all(page.as_bytes())).with_context(|| {
            let html = html.display();
            format!("cannot write {html}; give --html a file name in a writable folder")
        })
    }
}
