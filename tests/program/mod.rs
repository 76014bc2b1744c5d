//! Running the real program under a time limit.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longer than any of these runs takes on a busy machine; a run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// What the program did.
#[derive(Debug)]
pub struct Answer {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// The program with these arguments, without a prompt on standard input, with `cache` as its folder for
/// packed models.
pub fn forebay<I: AsRef<std::ffi::OsStr>>(
    cache: &Path,
    arguments: impl IntoIterator<Item = I>,
) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).env("FOREBAY_CACHE", cache);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The same under a limit of the shell's `ulimit`. Files are limited in kilobytes, or half of that, by the shell.
pub fn with_limit(command: &Command, limit: &str) -> Command {
    let mut limited = Command::new("sh");
    limited
        .arg("-c")
        // Files that this process was started with would count, too.
        .arg(format!(
            "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ulimit {limit}; exec \"$0\" \"$@\""
        ))
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        limited.env(name, value.unwrap_or_default());
    }
    limited
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    limited
}

/// A user without any rights.
pub const NOBODY: u32 = 65_534;

/// Runs to the end as another user, if this one may become one.
pub fn as_nobody(mut command: Command) -> Option<Answer> {
    command.uid(NOBODY).gid(NOBODY);
    let mut probe = Command::new(command.get_program());
    probe.arg("--version").uid(NOBODY).gid(NOBODY);
    match probe.output() {
        Ok(output) if output.status.success() => Some(answer(command)),
        refusal => {
            eprintln!("SKIPPED: cannot run the program as another user: {refusal:?}");
            None
        }
    }
}

/// Runs to the end.
pub fn answer(mut command: Command) -> Answer {
    let mut child = command.spawn().expect("the program starts");
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let Some(status) = wait(&mut child, LIMIT) else {
        let _ = child.kill();
        panic!("{command:?} hangs: no end after {LIMIT:?}");
    };
    let text = |t: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&t.join().expect("a reader")).into_owned()
    };
    Answer {
        status,
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

/// Waits for the end, at most `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child to wait for") {
            return Some(status);
        }
        if start.elapsed() > limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}
