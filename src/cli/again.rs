//! A second start right after packing. What packing has freed is still resident, and so it counts against the budget;
//! a budget that is too small for this process may do for a fresh one.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay::Error;

static HAS_PACKED: AtomicBool = AtomicBool::new(false);
/// What was read from a pipe, and the pipe's name.
static PASSED: OnceLock<(PathBuf, String)> = OnceLock::new();

/// This process has packed a model.
pub fn note_packing() {
    HAS_PACKED.store(true, Ordering::Relaxed);
}

/// This process has read `text` to its end from `name`, a pipe, or from standard input, which is `-`: nobody can read
/// it there again.
pub fn note_passing(name: &Path, text: &str) {
    // A command reads one text.
    let _ = PASSED.set((name.to_owned(), text.to_owned()));
}

/// Replaces this process by a fresh one with the same arguments, if that may help against `error`: it finds the model
/// packed. Comes back if it does not help, or cannot be done.
pub fn start_again_after(error: &anyhow::Error) {
    let budget = matches!(error.downcast_ref::<Error>(), Some(Error::Budget(_)));
    if !budget || !HAS_PACKED.load(Ordering::Relaxed) {
        return;
    }
    // Best effort: the error is still there to be reported.
    let _ = start_again();
}

fn start_again() -> std::io::Result<()> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut program = Command::new(std::env::current_exe()?);
    program.arg0(name);
    match PASSED.get() {
        Some((name, text)) => {
            program.args(arguments.map(|argument| from_standard_input(argument, name.as_os_str())));
            program.stdin(rewound(text)?);
        }
        None => _ = program.args(arguments),
    }
    Err(program.exec())
}

/// The argument with which what came from the pipe `name` is read from standard input: `-f -` for `-f /dev/fd/63`.
fn from_standard_input(argument: OsString, name: &OsStr) -> OsString {
    match argument.as_bytes().strip_suffix(name.as_bytes()) {
        Some(option) if option.is_empty() || option == b"-f" || option.ends_with(b"=") => {
            OsString::from_vec([option, b"-"].concat())
        }
        _ => argument,
    }
}

/// A file without a name that holds `text`.
fn rewound(text: &str) -> std::io::Result<Stdio> {
    let path = std::env::temp_dir().join(format!("forebay-prompt-{}", std::process::id()));
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipes_name_becomes_standard_input() {
        for (argument, expected) in [
            ("/dev/fd/63", "-"),
            ("-f/dev/fd/63", "-f-"),
            ("--file=/dev/fd/63", "--file=-"),
            ("./dev/fd/63", "./dev/fd/63"),
            ("--x/dev/fd/63", "--x/dev/fd/63"),
            ("model.gguf", "model.gguf"),
        ] {
            assert_eq!(
                from_standard_input(argument.into(), "/dev/fd/63".as_ref()),
                expected
            );
        }
        // Standard input stays what it is.
        assert_eq!(from_standard_input("-".into(), "-".as_ref()), "-");
    }
}
