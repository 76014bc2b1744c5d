//! Writing results for machines.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use forebay::models::bundle::write_whole;
use serde::Serialize;

/// Writes `value` as one JSON object to a file, or to standard output for `-`; a file appears whole or
/// not at all.
pub fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    if path == Path::new("-") {
        return print_text(&text);
    }
    write_whole(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

/// Prints text at once. A reader that has gone (`| head`) or a full disk is an error, not a panic as with
/// `println!`.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// Says something beside the results, on standard error. Where that is closed or full it is left unsaid: `eprintln!`
/// would panic.
pub fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints `value` as one JSON object on standard output.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    write_json(Path::new("-"), value)
}
