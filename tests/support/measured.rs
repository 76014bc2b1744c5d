//! `forebay run` as a child process whose memory is watched.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::group::Group;
use crate::support::{TemporaryFile, json, number, program};

/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;

/// A finished run of the program.
pub struct Run {
    /// What `--stats` wrote.
    pub statistics: Value,
    /// The highest resident set seen from outside, bytes.
    pub peak_seen: u64,
}

impl Run {
    /// The highest resident set by its own account, bytes.
    pub fn peak(&self) -> u64 {
        number(&self.statistics, "/memory/peak_rss_bytes") as u64
    }

    /// What must not depend on the memory: tokens and the hash of all logits.
    pub fn result(&self) -> (&Value, &Value) {
        (&self.statistics["tokens"], &self.statistics["logits_hash"])
    }
}

/// `forebay run` on a model (`None`: the demo) for `n` tokens.
pub fn command(model: Option<&Path>, n: usize, memory: Option<u64>, stats: &Path) -> Command {
    let mut command = program();
    command
        .arg("run")
        .args(model)
        .args(["--greedy", "--quiet", "--ignore-eog", "-t", "2"]);
    command.args(["-p", "Once upon a time, there was", "-n", &n.to_string()]);
    command.arg("--stats").arg(stats);
    if let Some(bytes) = memory {
        command.args(["--memory", &bytes.to_string()]);
    }
    command
}

/// `VmHWM` of a running process: the kernel's own high-water mark. `None` until the process has memory of its own: a
/// starting process shares its parent's for a moment, even after `spawn` returns (the kernel wakes the parent of a
/// `vfork` before it changes the memory), and the parent's mark would be taken for the child's.
fn high_water(child: &Child) -> Option<u64> {
    let executable = std::fs::read_link(format!("/proc/{}/exe", child.id())).ok()?;
    if std::env::current_exe().is_ok_and(|own| own == executable) {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Runs a command to its end: how it ended, what it said on standard error, and the highest resident set seen.
pub fn watch(mut command: Command) -> (ExitStatus, String, u64) {
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("spawn");
    let mut peak_seen = 0;
    let status = loop {
        peak_seen = peak_seen.max(high_water(&child).unwrap_or(0));
        if let Some(status) = child.try_wait().expect("wait") {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut errors = String::new();
    let stderr = child.stderr.as_mut().expect("piped");
    std::io::Read::read_to_string(stderr, &mut errors).expect("UTF-8");
    (status, errors, peak_seen)
}

/// Runs to the end, as a member of `group` if there is one.
///
/// # Panics
/// If the run fails or is killed.
pub fn run(model: Option<&Path>, n: usize, memory: Option<u64>, group: Option<&Group>) -> Run {
    let model_name = model.and_then(Path::file_stem).unwrap_or_default();
    let name = format!(
        "{}-{memory:?}-{n}-{}.json",
        model_name.display(),
        group.is_some()
    );
    let stats = TemporaryFile::new(&name);
    let mut command = command(model, n, memory, &stats.0);
    if let Some(group) = group {
        command = group.run(&command);
    }
    run_command(command, &stats.0)
}

/// Runs a command that writes `stats` to its end.
///
/// # Panics
/// If it fails or is killed.
pub fn run_command(command: Command, stats: &Path) -> Run {
    let what = format!("{command:?}");
    let (status, errors, peak_seen) = watch(command);
    assert!(status.success(), "{what}: {status}: {errors}");
    Run {
        statistics: json(stats),
        peak_seen,
    }
}

/// The budget that the program itself names as the minimum.
pub fn least_budget(model: Option<&Path>, n: usize) -> u64 {
    let stats = TemporaryFile::new("never-written.json");
    let output = command(model, n, Some(MIB), &stats.0)
        .output()
        .expect("run");
    assert!(!output.status.success() && output.stdout.is_empty());
    let message = String::from_utf8_lossy(&output.stderr);
    let (_, rest) = message.rsplit_once("give --memory ").expect(&message);
    let (mib, _) = rest.split_once("MiB").expect(&message);
    mib.parse::<u64>().expect(&message) * MIB
}
