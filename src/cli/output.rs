//! Writing results for machines.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

/// Writes `value` as one JSON object to a file, or to standard output for `-`; a file appears whole or
/// not at all.
pub fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    if path == Path::new("-") {
        return print_text(&text);
    }
    let mut name = path
        .file_name()
        .context("--stats needs a file name")?
        .to_os_string();
    name.push(format!(".partial-{}", std::process::id()));
    let partial = path.with_file_name(name);
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().or_else(|e| {
        let _ = std::fs::remove_file(&partial);
        Err(e).with_context(|| format!("cannot write {}", path.display()))
    })
}

/// Prints text at once. A reader that has gone (`| head`) or a full disk is an error, not a panic as with
/// `println!`.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

/// Prints `value` as one JSON object on standard output.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    write_json(Path::new("-"), value)
}
