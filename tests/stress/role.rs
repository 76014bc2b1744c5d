//! Parts of this test program that need a process of their own: for their memory, threads or files to be counted, or
//! to be a neighbour of the engine.

use std::process::Command;

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

/// Bytes that a role was told in its environment.
///
/// # Panics
/// If there is no such number.
pub fn number(variable: &str) -> u64 {
    let value = std::env::var(variable).unwrap_or_else(|e| panic!("{variable}: {e}"));
    value.parse().unwrap_or_else(|e| panic!("{variable}: {e}"))
}
