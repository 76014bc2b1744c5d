//! Whose cache folders and packed models are used: one's own and the superuser's, if nobody else may write to them.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::gguf_writer::Model;
use crate::killed::generate;
use crate::program::{Answer, NOBODY, answer, as_nobody, forebay};
use crate::scratch::{Scratch, found_in};

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("permissions");
}

/// A model, and a cache folder that has it packed.
fn prepacked(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let model = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    let cache = scratch.folder("cache");
    mode(&model, 0o644);
    mode(&cache, 0o755);
    let said = answer(generate(&model, &cache));
    assert!(said.status.success(), "{}", said.stderr);
    (model, cache)
}

/// Gives `path` to another user; false, and said aloud, where this process may not.
fn given_away(path: &Path) -> bool {
    let given = chown(path, Some(NOBODY), Some(NOBODY));
    if let Err(refusal) = &given {
        eprintln!("SKIPPED: cannot give a file to another user here: {refusal}");
    }
    given.is_ok()
}

/// By the flag and by the variable, on an explicit model and on the demo.
fn all_uses(model: &Path, cache: &Path) -> [Command; 4] {
    let by_variable = |model: Option<&Path>| {
        let flags = ["run", "-p", "the", "-n", "2", "-q", "--ctx", "32"];
        let mut command = forebay(cache, flags);
        command.args(model);
        command
    };
    let mut demo_by_flag = by_variable(None);
    demo_by_flag
        .env_remove("FOREBAY_CACHE")
        .arg("--cache")
        .arg(cache);
    [
        generate(model, cache),
        demo_by_flag,
        by_variable(Some(model)),
        by_variable(None),
    ]
}

fn refused(said: &Answer, mentions: &[&str]) {
    assert_eq!(said.status.code(), Some(1), "{}", said.stderr);
    for mention in mentions {
        let stderr = &said.stderr;
        assert!(stderr.contains(mention), "no {mention:?}: {stderr}");
    }
}

#[test]
fn cache_folders_that_others_may_write_to_are_refused() {
    let scratch = Scratch::new();
    let (model, cache) = prepacked(&scratch);
    let name = cache.to_str().expect("Unicode");
    let remedies = [name, "chmod go-w", "--cache", "FOREBAY_CACHE"];
    mode(&cache, 0o777);
    for command in all_uses(&model, &cache) {
        refused(&answer(command), &remedies);
    }
    mode(&cache, 0o1777);
    refused(&answer(generate(&model, &cache)), &remedies);
    mode(&cache, 0o755);
    if !given_away(&cache) {
        return;
    }
    for command in all_uses(&model, &cache) {
        refused(&answer(command), &[name, "65534", "--cache"]);
    }
    chown(&cache, Some(0), Some(NOBODY)).expect("taken back");
    mode(&cache, 0o775);
    refused(&answer(generate(&model, &cache)), &remedies);
    // A group with the owner's number is the owner's own: such users have a umask that lets it write.
    chown(&cache, Some(0), Some(0)).expect("taken back");
    assert!(answer(generate(&model, &cache)).status.success());
}

#[test]
fn packed_models_of_others_are_refused_unless_they_are_named() {
    let scratch = Scratch::new();
    let (model, cache) = prepacked(&scratch);
    let packed = found_in(&cache, ".fbay").pop().expect("packed");
    let name = packed.to_str().expect("Unicode");
    mode(&packed, 0o666);
    refused(&answer(generate(&model, &cache)), &[name, "chmod go-w"]);
    mode(&packed, 0o644);
    assert!(answer(generate(&model, &cache)).status.success());
    if !given_away(&packed) {
        return;
    }
    refused(
        &answer(generate(&model, &cache)),
        &[name, "65534", "delete"],
    );
    let named = answer(generate(&packed, &scratch.folder("other")));
    assert!(named.status.success(), "{}", named.stderr);
}

#[test]
fn a_cache_that_can_only_be_read_is_used_by_flag_and_by_variable() {
    let scratch = Scratch::new();
    let (model, cache) = prepacked(&scratch);
    // The demo, too.
    let demo = answer(forebay(&cache, ["run", "-n", "2", "-q"]));
    assert!(demo.status.success(), "{}", demo.stderr);
    let others = Model {
        seed: 2,
        ..Model::default()
    };
    let other = others.writer().write(scratch.path(), "other.gguf");
    mode(&other, 0o644);
    for command in all_uses(&model, &cache) {
        let Some(said) = as_nobody(command) else {
            return;
        };
        assert!(said.status.success(), "{}", said.stderr);
    }
    let name = cache.to_str().expect("Unicode");
    for command in all_uses(&other, &cache).into_iter().step_by(2) {
        let said = as_nobody(command).expect("it worked before");
        refused(&said, &[name, "Permission denied", "FOREBAY_CACHE"]);
    }
}

#[test]
fn a_cache_that_can_only_be_written_is_refused_before_anything_is_packed() {
    let scratch = Scratch::new();
    let model = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    mode(&model, 0o644);
    let cache = scratch.folder("cache");
    if !given_away(&cache) {
        return;
    }
    mode(&cache, 0o311);
    let mut pack = forebay(&cache, ["pack", "-q", "-o"]);
    pack.arg(cache.join("out.fbay")).arg(&model);
    for command in [generate(&model, &cache), pack] {
        let Some(said) = as_nobody(command) else {
            return;
        };
        let name = cache.to_str().expect("Unicode");
        refused(&said, &[name, "Permission denied", "chmod u+r"]);
    }
    assert!(found_in(&cache, "").is_empty());
}
