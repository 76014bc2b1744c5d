//! The `forebay` command line.
#![forbid(unsafe_code)]
// They panic if the stream is closed or full; `cli::output` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod cli;

use std::process::ExitCode;

use forebay_plans::room_to_start::check_limits;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let arguments = match cli::Arguments::of_program() {
        Ok(Some(arguments)) => arguments,
        told => return code_of(told.map(drop)),
    };
    let done = check_limits().map_err(Into::into).and_then(|()| {
        keep_running_past_file_limits();
        leave_caught_panics_unsaid();
        cli::stopping::watch();
        cli::run(arguments)
    });
    if let Err(error) = &done {
        cli::start_again_after(error);
    }
    code_of(done)
}

/// How the program ends, with a word about what went wrong.
fn code_of(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<cli::output::ReaderGone>() => ExitCode::from(READER_GONE),
        Err(error) => {
            cli::output::say(format_args!("forebay: error: {}", cli::message_of(&error)));
            match error.is::<cli::Interrupted>() {
                true => ExitCode::from(INTERRUPTED),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// As a shell calls the end by SIGINT.
const INTERRUPTED: u8 = 128 + 2;
/// As a shell calls the end by SIGPIPE, which is how other programs leave `| head`.
const READER_GONE: u8 = 128 + 13;

/// A write that meets a limit of file sizes (`ulimit -f`) shall be refused like any other, and cleaned up after; unless
/// its signal is handled it ends the process.
fn keep_running_past_file_limits() {
    /// Linux's number of SIGXFSZ, except on MIPS.
    const FILE_SIZE_LIMIT: i32 = 25;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    // Best effort. The handler stays when the runtime is dropped.
    if let Ok(runtime) = runtime {
        let _in_runtime = runtime.enter();
        let _ = signal(SignalKind::from_raw(FILE_SIZE_LIMIT));
    }
}

/// A panic that becomes an error is told as that error.
fn leave_caught_panics_unsaid() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !forebay_models::tokenizer::catches_panics() {
            usual(panic);
        }
    }));
}
