//! `forebay cache`: what is in the folder of packed models, and removing it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde_json::Value;

use crate::gguf_writer::{GgufWriter, Model};
use crate::program::{Answer, answer, forebay};
use crate::scratch::{Scratch, names_in};

fn cache(scratch: &Scratch, arguments: &[&str]) -> Answer {
    let arguments = [&["cache"], arguments].concat();
    answer(forebay(&scratch.path().join("cache"), arguments))
}

/// Names and states of the listed models.
fn listed(scratch: &Scratch) -> Vec<(String, String)> {
    let said = cache(scratch, &["ls", "--json"]);
    assert!(said.status.success(), "{}", said.stderr);
    let list: Value = serde_json::from_str(&said.stdout).expect("one JSON object");
    let text = |entry: &Value, field: &str| entry[field].as_str().expect(field).to_owned();
    let models = list["models"].as_array().expect("models").iter();
    let mut models: Vec<_> = models
        .map(|m| (text(m, "name"), text(m, "state")))
        .collect();
    models.sort();
    models
}

fn packed(scratch: &Scratch, name: &str) -> std::path::PathBuf {
    let model = scratch.write(name, Model::default().writer().bytes());
    let arguments = [
        "run",
        model.to_str().expect("text"),
        "-p",
        "the",
        "-q",
        "-n",
        "1",
    ];
    let said = answer(forebay(&scratch.path().join("cache"), arguments));
    assert!(said.status.success(), "{}", said.stderr);
    model
}

#[test]
fn packed_models_are_listed_removed_and_pruned() {
    let scratch = Scratch::new();
    let new = scratch.join("new").display().to_string();
    for arguments in [&["ls"][..], &["rm", "--all"], &["prune"]] {
        let nothing = cache(&scratch, &[arguments, &["--cache", &new]].concat());
        assert!(nothing.status.success(), "{nothing:?}");
        assert!(nothing.stdout.contains("0 packed models"), "{nothing:?}");
    }
    let [one, two, three] =
        ["one.gguf", "two.gguf", "three.gguf"].map(|name| packed(&scratch, name));
    let states = |models: Vec<(String, String)>| -> Vec<String> {
        models.into_iter().map(|(_, state)| state).collect()
    };
    assert_eq!(states(listed(&scratch)), ["current"; 3]);
    let table = cache(&scratch, &["ls"]).stdout;
    assert!(
        table.contains("one-") && table.contains("3 packed models"),
        "{table}"
    );

    let said = cache(&scratch, &["rm", "one"]);
    assert!(
        said.status.success() && said.stdout.contains("removed"),
        "{said:?}"
    );
    let said = cache(&scratch, &["rm", two.to_str().expect("text")]);
    assert!(said.status.success(), "{said:?}");
    assert_eq!(listed(&scratch).len(), 1);
    let said = cache(&scratch, &["rm", "one"]);
    assert!(
        !said.status.success() && said.stderr.contains("forebay cache ls"),
        "{said:?}"
    );

    std::fs::remove_file(three).expect("removable");
    assert_eq!(states(listed(&scratch)), ["source missing"]);
    let said = cache(&scratch, &["prune", "--dry-run"]);
    assert!(said.stdout.contains("would be removed"), "{said:?}");
    assert_eq!(listed(&scratch).len(), 1);
    let said = cache(&scratch, &["prune"]);
    assert!(said.status.success(), "{said:?}");
    assert_eq!(
        names_in(&scratch.path().join("cache")),
        Vec::<String>::new()
    );
    // It is packed again.
    assert!(one.exists() && packed(&scratch, "one.gguf") == one);
}

#[test]
fn pruning_keeps_what_was_used_last() {
    let scratch = Scratch::new();
    packed(&scratch, "old.gguf");
    packed(&scratch, "new.gguf");
    let models = listed(&scratch);
    let old = models.iter().find(|(name, _)| name.starts_with("old"));
    let old = scratch.path().join("cache").join(&old.expect("listed").0);
    let file = std::fs::File::options()
        .write(true)
        .open(&old)
        .expect("a file");
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(10 * 86_400);
    let times = std::fs::FileTimes::new()
        .set_accessed(then)
        .set_modified(then);
    file.set_times(times).expect("its owner may");
    for side in [".hot", ".profile"] {
        let _ = std::fs::remove_file(format!("{}{side}", old.display()));
    }
    let said = cache(&scratch, &["prune", "--unused-for", "9"]);
    assert!(
        said.stdout.contains("old-") && !said.stdout.contains("new-"),
        "{said:?}"
    );
    assert!(listed(&scratch).len() == 1);
    let said = cache(&scratch, &["prune", "--max-size", "1"]);
    assert!(said.stdout.contains("new-"), "{said:?}");
    assert!(listed(&scratch).is_empty());
}

