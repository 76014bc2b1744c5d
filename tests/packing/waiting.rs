//! A folder that somebody else has locked.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Duration;

use crate::gguf_writer::Model;
use crate::killed::{generate, whole_bundles};
use crate::program::{forebay, wait};
use crate::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn who_waits_for_a_folder_says_so() {
    let scratch = Scratch::new();
    let source = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    let folder = scratch.folder("packed");
    let mut pack = forebay(&folder, ["pack", "-q", "-o"]);
    pack.arg(folder.join("out.fbay")).arg(&source);
    let demo = forebay(&folder, ["run", "-n", "2", "-q"]);
    for command in [pack, generate(&source, &folder), demo] {
        said_and_done(command, &folder);
    }
    assert_eq!(whole_bundles(&folder).len(), 3);
}

/// Holds the lock of `folder` until the command has said that it waits; then it has to succeed.
fn said_and_done(mut command: Command, folder: &std::path::Path) {
    let lock = File::open(folder).expect("readable");
    lock.lock().expect("nobody else has it");
    let mut child = command.spawn().expect("the program starts");
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = said.read_line(&mut line);
        let _ = send.send(line);
        let _ = std::io::copy(&mut said, &mut std::io::sink());
    });
    let line = receive.recv_timeout(Duration::from_secs(10));
    drop(lock);
    let status = wait(&mut child, LIMIT).expect("it ends");
    let line = line.unwrap_or_else(|_| panic!("{command:?} waits in silence"));
    let folder = folder.to_str().expect("Unicode");
    assert!(line.contains("waiting") && line.contains(folder), "{line}");
    assert!(status.success(), "{status}");
}
