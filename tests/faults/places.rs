//! Folders and disks that cannot be read or written.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::gguf_writer::Model;
use crate::mount::Mount;
use crate::program::{answer, as_nobody, forebay};
use crate::refusal::{refused, refused_to_write, text};
use crate::scratch::{Scratch, names_in};

#[test]
fn an_output_folder_that_is_missing_or_no_folder_is_refused() {
    let scratch = Scratch::new();
    let model = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    let file = scratch.write("file", "");
    for (what, out, mention) in [
        ("missing", scratch.join("no/such/out.fbay"), "No such file"),
        ("a file", file.join("out.fbay"), "Not a directory"),
        (
            "the kernel's",
            PathBuf::from("/proc/out.fbay"),
            "cannot create",
        ),
    ] {
        let arguments = ["pack", text(&model), "-o", text(&out)];
        refused_to_write(
            scratch.path(),
            what,
            &arguments,
            &[text(&out), mention, "-o"],
            &out,
        );
    }
    let folder = scratch.folder("folder.fbay");
    let arguments = ["pack", text(&model), "-o", text(&folder)];
    refused(
        scratch.path(),
        "a folder of that name",
        &arguments,
        &[text(&folder), "directory"],
    );
    let cache = ["run", text(&model), "-p", "the", "--cache", text(&file)];
    refused(scratch.path(), "cache in a file", &cache, &[text(&file)]);
    let mut variable = forebay(&file, ["run", text(&model), "-p", "the"]);
    variable.env_remove("HOME").env_remove("XDG_CACHE_HOME");
    let said = answer(variable);
    assert_eq!(said.status.code(), Some(1));
    assert!(
        said.stderr.contains("FOREBAY_CACHE") && said.stderr.contains(text(&file)),
        "{}",
        said.stderr
    );
}

#[test]
fn a_read_only_disk_is_refused() {
    let scratch = Scratch::new();
    let model = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    let Some(disk) = Mount::new(scratch.folder("disk"), "ro") else {
        return;
    };
    let out = disk.path().join("out.fbay");
    let arguments = ["pack", text(&model), "-o", text(&out)];
    refused_to_write(
        disk.path(),
        "read-only",
        &arguments,
        &["Read-only", "-o", text(&out)],
        &out,
    );
    let run = [
        "run",
        text(&model),
        "-p",
        "the",
        "--cache",
        text(disk.path()),
    ];
    refused(
        disk.path(),
        "read-only",
        &run,
        &["Read-only", "FOREBAY_CACHE"],
    );
}

#[test]
fn what_may_not_be_read_or_written_is_refused() {
    let scratch = Scratch::new();
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("permissions");
    };
    let model = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    let packed = scratch.write("model.fbay", crate::packs::small_pack());
    let (cache, locked) = (scratch.folder("cache"), scratch.folder("locked"));
    let hidden = locked.join("model.gguf");
    std::fs::copy(&model, &hidden).expect("a copy");
    let readable = scratch.write("readable.gguf", Model::default().writer().bytes());
    mode(&cache, 0o777);
    mode(&readable, 0o644);
    [&model, &packed, &locked].iter().for_each(|p| mode(p, 0));

    let out = locked.join("out.fbay");
    for (what, arguments, path) in [
        ("model", vec!["run", text(&model), "-p", "the"], &model),
        (
            "packed model",
            vec!["run", text(&packed), "-p", "the"],
            &packed,
        ),
        ("folder", vec!["run", text(&hidden), "-p", "the"], &hidden),
        (
            "prompt",
            vec!["run", text(&readable), "-f", text(&model)],
            &model,
        ),
        (
            "output folder",
            vec!["pack", text(&readable), "-o", text(&out)],
            &out,
        ),
        (
            "cache folder",
            vec![
                "run",
                text(&readable),
                "-p",
                "the",
                "--cache",
                text(&locked),
            ],
            &locked,
        ),
    ] {
        let Some(said) = as_nobody(forebay(&cache, arguments)) else {
            return;
        };
        let said = (said.status.code(), said.stderr);
        assert_eq!(said.0, Some(1), "{what}: {}", said.1);
        assert!(said.1.contains("Permission denied"), "{what}: {}", said.1);
        assert!(said.1.contains(text(path)), "{what}: {}", said.1);
        assert!(!said.1.contains("panicked"), "{what}: {}", said.1);
    }
    mode(&locked, 0o755);
    assert_eq!(names_in(&locked), ["model.gguf"]);
}