#[test]
fn pruning_keeps_current_models_behind_links_and_what_somebody_named() {
    let scratch = Scratch::new();
    let mut first = Model::default().writer();
    let mut second = GgufWriter {
        tensors: first.tensors.split_off(first.tensors.len() / 2),
        ..GgufWriter::default()
    };
    let snapshot = scratch.folder("snapshot");
    for (number, part) in [&mut first, &mut second].into_iter().enumerate() {
        part.set("split.count", 2).set("split.no", number as u32);
        let blob = scratch.write(&format!("blob{number}"), part.bytes());
        let name = format!("big-{:05}-of-00002.gguf", number + 1);
        std::os::unix::fs::symlink(blob, snapshot.join(name)).expect("a link");
    }
    packed(&scratch, "gone.gguf");
    std::fs::remove_file(scratch.join("gone.gguf")).expect("removable");
    let cache_folder = scratch.path().join("cache");
    let gone = listed(&scratch).remove(0).0;
    std::fs::rename(cache_folder.join(gone), cache_folder.join("mine.fbay")).expect("movable");
    let model = snapshot.join("big-00001-of-00002.gguf");
    let arguments = ["run", "-p", "the", "-q", "-n", "1"];
    let mut run = forebay(&cache_folder, arguments);
    run.arg(&model);
    let said = answer(run);
    assert!(said.status.success(), "{}", said.stderr);
    let before = listed(&scratch);
    let states: Vec<&str> = before.iter().map(|(_, state)| &**state).collect();
    assert_eq!(states, ["current", "source missing"]);
    let said = cache(&scratch, &["prune", "--unused-for", "9"]);
    assert!(said.status.success(), "{}", said.stderr);
    assert_eq!(listed(&scratch), before);
    // It goes by the name that it was packed by.
    let said = cache(&scratch, &["rm", model.to_str().expect("text")]);
    assert!(said.status.success(), "{}", said.stderr);
    assert_eq!(listed(&scratch), before[1..]);
}

#[test]
fn removing_all_leaves_nothing_of_the_demo_nor_of_odd_names() {
    let scratch = Scratch::new();
    let folder = scratch.path().join("cache");
    let said = answer(forebay(&folder, ["run", "-q", "-n", "1"]));
    assert!(said.status.success(), "{}", said.stderr);
    let before = listed(&scratch);
    assert_eq!(before.len(), 1);
    let odd = OsStr::from_bytes(b"odd\xff.fbay");
    std::fs::copy(folder.join(&before[0].0), folder.join(odd)).expect("copied");
    let remove = |name: &OsStr| {
        let mut command = forebay(&folder, ["cache", "rm"]);
        command.arg(name);
        let said = answer(command);
        assert!(said.status.success(), "{}", said.stderr);
    };
    remove(odd);
    assert_eq!(listed(&scratch), before);
    remove(OsStr::new("--all"));
    let left = names_in(&folder);
    let models = left.iter().filter(|name| *name != "machine.json");
    assert_eq!(models.count(), 0, "{left:?}");
}

/// It may be the only copy of its model.
#[test]
fn what_somebody_named_is_removed_and_replaced_only_by_name() {
    let scratch = Scratch::new();
    let folder = scratch.path().join("cache");
    let gone = packed(&scratch, "gone.gguf");
    let other = packed(&scratch, "other.gguf");
    let mine = folder.join("mine.fbay");
    let found = listed(&scratch)
        .into_iter()
        .find(|(name, _)| name.starts_with("gone"));
    std::fs::rename(folder.join(found.expect("listed").0), &mine).expect("movable");
    let linked = folder.join("linked.fbay");
    std::os::unix::fs::symlink(&mine, &linked).expect("a link");
    assert_eq!(listed(&scratch).len(), 3, "what a link names is used, too");
    let said = cache(&scratch, &["rm", "linked"]);
    assert!(said.status.success() && mine.exists(), "{said:?}");
    let said = cache(&scratch, &["rm", "--all"]);
    assert!(said.status.success(), "{said:?}");
    assert!(said.stderr.contains("mine.fbay stays"), "{said:?}");
    assert_eq!(listed(&scratch).len(), 1);

    let pack = |source: &std::path::Path, out: &std::path::Path| {
        let mut command = forebay(&folder, ["pack", "-q", "-o"]);
        command.arg(out).arg(source);
        answer(command)
    };
    assert!(pack(&other, &mine).status.success(), "its source is there");
    assert!(pack(&gone, &mine).status.success(), "its source is there");
    std::fs::remove_file(&gone).expect("removable");
    let said = pack(&other, &mine);
    assert!(said.stderr.contains("its only copy"), "{said:?}");
    let said = pack(&other, &scratch.folder("a-folder.fbay"));
    assert!(said.stderr.contains("is a directory"), "{said:?}");
}
