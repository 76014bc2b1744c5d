//! A second start right after packing. What packing has freed is still resident, and so it counts against the budget;
//! a budget that is too small for this process may do for a fresh one.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay::Error;

static HAS_PACKED: AtomicBool = AtomicBool::new(false);
static STANDARD_INPUT: OnceLock<String> = OnceLock::new();

/// This process has packed a model.
pub fn note_packing() {
    HAS_PACKED.store(true, Ordering::Relaxed);
}

/// This process has read `text` from standard input, to its end.
pub fn note_standard_input(text: &str) {
    // It is read once.
    let _ = STANDARD_INPUT.set(text.to_owned());
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
    program.arg0(name).args(arguments);
    if let Some(text) = STANDARD_INPUT.get() {
        program.stdin(rewound(text)?);
    }
    Err(program.exec())
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
