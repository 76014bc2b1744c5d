//! Devices that have too little room, from the start or all at once: the program says so, leaves what was there as it
//! was, and does the same work when there is room.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay::demo;
use forebay_models::bundle::Bundle;

use crate::gguf_writer::Model;
use crate::mount::Mount;
use crate::program::{answer, forebay, with_limit};
use crate::scratch::{Scratch, found_in, names_in};
use crate::together::pack_and;

/// A model of about 4 MB.
fn model(folder: &Path) -> PathBuf {
    let model = Model {
        d_model: 256,
        d_ff: 1024,
        n_layers: 2,
        ..Model::default()
    };
    model.writer().write(folder, "large.gguf")
}

/// What is in a folder, byte for byte.
fn content(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |n: String| (n.clone(), std::fs::read(folder.join(n)).unwrap_or_default());
    names_in(folder).into_iter().map(read).collect()
}

/// Runs a command that has to fail with one message that has all of `mentions`.
fn refused(command: Command, mentions: &[&str]) -> String {
    let said = format!("{command:?}");
    let answer = answer(command);
    let said = format!("{said}: {:?}\n{}", answer.status, answer.stderr);
    assert_eq!(answer.status.code(), Some(1), "{said}");
    assert_eq!(answer.stderr.matches("error: ").count(), 1, "{said}");
    assert!(!answer.stderr.contains("panicked"), "{said}");
    for mention in mentions {
        assert!(answer.stderr.contains(mention), "no {mention:?}: {said}");
    }
    answer.stderr
}

fn done(command: Command) -> String {
    let said = format!("{command:?}");
    let answer = answer(command);
    assert!(answer.status.success(), "{said}: {}", answer.stderr);
    answer.stdout
}

/// Packs explicitly, and by the way of a first use.
fn both_ways(model: &Path, folder: &Path) -> [Command; 2] {
    let mut pack = forebay(folder, ["pack", "-q"]);
    pack.arg(model).arg("-o").arg(folder.join("out.fbay"));
    let mut run = forebay(folder, ["run", "-p", "the", "-n", "4", "--greedy"]);
    run.arg("--ctx")
        .arg("32")
        .arg(model)
        .arg("--cache")
        .arg(folder);
    [pack, run]
}

#[test]
fn a_device_without_room_is_refused_before_anything_is_written() {
    let scratch = Scratch::new();
    let model = model(scratch.path());
    let Some(disk) = Mount::new(scratch.folder("disk"), "size=1m") else {
        return;
    };
    let small = Model::default()
        .writer()
        .write(scratch.path(), "small.gguf");
    let mut pack = forebay(disk.path(), ["pack", "-q"]);
    pack.arg(&small)
        .arg("-o")
        .arg(disk.path().join("small.fbay"));
    done(pack);
    std::fs::write(disk.path().join("out.fbay"), "an older one").expect("room for that");
    let before = content(disk.path());
    let folder = disk.path().to_str().expect("Unicode");
    let mentions = [folder, "it takes", "MiB are free", "free some space", "-o"];
    for command in both_ways(&model, disk.path()) {
        refused(command, &mentions);
        assert!(
            content(disk.path()) == before,
            "{:?}",
            names_in(disk.path())
        );
    }
    disk.resize("16m");
    for command in both_ways(&model, disk.path()) {
        done(command);
    }
    assert_eq!(found_in(disk.path(), ".fbay").len(), 3);
    Bundle::open(&disk.path().join("out.fbay")).expect("whole, in the place of the older one");
}

