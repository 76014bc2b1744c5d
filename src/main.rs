//! The `forebay` command line.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::run(cli::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: error: {}", message_of(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, but for causes that the error has quoted already.
fn message_of(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |message, cause| {
            match message.contains(&cause) {
                _ if message.is_empty() => cause,
                true => message,
                false => format!("{message}: {cause}"),
            }
        })
}
