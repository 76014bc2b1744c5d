//! Packing is killed at many moments, found by watching the partial file grow: nothing half-written is
//! ever taken for a model, and what was left behind is cleared away by the next pack.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use forebay_models::block::BlockType;
use forebay_models::bundle::Bundle;

use crate::gguf_writer::Model;
use crate::program::{answer, forebay, wait};
use crate::scratch::{Scratch, found_in, names_in};

const LIMIT: Duration = Duration::from_secs(60);

/// Shares of the packed file that are written when the blow falls; at the last one everything is, but
/// for the header, the sync and the name.
const MOMENTS: [f64; 7] = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0];

/// A model of about 40 MB that takes a while to pack: F16, so Down is transposed.
pub fn model() -> Model {
    Model {
        d_model: 256,
        d_ff: 8192,
        n_layers: 3,
        block: BlockType::F16,
        ..Model::default()
    }
}

/// Starts `command` and has `blow` end it as soon as its partial file in `folder` has `wanted` bytes; `None` if it was
/// too late.
pub fn kill_with(
    mut command: Command,
    folder: &Path,
    wanted: u64,
    blow: impl FnOnce(&mut Child),
) -> Option<ExitStatus> {
    let before = found_in(folder, ".partial-");
    let mut child = command.spawn().expect("the program starts");
    let partial = partial_of(&mut child, folder, &before)?;
    let start = Instant::now();
    while std::fs::metadata(&partial).is_ok_and(|m| m.len() < wanted) {
        assert!(start.elapsed() < LIMIT, "it hangs");
    }
    blow(&mut child);
    // Reaped too: a process that still has an entry may still be packing, as far as others can tell.
    Some(wait(&mut child, LIMIT).expect("the blow ends it"))
}

/// As [`kill_with`], by SIGKILL; returns how many bytes the partial file had in the end.
fn kill_at(command: Command, folder: &Path, wanted: u64) -> Option<u64> {
    kill_with(command, folder, wanted, |child| {
        child.kill().expect("a child to kill")
    })?;
    let left = found_in(folder, ".partial-").pop()?;
    Some(left.metadata().expect("there").len())
}

/// The partial file that was not there before.
fn partial_of(child: &mut Child, folder: &Path, before: &[PathBuf]) -> Option<PathBuf> {
    let start = Instant::now();
    loop {
        let found = found_in(folder, ".partial-");
        if let Some(path) = found.into_iter().find(|p| !before.contains(p)) {
            return Some(path);
        }
        assert!(start.elapsed() < LIMIT, "no partial file appears");
        if child.try_wait().expect("a child").is_some() {
            return None;
        }
    }
}

/// Bundle files in `folder`, each of which must be whole.
pub fn whole_bundles(folder: &Path) -> Vec<PathBuf> {
    let bundles = found_in(folder, ".fbay").into_iter();
    let bundles: Vec<_> = bundles
        .filter(|p| p.extension().is_some_and(|e| e == "fbay"))
        .collect();
    for path in &bundles {
        let bundle = Bundle::open(path).expect("a file with its final name is whole");
        let mut bytes = Vec::new();
        for entry in &bundle.clusters {
            bundle
                .read_cluster(entry, &mut bytes)
                .expect("and so is its data");
        }
    }
    bundles
}

/// Kills `command` at all moments; afterwards only its last remains are in `folder`.
fn kill_at_all_moments(command: impl Fn() -> Command, folder: &Path, final_bytes: u64) {
    let mut lengths = Vec::new();
    for moment in MOMENTS {
        let killed = kill_at(command(), folder, (final_bytes as f64 * moment) as u64);
        let names = names_in(folder);
        let bundles = whole_bundles(folder);
        match killed {
            Some(bytes) => {
                assert!(
                    bundles.is_empty(),
                    "killed at {bytes} of {final_bytes} bytes: {names:?}"
                );
                assert_eq!(
                    found_in(folder, ".partial-").len(),
                    1,
                    "older remains are gone: {names:?}"
                );
                lengths.push(bytes);
            }
            // It was done before the blow fell, which only the last moment allows.
            None => {
                assert!(moment > 0.9, "it was faster than the test");
                assert_eq!(bundles.len(), 1, "{names:?}");
                std::fs::remove_file(&bundles[0]).expect("removable");
            }
        }
    }
    lengths.sort_unstable();
    lengths.dedup();
    eprintln!("killed at {lengths:?} of {final_bytes} bytes");
    assert!(
        lengths.len() >= 5,
        "too few distinct moments: {lengths:?} of {final_bytes}"
    );
}

pub fn generate(model: &Path, cache: &Path) -> Command {
    let mut command = forebay(
        cache,
        [
            "run", "-p", "the", "-n", "8", "--greedy", "--quiet", "--ctx", "32",
        ],
    );
    command.arg(model).arg("--cache").arg(cache);
    command
}

fn text_of(command: Command) -> String {
    let answer = answer(command);
    assert!(answer.status.success(), "{}", answer.stderr);
    answer.stdout
}

#[test]
fn a_pack_that_is_killed_leaves_nothing_that_could_be_used() {
    let scratch = Scratch::new();
    let source = model().writer().write(scratch.path(), "model.gguf");
    let other = scratch.folder("other");
    let right = text_of(generate(&source, &other));
    let reference = whole_bundles(&other).pop().expect("packed on the way");
    let final_bytes = std::fs::metadata(&reference).expect("there").len();

    // Explicitly, with a bare file name as the output: the folder is the present one.
    let folder = scratch.folder("packed");
    let pack = || {
        let mut command = forebay(&folder, ["pack", "-q", "-o", "out.fbay"]);
        command.arg(&source).current_dir(&folder);
        command
    };
    kill_at_all_moments(pack, &folder, final_bytes);
    text_of(pack());
    assert_eq!(names_in(&folder), ["out.fbay"], "remains are gone");
    let same = std::fs::read(folder.join("out.fbay")).expect("there");
    assert!(
        same == std::fs::read(&reference).expect("there"),
        "packing is deterministic"
    );
    assert_eq!(text_of(generate(&folder.join("out.fbay"), &folder)), right);

    // At the first use of the model.
    let cache = scratch.folder("cache");
    kill_at_all_moments(|| generate(&source, &cache), &cache, final_bytes);
    assert_eq!(text_of(generate(&source, &cache)), right);
    let names = names_in(&cache);
    assert!(names.len() == 1 && names[0].ends_with(".fbay"), "{names:?}");
}

#[test]
fn partial_files_that_somebody_writes_and_files_of_others_stay() {
    let scratch = Scratch::new();
    let source = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    let folder = scratch.folder("packed");
    // A writer holds the lock of its file; its process id says nothing, since it may be of another namespace.
    let (living, dead) = ("other.fbay.partial-4194999", "other.fbay.partial-1-0");
    let left = [
        "other.fbay.hot.partial-01234567",
        "other.fbay.profile.partial-01234567",
        "machine.json.partial-01234567",
    ];
    let foreign = ["notes.txt.partial-1", "out.fbay.partial-list.txt"];
    for name in [living, dead].iter().chain(&left).chain(&foreign) {
        std::fs::write(folder.join(name), "half of something").expect("writable");
    }
    let writer = std::fs::File::open(folder.join(living)).expect("there");
    writer.lock().expect("nobody else has it");
    let mut pack = forebay(&folder, ["pack", "-q"]);
    pack.arg(&source).arg("-o").arg(folder.join("out.fbay"));
    text_of(pack);
    let mut expected = [&[living, "out.fbay"][..], &foreign].concat();
    expected.sort_unstable();
    assert_eq!(names_in(&folder), expected);
}
