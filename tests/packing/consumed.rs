//! Packing that gives the source back needs little room, and whatever ends it, nothing is lost: the same command goes
//! on.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_models::block::BlockType;

use crate::gguf_writer::{Model, Random};
use crate::mount::Mount;
use crate::program::{answer, forebay, wait};
use crate::scratch::{Scratch, names_in};

const LIMIT: Duration = Duration::from_secs(60);

/// A model of about 27 MB in many layers, of which each is a small part.
fn model() -> Model {
    Model {
        d_model: 256,
        d_ff: 512,
        n_layers: 24,
        block: BlockType::F16,
        ..Model::default()
    }
}

/// The model, and its packed file made in the usual way; `None`, loudly, where no blocks are given back.
fn subject(scratch: &Scratch) -> Option<(PathBuf, Vec<u8>)> {
    let source = model().writer().write(scratch.path(), "model.gguf");
    let usual = scratch.join("usual.fbay");
    let mut pack = forebay(scratch.path(), ["pack", "-q", "-o"]);
    pack.arg(&usual).arg(&source);
    assert!(answer(pack).status.success());
    let bytes = std::fs::read(&usual).expect("packed");
    std::fs::remove_file(usual).expect("removable");
    let trial = Scratch::new();
    let small = Model::default().writer().write(trial.path(), "small.gguf");
    let answer = crate::program::answer(consume(&small, &trial.join("small.fbay")));
    if answer
        .stderr
        .contains("give blocks back on this file system")
    {
        eprintln!("SKIPPED: {}", answer.stderr);
        return None;
    }
    Some((source, bytes))
}

fn consume(source: &Path, out: &Path) -> Command {
    let folder = out.parent().expect("a folder");
    let mut command = forebay(folder, ["pack", "-q", "--consume", "-o"]);
    command.arg(out).arg(source);
    command
}

/// Bytes that a file takes on its device; 0 if it is not there.
fn taken(path: &Path) -> u64 {
    path.metadata().map_or(0, |m| m.blocks() * 512)
}

fn unfinished(out: &Path) -> PathBuf {
    out.with_extension("fbay.packing")
}

/// The program's refusal.
fn refusal(command: Command) -> String {
    let answer = answer(command);
    assert!(
        !answer.status.success(),
        "it was not refused: {}",
        answer.stdout
    );
    answer.stderr
}

#[test]
fn it_needs_a_tenth_more_room_and_the_source_is_gone_afterwards() {
    let scratch = Scratch::new();
    let Some((source, usual)) = subject(&scratch) else {
        return;
    };
    let out = scratch.join("out.fbay");
    let whole = taken(&source);
    let mut child = consume(&source, &out).spawn().expect("the program starts");
    let mut most = 0;
    while child.try_wait().expect("a child").is_none() {
        // The file appears under its name before the source goes.
        let packed = taken(&unfinished(&out)).max(taken(&out));
        most = most.max(taken(&source) + packed);
    }
    assert!(wait(&mut child, LIMIT).is_some_and(|status| status.success()));
    assert_eq!(names_in(scratch.path()), ["out.fbay"]);
    assert!(std::fs::read(&out).expect("there") == usual, "other bytes");
    let extra = most as f64 / whole as f64 - 1.0;
    eprintln!("{:.1}% more room than the source", extra * 100.0);
    assert!(extra < 0.1, "{most} for a source of {whole}");
}

/// In little room it is refused while the source is whole, or comes to its end, whatever the packed form is.
#[test]
fn a_device_with_too_little_room_is_refused_before_the_source_is_touched() {
    let scratch = Scratch::new();
    let Some(disk) = Mount::new(scratch.folder("disk"), "size=64m") else {
        return;
    };
    let model = Model {
        n_layers: 4,
        ..model()
    };
    let bytes = model.writer().bytes();
    let (source, out) = (disk.path().join("model.gguf"), disk.path().join("out.fbay"));
    let mut ends = [0; 2];
    for (flags, percent) in [
        (&[][..], [4, 10, 15, 20, 25, 30, 40]),
        (&["--quant", "f32"], [25, 90, 110, 120, 130, 150, 170]),
    ] {
        for percent in percent {
            std::fs::write(&source, &bytes).expect("room");
            disk.fill("filler", (bytes.len() * percent / 100) as u64);
            let mut command = consume(&source, &out);
            command.args(flags);
            let said = answer(command);
            let done = said.status.success();
            ends[usize::from(done)] += 1;
            if !done {
                assert!(
                    said.stderr.contains("are free"),
                    "{percent}%: {}",
                    said.stderr
                );
                assert_eq!(names_in(disk.path()), ["filler", "model.gguf"]);
                assert!(std::fs::read(&source).expect("there") == bytes, "touched");
            }
            for left in [&source, &out, &disk.path().join("filler")] {
                let _ = std::fs::remove_file(left);
            }
        }
    }
    assert!(ends.iter().all(|&n| n > 1), "refused and done: {ends:?}");
}

