//! Parts of this test program that need a process of their own: for their memory, threads or files to be counted, or
//! to be a neighbour of the engine.

use std::path::PathBuf;
use std::process::Command;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::group::Group;
use crate::support::{TemporaryFile, json};

/// Where a role writes what it found out.
const REPORT: &str = "FOREBAY_ROLE_REPORT";

/// This program, as a process that runs the ignored test `name` only.
pub fn command(name: &str) -> Command {
    let program = std::env::current_exe().expect("a test program");
    let mut command = Command::new(program);
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command
}

/// Runs a role to its end and prints what it says.
///
/// # Panics
/// If it fails, or there is no such test.
pub fn run(name: &str, variables: &[(&str, String)]) {
    let mut command = command(name);
    command.envs(variables.iter().map(|(k, v)| (k, v)));
    finish(name, command);
}

/// Runs the command of a role to its end and prints what it says.
///
/// # Panics
/// If it fails, or there is no such test.
pub fn finish(name: &str, mut command: Command) {
    let output = command.output().expect("the program starts");
    let out = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    eprint!("{errors}");
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{name}: {}: {out}{errors}",
        output.status
    );
}

/// Runs the command of a role to its end, in `group` if there is one, and returns what it [tells](tell).
///
/// # Panics
/// If it fails, or there is no such test.
pub fn report<T: DeserializeOwned>(name: &str, mut command: Command, group: Option<&Group>) -> T {
    let path = TemporaryFile::new("report.json");
    command.env(REPORT, &path.0);
    let grouped = group.map(|group| group.run(&command));
    finish(name, grouped.unwrap_or(command));
    json(&path.0)
}

/// Tells whoever has started this role.
///
/// # Panics
/// If nobody has, or it cannot be written.
pub fn tell(report: &impl Serialize) {
    let path = PathBuf::from(std::env::var_os(REPORT).expect("a file"));
    let text = serde_json::to_string(report).expect("a report");
    std::fs::write(path, text).expect("written");
}

/// Bytes that a role was told in its environment.
///
/// # Panics
/// If there is no such number.
pub fn number(variable: &str) -> u64 {
    let value = std::env::var(variable).unwrap_or_else(|e| panic!("{variable}: {e}"));
    value.parse().unwrap_or_else(|e| panic!("{variable}: {e}"))
}
