//! A source that has changed is packed again, one that has not is not.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use forebay_models::bundle::FORMAT_VERSION;

use crate::gguf_writer::Model;
use crate::program::{Answer, answer, forebay};
use crate::scratch::{Scratch, found_in, names_in};

/// Runs the model; returns what it says and whether it was packed on the way.
fn run(model: &Path, cache: &Path) -> (String, bool) {
    let mut command = forebay(
        cache,
        [
            "run",
            "-p",
            "the other",
            "-n",
            "12",
            "--greedy",
            "--ctx",
            "64",
        ],
    );
    command.arg(model).arg("--cache").arg(cache);
    let Answer {
        status,
        stdout,
        stderr,
    } = answer(command);
    assert!(status.success(), "{stderr}");
    (stdout, stderr.contains("packing once into"))
}

/// What the model says when it is packed from scratch.
fn fresh(model: &Path) -> String {
    let elsewhere = Scratch::new();
    let (text, packed) = run(model, elsewhere.path());
    assert!(packed);
    text
}

/// The one packed file of a cache, with what identifies it as a file.
fn only_bundle(cache: &Path) -> (PathBuf, u64, SystemTime) {
    let names = names_in(cache);
    assert!(names.len() == 1 && names[0].ends_with(".fbay"), "{names:?}");
    let path = cache.join(&names[0]);
    let info = path.metadata().expect("there");
    (path, info.ino(), info.modified().expect("a time"))
}

/// Sets the time of the last change.
fn set_time(path: &Path, time: SystemTime) {
    let file = File::options().write(true).open(path).expect("writable");
    file.set_modified(time).expect("a time");
}

fn time_of(path: &Path) -> SystemTime {
    path.metadata().and_then(|m| m.modified()).expect("a time")
}

/// Changes the source by `change` and expects one new bundle in the place of the old one.
fn expect_repack(model: &Path, cache: &Path, what: &str, change: impl FnOnce()) {
    let (old, ..) = only_bundle(cache);
    change();
    let (text, packed) = run(model, cache);
    assert!(packed, "{what} goes unnoticed");
    let (new, ..) = only_bundle(cache);
    assert_ne!(old, new, "{what}: the old file is gone");
    assert_eq!(text, fresh(model), "{what}");
    assert_eq!(run(model, cache), (text, false), "{what}");
}

#[test]
fn a_gguf_file_is_packed_again_when_content_length_or_time_change() {
    let scratch = Scratch::new();
    let cache = scratch.folder("cache");
    let write = |seed| {
        Model {
            seed,
            ..Model::default()
        }
        .writer()
        .bytes()
    };
    let model = scratch.write("model.gguf", write(1));
    let (first, packed) = run(&model, &cache);
    assert!(packed);
    let file = only_bundle(&cache);
    for _ in 0..2 {
        assert_eq!(run(&model, &cache), (first.clone(), false));
        assert_eq!(
            only_bundle(&cache),
            file,
            "an unchanged model's file is not touched"
        );
    }
    // Touching what is not the model changes nothing.
    scratch.write("notes.json", "{}");
    assert_eq!(run(&model, &cache), (first.clone(), false));

    let before = time_of(&model);
    expect_repack(
        &model,
        &cache,
        "new content of the same length and time",
        || {
            std::fs::write(&model, write(2)).expect("writable");
            set_time(&model, before);
        },
    );
    assert_ne!(
        run(&model, &cache).0,
        first,
        "another model says something else"
    );
    expect_repack(&model, &cache, "another length at the same time", || {
        let mut bytes = write(2);
        bytes.extend([0; 64]);
        std::fs::write(&model, bytes).expect("writable");
        set_time(&model, before);
    });
    expect_repack(&model, &cache, "another time", || {
        set_time(&model, before + Duration::from_millis(1));
    });
    expect_repack(&model, &cache, "the first model back", || {
        std::fs::write(&model, write(1)).expect("writable");
    });
    assert_eq!(run(&model, &cache).0, first);
}

#[test]
fn a_safetensors_folder_is_packed_again_when_one_of_its_files_changes() {
    let scratch = Scratch::new();
    let cache = scratch.folder("cache");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny/llama_relu_f16");
    let model = scratch.copy_of(&tiny, "model");
    let (first, packed) = run(&model, &cache);
    assert!(packed);
    // Read-mes and half-written files are no part of the model.
    for name in ["README.md", "model.safetensors.partial-1", "optimizer.bin"] {
        std::fs::write(model.join(name), "beside the point").expect("writable");
        assert_eq!(run(&model, &cache), (first.clone(), false), "{name}");
    }
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ] {
        let file = model.join(name);
        expect_repack(&model, &cache, name, || {
            set_time(&file, time_of(&file) + Duration::from_secs(1));
        });
    }
    expect_repack(
        &model,
        &cache,
        "a byte of the weights at the same time",
        || {
            let file = model.join("model.safetensors");
            let (time, mut bytes) = (time_of(&file), std::fs::read(&file).expect("readable"));
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&file, bytes).expect("writable");
            set_time(&file, time);
        },
    );
}

/// Samples of the contents miss most of a large file; the time of the last change of its inode cannot be set.
#[test]
fn weights_that_were_edited_with_their_time_restored_are_packed_again() {
    let scratch = Scratch::new();
    let cache = scratch.folder("cache");
    let model = Model {
        d_model: 256,
        d_ff: 1024,
        n_layers: 2,
        ..Model::default()
    };
    let model = model.writer().write(scratch.path(), "large.gguf");
    assert!(run(&model, &cache).1);
    let (time, mut bytes) = (time_of(&model), std::fs::read(&model).expect("readable"));
    let quarter = bytes.len() / 4;
    bytes[quarter] ^= 1;
    expect_repack(&model, &cache, "a byte between the samples", || {
        std::fs::write(&model, bytes).expect("writable");
        set_time(&model, time);
    });
}

#[test]
fn other_models_in_the_cache_stay_and_damaged_files_are_replaced() {
    let scratch = Scratch::new();
    let cache = scratch.folder("cache");
    let write = |name: &str, seed| {
        Model {
            seed,
            ..Model::default()
        }
        .writer()
        .write(scratch.path(), name)
    };
    let (a, b) = (write("a.gguf", 1), write("b.gguf", 2));
    let (says_a, says_b) = (run(&a, &cache).0, run(&b, &cache).0);
    assert_eq!(found_in(&cache, ".fbay").len(), 2);
    write("a.gguf", 3);
    assert!(run(&a, &cache).1);
    write("a.gguf", 1);
    assert_eq!(run(&a, &cache), (says_a.clone(), true));
    assert_eq!(run(&b, &cache), (says_b, false), "b was not touched");
    assert_eq!(found_in(&cache, ".fbay").len(), 2);

    let packed = found_in(&cache, "a-").pop().expect("there");
    let whole = std::fs::read(&packed).expect("readable");
    let mut flipped = whole.clone();
    let at = flipped.len() - 4096;
    flipped[at] ^= 4;
    let mut older = whole.clone();
    older[8..12].copy_from_slice(&(FORMAT_VERSION - 1).to_le_bytes());
    for damaged in [&whole[..whole.len() / 2], &[], &flipped, &older] {
        std::fs::write(&packed, damaged).expect("writable");
        assert_eq!(
            run(&a, &cache),
            (says_a.clone(), true),
            "a damaged file is packed again"
        );
        assert!(std::fs::read(&packed).expect("readable") == whole);
    }
}
