//! `forebay completions`

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use super::Arguments;
use super::output::print_text;

#[derive(Debug, Args)]
pub struct Completions {
    /// The shell that is to complete commands and options.
    shell: Shell,
}

impl Completions {
    pub fn execute(self) -> anyhow::Result<()> {
        let mut script = Vec::new();
        let program = env!("CARGO_PKG_NAME");
        generate(self.shell, &mut Arguments::command(), program, &mut script);
        print_text(&String::from_utf8(script)?)
    }
}