#[test]
fn a_device_that_fills_up_under_the_writer_is_an_error_and_is_cleaned_up() {
    let scratch = Scratch::new();
    let model = model(scratch.path());
    let Some(disk) = Mount::new(scratch.folder("disk"), "size=8m") else {
        return;
    };
    let target = disk.path().join("out.fbay");
    // From no room at all to almost enough, where what fails is the last that is written.
    let mut whole = 0;
    for spare in [0, 4096, 100_000, 1 << 20, 2 << 20] {
        let full = pack_and(&model, &target, || disk.fill("hog", spare));
        let message = full.expect_err("no room").to_string();
        for mention in [
            "No space left",
            "there was room for",
            "free some space",
            "-o",
        ] {
            assert!(message.contains(mention), "no {mention:?}: {message}");
        }
        assert_eq!(names_in(disk.path()), ["hog"], "{spare}");
        disk.remove("hog");
        pack_and(&model, &target, || {}).expect("there is room again");
        whole = target.metadata().expect("there").len();
        disk.remove("out.fbay");
    }
    // All but the last pages find room: not the check beforehand, nor the clusters' writing notices.
    for missing in 1..=4u64 {
        disk.resize(&(whole - missing * 4096).to_string());
        let message = pack_and(&model, &target, || {}).expect_err("a page too little");
        assert!(message.to_string().contains("free some space"), "{message}");
        assert!(names_in(disk.path()).is_empty());
    }
    disk.resize(&whole.to_string());
    pack_and(&model, &target, || {}).expect("it fits exactly");
    Bundle::open(&target).expect("whole");
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_not_the_end_of_the_process() {
    let scratch = Scratch::new();
    let model = model(scratch.path());
    let folder = scratch.folder("packed");
    for command in both_ways(&model, &folder) {
        let mentions = ["File too large", "it ends at", "ulimit -f"];
        refused(with_limit(&command, "-f 2048"), &mentions);
        assert!(names_in(&folder).is_empty(), "{:?}", names_in(&folder));
    }
    for command in both_ways(&model, &folder) {
        done(with_limit(&command, "-f 1048576"));
    }
}

#[test]
fn the_demo_leaves_no_half_of_itself() {
    let scratch = Scratch::new();
    let Some(disk) = Mount::new(scratch.folder("disk"), "size=3m") else {
        return;
    };
    let run = || forebay(disk.path(), ["run", "-q", "-n", "4", "--ctx", "64"]);
    refused(run(), &["demo model", "No space left", "FOREBAY_CACHE"]);
    let folder = disk.path().join(demo::NAME);
    assert!(
        found_in(&folder, ".partial-").is_empty(),
        "{:?}",
        names_in(&folder)
    );
    disk.resize("24m");
    assert!(!done(run()).is_empty());
}

#[test]
fn what_is_kept_beside_a_model_is_whole_or_left_away_on_a_full_device() {
    let scratch = Scratch::new();
    let Some(disk) = Mount::new(scratch.folder("disk"), "size=24m") else {
        return;
    };
    let run = || {
        let flags = ["run", "-q", "-n", "40", "--ctx", "64", "--greedy"];
        forebay(disk.path(), flags)
    };
    // Made elsewhere the first time: the run would leave its hot set here.
    let right = done(run());
    for hot in found_in(disk.path(), ".hot") {
        std::fs::remove_file(hot).expect("removable");
    }
    let packed = found_in(disk.path(), ".fbay").pop().expect("packed");
    disk.fill("hog", 0);
    let before = names_in(disk.path());
    assert_eq!(done(run()), right, "the hot set is a hint");
    assert_eq!(names_in(disk.path()), before);

    let path = |path: &Path| path.to_str().expect("Unicode").to_string();
    let mut profile = forebay(disk.path(), ["profile", "--generate", "40", "--json"]);
    profile.arg(&packed);
    let beside = format!("{}.profile", path(&packed));
    refused(profile, &[&beside, "No space left", "free space"]);
    let machine = path(&disk.path().join("machine.json"));
    let plan = forebay(disk.path(), ["plan", "--quick", "--json"]);
    refused(plan, &[&machine, "No space left", "FOREBAY_CACHE"]);
    for (flag, mention) in [("--stats", "stats.json"), ("--trace", "trace.json")] {
        let mut command = run();
        command.arg(flag).arg(disk.path().join(mention));
        refused(command, &[mention, "No space left"]);
    }
    let spans = path(&disk.path().join("spans.json"));
    let mut pack = forebay(disk.path(), ["pack", "-q", "--trace", &spans, "-o"]);
    pack.arg(scratch.join("out.fbay"))
        .arg(disk.path().join(demo::NAME));
    refused(pack, &[&spans, "No space left"]);
    assert_eq!(names_in(disk.path()), before);

    disk.remove("hog");
    assert_eq!(done(run()), right);
    assert_eq!(found_in(disk.path(), ".hot").len(), 1, "kept again");
}

/// A device that takes nothing is neither replaced by a file nor a reason to panic.
#[test]
fn results_go_to_devices_as_they_are() {
    let scratch = Scratch::new();
    let cache = scratch.folder("cache");
    let run = || forebay(&cache, ["run", "-q", "-n", "4", "--ctx", "64"]);
    done(run());
    // A node of our own: what is tested would otherwise replace the system's.
    let Some(disk) = Mount::new(scratch.folder("disk"), "size=1m,dev") else {
        return;
    };
    let full = disk.path().join("full");
    let mut node = Command::new("mknod");
    node.arg(&full).args(["c", "1", "7"]);
    let opened = node.status().is_ok_and(|s| s.success())
        && std::fs::File::options().write(true).open(&full).is_ok();
    if !opened {
        eprintln!("SKIPPED: cannot make and open a device here");
        return;
    }
    for flag in ["--stats", "--trace"] {
        let mut command = run();
        command.arg(flag).arg(&full);
        refused(command, &["No space left", "full"]);
        assert_eq!(names_in(disk.path()), ["full"]);
    }
    let mut pack = forebay(&cache, ["pack", "-q", "--trace"]);
    pack.arg(&full).arg(cache.join(demo::NAME));
    pack.arg("-o").arg(scratch.join("out.fbay"));
    refused(pack, &["No space left", "full"]);
    assert_eq!(names_in(disk.path()), ["full"]);

    let device = || {
        Stdio::from(
            std::fs::File::options()
                .write(true)
                .open(&full)
                .expect("open"),
        )
    };
    let mut told = forebay(&cache, ["plan", "--quick", "--json"]);
    done(told);
    told = forebay(&cache, ["plan", "--quick", "--json"]);
    told.stdout(device());
    refused(told, &["standard output"]);
    // Nobody hears what is said, which changes nothing else.
    let mut unheard = forebay(&cache, ["run", "-n", "4", "--ctx", "64"]);
    unheard.stderr(device());
    assert!(!done(unheard).is_empty());
    let mut unheard = forebay(&cache, ["run", "no-such-model", "-p", "the"]);
    unheard.stderr(device());
    assert_eq!(answer(unheard).status.code(), Some(1));
}