/// Downloads that are cached are links to files with other names.
#[test]
fn a_source_behind_a_link_is_gone_with_the_link() {
    let scratch = Scratch::new();
    let Some((source, _)) = subject(&scratch) else {
        return;
    };
    let (blobs, snapshot) = (scratch.folder("blobs"), scratch.folder("snapshot"));
    std::fs::rename(source, blobs.join("0123")).expect("movable");
    let link = snapshot.join("model.gguf");
    std::os::unix::fs::symlink("../blobs/0123", &link).expect("a link");
    let out = scratch.join("out.fbay");
    let said = answer(consume(&link, &out));
    assert!(said.status.success(), "{}", said.stderr);
    assert!(names_in(&blobs).is_empty() && names_in(&snapshot).is_empty());
    assert!(out.exists());
}

#[test]
fn ten_kills_at_random_moments_lose_nothing() {
    let scratch = Scratch::new();
    let Some((source, usual)) = subject(&scratch) else {
        return;
    };
    let out = scratch.join("out.fbay");
    let mut random = Random(0xf0);
    let mut killed = Vec::new();
    for n in 1..=10u64 {
        // Anywhere in the next tenth; what an earlier one wrote may be beyond that.
        let wanted = usual.len() as u64 * (n * 1000 - random.bits() % 1000) / 10_000;
        let mut child = consume(&source, &out).spawn().expect("the program starts");
        let start = Instant::now();
        while taken(&unfinished(&out)) < wanted && child.try_wait().expect("a child").is_none() {
            assert!(start.elapsed() < LIMIT, "it hangs");
        }
        child.kill().expect("a child to kill");
        wait(&mut child, LIMIT).expect("killed");
        killed.push(taken(&unfinished(&out)));
        if out.exists() {
            break;
        }
        // What is left is nobody's model.
        let cache = scratch.folder("cache");
        let mut run = forebay(&cache, ["run", "-p", "the", "-n", "1", "--quiet"]);
        run.arg(&source);
        let said = refusal(run);
        assert!(said.contains("pack --consume") || n == 1, "{said}");
    }
    eprintln!("killed at {killed:?} of {} bytes", usual.len());
    assert!(killed.len() >= 5, "it was faster than the test");
    // Perhaps only the removal of the source is left.
    if source.exists() || scratch.join("model.gguf.packing").exists() {
        let answer = answer(consume(&source, &out));
        assert!(answer.status.success(), "{}", answer.stderr);
    }
    assert!(std::fs::read(&out).expect("there") == usual, "other bytes");
    assert_eq!(
        names_in(scratch.path()).last().map(String::as_str),
        Some("out.fbay")
    );
}

/// Kills a conversion about in its middle.
fn interrupted(source: &Path, out: &Path, bytes: usize) {
    let mut child = consume(source, out).spawn().expect("the program starts");
    while taken(&unfinished(out)) < bytes as u64 / 2 {
        assert!(child.try_wait().expect("a child").is_none(), "too fast");
    }
    child.kill().expect("a child to kill");
    wait(&mut child, LIMIT).expect("killed");
}

#[test]
fn it_goes_on_only_with_what_it_began() {
    let scratch = Scratch::new();
    let Some((source, usual)) = subject(&scratch) else {
        return;
    };
    let out = scratch.join("out.fbay");
    interrupted(&source, &out, usual.len());
    let said = refusal(consume(&source, &scratch.join("other.fbay")));
    assert!(said.contains("out.fbay"), "{said}");
    let mut other = consume(&source, &out);
    other.args(["--quant", "q8_0"]);
    assert!(refusal(other).contains("begun with"), "other options");
    let journal = scratch.join("model.gguf.packing");
    for (path, named) in [(&journal, "journal"), (&unfinished(&out), "unfinished")] {
        let aside = scratch.join("aside");
        std::fs::rename(path, &aside).expect("movable");
        let said = refusal(consume(&source, &out));
        assert!(said.contains(named), "{said}");
        std::fs::rename(&aside, path).expect("movable");
    }
    let sound = std::fs::read(&journal).expect("there");
    let mut damaged = sound.clone();
    *damaged.last_mut().expect("not empty") ^= 1;
    std::fs::write(&journal, damaged).expect("writable");
    assert!(refusal(consume(&source, &out)).contains("checksum"));
    std::fs::write(&journal, sound).expect("writable");
    // What was given back is nowhere else: it must be what was written, or the source's remains stay.
    let sound = std::fs::read(unfinished(&out)).expect("there");
    let mut damaged = sound.clone();
    damaged[sound.len() / 4] ^= 1;
    let short = &sound[..sound.len() / 4];
    for (bytes, named) in [
        (&*damaged, "its checksum does not match"),
        (short, "shorter"),
    ] {
        std::fs::write(unfinished(&out), bytes).expect("writable");
        let said = refusal(consume(&source, &out));
        assert!(said.contains(named) && source.exists(), "{said}");
    }
    std::fs::write(unfinished(&out), sound).expect("writable");
    assert!(answer(consume(&source, &out)).status.success());
    assert!(std::fs::read(&out).expect("there") == usual, "other bytes");
    let said = refusal(consume(&source, &out));
    assert!(
        said.contains("it was given back when it was packed into"),
        "{said}"
    );
}

