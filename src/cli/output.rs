//! Writing results and talk.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use anyhow::{Context, bail};
use forebay::Engine;
use forebay_models::files::{check_output, folder_of, write_output};
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

/// Files of a folder of safetensors beside the tensors. What is in them is JSON and text, as in others.
const BESIDE_TENSORS: [&str; 5] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
];

/// Checks, before what takes long, that the files that flags name can be written in the end, that none is a model, and
/// that none is another one of them, or one of `inputs`.
///
/// # Errors
/// What is wrong with the first such file.
pub fn check_targets(outputs: &[(&str, &Path)], inputs: &[(&str, &Path)]) -> anyhow::Result<()> {
    for (i, (flag, path)) in outputs.iter().enumerate() {
        check_target(flag, path)?;
        let mut others = inputs.iter().chain(&outputs[..i]);
        if let Some((other, _)) = others.find(|(_, other)| is_same_file(path, other)) {
            let name = path.display();
            bail!(
                "{flag} {name}: {other} is the same file, which would be lost; give another file name"
            );
        }
    }
    Ok(())
}

/// Checks, before what takes long, that the file that `flag` names can be written in the end, and is no model.
///
/// # Errors
/// It cannot, or is one.
pub fn check_target(flag: &str, path: &Path) -> anyhow::Result<()> {
    let name = path.display();
    if path == Path::new("-") {
        bail!(
            "{flag} -: this is not written to standard output; give a file name (./- for a file of this name)"
        );
    }
    if is_model(path) {
        bail!(
            "{flag} {name}: this file is a model, or a part of one, which would be lost; give another file name"
        );
    }
    check_output(path).with_context(|| {
        format!("cannot write {name} (give {flag} a file name in a writable folder)")
    })
}

/// Whether both names are one file's. Pipes and devices keep nothing that could be lost.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| match path.canonicalize() {
        Ok(found) => found.is_file().then_some(found),
        Err(_) => Some(folder_of(path).canonicalize().ok()?.join(path.file_name()?)),
    };
    place(one).is_some_and(|one| place(other) == Some(one))
}

/// Whether a file is a model or belongs to one: by how it begins (GGUF, PowerInfer's, packed, safetensors), or by its
/// name and what is beside it.
fn is_model(path: &Path) -> bool {
    // To open a pipe is to wait for who writes to it.
    let Some(found) = path.metadata().ok().filter(|found| found.is_file()) else {
        return false;
    };
    let mut start = Vec::new();
    // What cannot be read has no beginning.
    let _ = File::open(path).and_then(|file| file.take(9).read_to_end(&mut start));
    let begins = [b"GGUF", b"PWRI", b"FORE"]
        .iter()
        .any(|magic| start.starts_with(*magic));
    // The length of a header in JSON, and its first byte.
    let is_tensors = start
        .last_chunk()
        .zip(start.first_chunk())
        .is_some_and(|(brace, length)| {
            *brace == *b"{" && start.len() == 9 && u64::from_le_bytes(*length) < found.len()
        });
    begins || is_tensors || is_beside_tensors(path)
}

/// Whether a file that is there is one of a folder of safetensors.
fn is_beside_tensors(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") {
        return true;
    }
    let mut beside = folder_of(path).read_dir().into_iter().flatten().flatten();
    BESIDE_TENSORS.contains(&&*name)
        && beside
            .any(|entry| Path::new(&entry.file_name()).extension() == Some("safetensors".as_ref()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_and_what_belongs_to_them_are_no_outputs() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("writable");
            path
        };
        let stats = write("config.json", b"{\"model\":1}");
        check_target("--stats", &stats).expect("no model is beside it");
        write("model.safetensors", b"");
        let header = [&2_u64.to_le_bytes()[..], b"{}"].concat();
        for path in [
            stats,
            write("model.safetensors", b""),
            write("model.safetensors.index.json", b"{}"),
            write("tensors", &header),
            write("a", b"GGUF"),
            write("b", b"FORE and more"),
        ] {
            let refusal = check_target("--stats", &path).expect_err("a model");
            assert!(refusal.to_string().contains("a model"), "{refusal}");
        }
        for path in [write("empty", b""), write("stats.json", b"{\"model\":1}")] {
            check_target("--stats", &path).expect("no model");
        }
        let refusal = check_target("--html", Path::new("-")).expect_err("a name is missing");
        assert!(refusal.to_string().contains("--html -"), "{refusal}");
    }

    #[test]
    fn no_file_is_written_twice_or_read_and_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let [one, link, new] = ["one", "link", "new"].map(|name| folder.path().join(name));
        std::fs::write(&one, "text").expect("writable");
        std::os::unix::fs::symlink(&one, &link).expect("a link");
        let new_too = folder.path().join(".").join("new");
        let outputs = [("--stats", &*one), ("--trace", &*new)];
        check_targets(&outputs, &[]).expect("two files");
        for (outputs, inputs) in [
            ([("--stats", &*one), ("--trace", &*link)], &[][..]),
            ([("--stats", &*new), ("--trace", &*new_too)], &[]),
            (
                [("--stats", &*new), ("--trace", &*link)],
                &[("the prompt", &*one)],
            ),
        ] {
            let refusal = check_targets(&outputs, inputs).expect_err("one file");
            assert!(refusal.to_string().contains("the same file"), "{refusal}");
        }
        let nothing = Path::new("/dev/null");
        check_targets(
            &[("--stats", nothing), ("--trace", nothing)],
            &[("-f", nothing)],
        )
        .expect("devices");
    }
}
