//! Two packers whose process ids are equal, as in two containers that share a folder.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::gguf_writer::Model;
use crate::killed::whole_bundles;
use crate::program::{forebay, wait};
use crate::scratch::{Scratch, names_in};

const ROUNDS: usize = 20;
const LIMIT: Duration = Duration::from_secs(60);

/// The command as process 1 of a namespace of its own. `None` where this process may not make one, which is said aloud.
pub fn as_process_1(command: &Command) -> Option<Command> {
    let unshare = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        unshare
    };
    match unshare().arg("true").output() {
        Ok(output) if output.status.success() => {}
        refusal => {
            eprintln!("SKIPPED: cannot make a namespace of processes here: {refusal:?}");
            return None;
        }
    }
    let mut first = unshare();
    first.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        first.env(name, value.unwrap_or_default());
    }
    first.stdin(Stdio::null()).stdout(Stdio::piped());
    first.stderr(Stdio::piped());
    Some(first)
}

fn end(mut child: Child) {
    let status = wait(&mut child, LIMIT).expect("it ends");
    let output = child.wait_with_output().expect("its output");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(status.success(), "{status}: {said}");
}

/// Starts both commands at once, again and again; `folder` has one sound packed model afterwards.
fn expect_one_sound_file(commands: [&Command; 2], folder: &Path) {
    for round in 0..ROUNDS {
        let both = commands.map(|command| {
            let mut command = as_process_1(command).expect("it worked before");
            command.spawn().expect("the program starts")
        });
        both.into_iter().for_each(end);
        let bundles = whole_bundles(folder);
        assert_eq!(bundles.len(), 1, "round {round}: {:?}", names_in(folder));
        assert_eq!(names_in(folder).len(), 1, "{:?}", names_in(folder));
        std::fs::remove_file(&bundles[0]).expect("removable");
    }
}

#[test]
fn packers_with_equal_process_ids_do_not_mix_their_files() {
    let scratch = Scratch::new();
    let model = |seed, name: &str| {
        let model = Model {
            d_model: 256,
            d_ff: 1024,
            n_layers: 2,
            seed,
            ..Model::default()
        };
        model.writer().write(scratch.path(), name)
    };
    let (one, other) = (model(1, "one.gguf"), model(2, "other.gguf"));
    let folder = scratch.folder("packed");
    let pack = |source: &Path| {
        let mut command = forebay(&folder, ["pack", "-q", "-o"]);
        command.arg(folder.join("out.fbay")).arg(source);
        command
    };
    if as_process_1(&pack(&one)).is_none() {
        return;
    }
    expect_one_sound_file([&pack(&one), &pack(&other)], &folder);
    let cache = scratch.folder("cache");
    let run = || {
        let flags = ["run", "-p", "the", "-n", "2", "-q", "--ctx", "32"];
        let mut command = forebay(&cache, flags);
        command.arg(&one).arg("--cold");
        command
    };
    expect_one_sound_file([&run(), &run()], &cache);
}