#[test]
fn a_source_that_was_downloaded_again_begins_anew() {
    let scratch = Scratch::new();
    let Some((source, usual)) = subject(&scratch) else {
        return;
    };
    let out = scratch.join("out.fbay");
    interrupted(&source, &out, usual.len());
    std::fs::remove_file(&source).expect("removable");
    model().writer().write(scratch.path(), "model.gguf");
    assert!(answer(consume(&source, &out)).status.success());
    assert_eq!(names_in(scratch.path()), ["out.fbay"]);
}

/// The packed file of an earlier model of that name is not this one's, even if a journal says that it is whole.
#[test]
fn a_whole_source_is_never_taken_for_one_that_is_packed() {
    let scratch = Scratch::new();
    let Some((source, usual)) = subject(&scratch) else {
        return;
    };
    let out = scratch.join("out.fbay");
    interrupted(&source, &out, usual.len());
    let journal = scratch.join("model.gguf.packing");
    let old = std::fs::read(&journal).expect("there");
    assert!(answer(consume(&source, &out)).status.success());
    std::fs::write(&journal, &old).expect("writable");
    // Without a source, only the journal was left to be removed.
    assert!(answer(consume(&source, &out)).status.success());
    assert_eq!(names_in(scratch.path()), ["out.fbay"]);
    let other = Model {
        n_layers: 2,
        ..model()
    };
    other.writer().write(scratch.path(), "model.gguf");
    std::fs::write(&journal, &old).expect("writable");
    assert!(answer(consume(&source, &out)).status.success());
    assert_eq!(names_in(scratch.path()), ["out.fbay"]);
    let packed = std::fs::read(&out).expect("there");
    assert!(packed.len() < usual.len() / 2, "the model of before");
}

/// Under its other names somebody may need it still.
#[test]
fn a_source_with_two_names_is_left_alone() {
    let scratch = Scratch::new();
    let source = Model::default().writer().write(scratch.path(), "a.gguf");
    let before = std::fs::read(&source).expect("there");
    std::fs::hard_link(&source, scratch.join("b.gguf")).expect("a name");
    let said = refusal(consume(&source, &scratch.join("out.fbay")));
    assert!(said.contains("hard links"), "{said}");
    assert!(std::fs::read(&source).expect("there") == before);
    assert_eq!(names_in(scratch.path()), ["a.gguf", "b.gguf"]);
}

/// What a name promises is not part of the model if its metadata says nothing of it.
#[test]
fn files_that_are_not_packed_are_not_removed() {
    let scratch = Scratch::new();
    let names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
    let [source, _] = names.map(|name| Model::default().writer().write(scratch.path(), name));
    let said = refusal(consume(&source, &scratch.join("out.fbay")));
    assert!(said.contains("by its name 0 of 2"), "{said}");
    assert_eq!(names_in(scratch.path()), names);
}

/// The journal is written as UTF-8.
#[test]
fn an_output_that_is_not_utf8_is_refused_before_anything_is_written() {
    let scratch = Scratch::new();
    let source = Model::default().writer().write(scratch.path(), "a.gguf");
    let out = std::ffi::OsStr::from_bytes(b"out\xff.fbay");
    let said = refusal(consume(&source, &scratch.path().join(out)));
    assert!(said.contains("UTF-8"), "{said}");
    assert_eq!(names_in(scratch.path()), ["a.gguf"]);
}

#[test]
fn folders_are_not_given_back() {
    let scratch = Scratch::new();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
    let folder = scratch.copy_of(&demo, "model");
    let before = names_in(&folder);
    let said = refusal(consume(&folder, &scratch.join("out.fbay")));
    assert!(said.contains("folder"), "{said}");
    assert_eq!(names_in(&folder), before);
}
