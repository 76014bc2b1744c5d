//! Writing results and talk.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use anyhow::{Context, bail};
use forebay::Engine;
use forebay_models::files::{check_output, write_output};
use serde::Serialize;

/// Writes `value` as one JSON object to a file, or to standard output for `-`; a file appears whole or
/// not at all.
pub fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    if path == Path::new("-") {
        return print_text(&text);
    }
    write_output(path, |mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Checks, before what takes long, that the file that `flag` names can be written in the end, and is no model.
///
/// # Errors
/// It cannot, or is one.
pub fn check_target(flag: &str, path: &Path) -> anyhow::Result<()> {
    let name = path.display();
    if is_model(path) {
        bail!("{flag} {name}: this file is a model, which would be lost; give another file name");
    }
    check_output(path).with_context(|| {
        format!("cannot write {name} (give {flag} a file name in a writable folder)")
    })
}

/// Whether a file begins as models do: GGUF, PowerInfer's, or a packed one.
fn is_model(path: &Path) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    is_file && read.is_ok() && [b"GGUF", b"PWRI", b"FORE"].contains(&&magic)
}

/// Who read standard output wants no more of it (`| head`): the program ends without a word.
#[derive(Debug)]
pub struct ReaderGone;

impl Display for ReaderGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("standard output was closed by its reader")
    }
}

impl std::error::Error for ReaderGone {}

/// Prints text at once. A full disk is an error, not a panic as with `println!`.
///
/// # Errors
/// The text cannot be written; [`ReaderGone`] if the reader has closed standard output.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    print_with(|out| out.write_all(text.as_bytes()))
}

/// The same for what is written piece by piece.
///
/// # Errors
/// As [`print_text`].
pub fn print_with(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout());
    let written = write(&mut out).and_then(|()| out.flush());
    match written {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        written => written.context("cannot write to standard output"),
    }
}

/// Prints a message on standard error. If that is closed or full, the message is dropped: `eprintln!` would panic.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Warns that the device has failed, if there is such a `problem`: results are right, speeds are not the device's.
pub fn warn_of_loss(problem: Option<impl Display>) {
    if let Some(problem) = problem {
        say(format_args!("forebay: warning: {problem}"));
    }
}

/// Prints `value` as one JSON object on standard output.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    write_json(Path::new("-"), value)
}

/// Says what `-v` asks for before a run: the budget by item, notes about the system, the expected speed.
pub fn explain(engine: &Engine) {
    say(engine.budget());
    for note in engine.notes() {
        say(format_args!("note: {note}"));
    }
    if let Some(e) = engine.expected() {
        say(format_args!(
            "expected: {:.1} tokens per second, bound by {}",
            e.decode_tokens_per_second, e.bound_by
        ));
    }
}
