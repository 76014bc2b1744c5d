//! Links that somebody has put where files are written.

use std::os::unix::fs::symlink;

use crate::gguf_writer::Model;
use crate::namespaces::as_process_1;
use crate::program::{answer, forebay};
use crate::scratch::{Scratch, names_in};

/// Partial names could be guessed once: they had the process id, which in a namespace is 1.
#[test]
fn links_under_names_of_partial_files_are_not_followed() {
    let scratch = Scratch::new();
    let model = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    let victim = scratch.write("victim", "precious");
    let folder = scratch.folder("packed");
    let planted = [
        "out.fbay.partial-1",
        "out.fbay.partial-1-0",
        "stats.json.partial-1",
        "trace.json.1-0.tmp",
    ];
    for name in planted {
        symlink(&victim, folder.join(name)).expect("a link");
    }
    let mut pack = forebay(&folder, ["pack", "-q", "-o"]);
    pack.arg(folder.join("out.fbay")).arg(&model);
    let mut run = forebay(
        &folder,
        ["run", "-p", "the", "-n", "2", "-q", "--ctx", "32"],
    );
    run.arg(folder.join("out.fbay")).arg("--cold");
    run.arg("--stats").arg(folder.join("stats.json"));
    run.arg("--trace").arg(folder.join("trace.json"));
    for command in [pack, run] {
        let Some(command) = as_process_1(&command) else {
            return;
        };
        let said = answer(command);
        assert!(said.status.success(), "{}", said.stderr);
    }
    assert_eq!(std::fs::read(&victim).expect("there"), b"precious");
    for name in ["out.fbay", "stats.json", "trace.json"] {
        let kind = folder.join(name).symlink_metadata().expect(name);
        assert!(kind.is_file(), "{name} is a link");
    }
    let partial = |n: &String| n.contains("partial") || n.ends_with("tmp");
    let left = names_in(&folder).into_iter().filter(partial);
    assert!(left.clone().all(|n| planted.contains(&&*n)), "{left:?}");
}
