//! A conversion that is asked to stop leaves nothing behind.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::killed::{generate, kill_with, model};
use crate::program::forebay;
use crate::scratch::{Scratch, names_in};

/// Starts `command`, sends it `signal` when a part of its file is written, and returns its exit code.
fn stopped(command: Command, folder: &Path, signal: &str) -> Option<i32> {
    let ended = kill_with(unignoring(&command), folder, 2 << 20, |child| {
        let mut kill = Command::new("kill");
        kill.args(["-s", signal, &child.id().to_string()]);
        assert!(kill.status().is_ok_and(|s| s.success()));
    });
    ended.expect("it was still packing").code()
}

/// The command with the usual effect of signals: jobs in the background of a script are started to ignore SIGINT.
fn unignoring(command: &Command) -> Command {
    let mut usual = Command::new("env");
    usual.arg("--default-signal=INT,TERM,HUP");
    usual.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        usual.env(name, value.unwrap_or_default());
    }
    usual.stdout(Stdio::null()).stderr(Stdio::null());
    usual
}

#[test]
fn a_pack_that_is_interrupted_or_terminated_removes_its_partial_file() {
    let scratch = Scratch::new();
    let source = model().writer().write(scratch.path(), "model.gguf");
    let folder = scratch.folder("packed");
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let mut pack = forebay(&folder, ["pack", "-q", "-o"]);
        pack.arg(folder.join("out.fbay")).arg(&source);
        for command in [pack, generate(&source, &folder)] {
            assert_eq!(stopped(command, &folder, signal), Some(code), "{signal}");
            assert!(names_in(&folder).is_empty(), "{:?}", names_in(&folder));
        }
    }
}
