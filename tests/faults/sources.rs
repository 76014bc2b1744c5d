//! Source models that are damaged, incomplete or of a kind this engine does not run, through the command
//! line: refused by `run`, `pack` and `inspect` alike.

use std::path::Path;

use serde_json::{Value, json};

use crate::gguf_writer::{GgufWriter, Meta, Model};
use crate::refusal::{refused, refused_to_write, text};
use crate::scratch::{Scratch, found_in};

/// All commands that open a model refuse this one.
fn refused_by_all(scratch: &Scratch, what: &str, model: &Path, mentions: &[&str]) {
    refused_by_users(scratch, what, model, mentions);
    let mut mentions = mentions.to_vec();
    mentions.push(text(model));
    refused(scratch.path(), what, &["inspect", text(model)], &mentions);
}

/// The commands that need the tokenizer refuse this one: `pack` before it writes anything.
fn refused_by_users(scratch: &Scratch, what: &str, model: &Path, mentions: &[&str]) {
    let mut mentions = mentions.to_vec();
    mentions.push(text(model));
    let (model, out) = (text(model), scratch.join("out.fbay"));
    let folder = scratch.path();
    refused(
        folder,
        what,
        &["run", model, "-p", "the", "-n", "2"],
        &mentions,
    );
    refused_to_write(
        folder,
        what,
        &["pack", model, "-o", text(&out)],
        &mentions,
        &out,
    );
}

#[test]
fn a_gguf_file_cut_off_anywhere_is_refused() {
    let scratch = Scratch::new();
    let whole = Model::default().writer().bytes();
    let header = Model::default().writer().header().len();
    let points = [
        1,
        3,
        4,
        7,
        8,
        23,
        24,
        60,
        header / 3,
        header / 2,
        header - 1,
        header,
    ];
    for len in points
        .into_iter()
        .chain([whole.len() / 2, whole.len() - 100])
    {
        let model = scratch.write("model.gguf", &whole[..len]);
        refused_by_all(
            &scratch,
            &format!("cut off at {len} of {}", whole.len()),
            &model,
            &[],
        );
    }
}

/// What is done to a sound GGUF file, and what the message mentions.
type Damage = (&'static str, fn(&mut GgufWriter), &'static [&'static str]);

const DAMAGES: [Damage; 16] = [
    ("magic", |w| w.magic = *b"GGML", &["magic"]),
    ("version", |w| w.version = 9, &["version"]),
    (
        "tensor count",
        |w| w.forced_counts = Some((1 << 60, 3)),
        &[],
    ),
    (
        "entry count",
        |w| w.forced_counts = Some((1, u64::MAX)),
        &[],
    ),
    (
        "architecture",
        |w| _ = w.set("general.architecture", "mamba"),
        &["mamba", "llama"],
    ),
    (
        "no architecture",
        |w| _ = w.unset("general.architecture"),
        &["general.architecture"],
    ),
    (
        "tensor type",
        |w| w.tensor_mut("blk.0.attn_q.weight").type_id = 77,
        &["blk.0.attn_q.weight", "77"],
    ),
    (
        "tensor missing",
        |w| _ = w.remove("blk.1.ffn_up.weight"),
        &["blk.1.ffn_up.weight"],
    ),
    (
        "tensor outside the file",
        |w| w.tensor_mut("blk.1.ffn_up.weight").forced_offset = Some(1 << 40),
        &["blk.1.ffn_up.weight"],
    ),
    (
        "tensor too large",
        |w| w.tensor_mut("output_norm.weight").dims = vec![1 << 62],
        &["output_norm"],
    ),
    (
        "tensor shape",
        |w| w.tensor_mut("blk.0.attn_k.weight").dims.swap(0, 1),
        &["blk.0.attn_k.weight"],
    ),
    (
        "pre-tokenizer",
        |w| _ = w.set("tokenizer.ggml.pre", "klingon"),
        &["tokenizer.ggml.pre", "klingon"],
    ),
    (
        "tokenizer",
        |w| _ = w.set("tokenizer.ggml.model", "morse"),
        &["tokenizer.ggml.model", "morse"],
    ),
    (
        "no tokens",
        |w| _ = w.unset("tokenizer.ggml.tokens"),
        &["tokenizer.ggml.tokens"],
    ),
    (
        "split",
        |w| _ = w.set("split.count", 3),
        &["split.count", "-00001-of-00003.gguf"],
    ),
    (
        "a value of no known type",
        |w| _ = w.set("x", Meta::Raw(99, vec![0; 8])),
        &["99"],
    ),
];

#[test]
fn a_gguf_file_that_is_wrong_in_itself_is_refused() {
    let scratch = Scratch::new();
    for (what, damage, mentions) in DAMAGES {
        let mut writer = Model::default().writer();
        damage(&mut writer);
        let model = writer.write(scratch.path(), "model.gguf");
        refused_by_all(&scratch, what, &model, mentions);
    }
    let part = |number: u32| {
        let mut writer = Model::default().writer();
        writer.set("split.no", number);
        writer.set("split.count", 3);
        let name = format!("model-{:05}-of-00003.gguf", number + 1);
        writer.write(scratch.path(), &name)
    };
    let second = part(1);
    let mentions = &["-00001-of-00003.gguf"];
    refused_by_all(&scratch, "a part of a split model", &second, mentions);
    std::fs::remove_file(second).expect("it was written");
    let first = part(0);
    let run = ["run", text(&first), "-p", "the"];
    let missing = &["model-00002-of-00003.gguf"];
    refused(scratch.path(), "a first part alone", &run, missing);
}

#[test]
fn files_of_other_formats_are_refused_with_what_to_do() {
    let scratch = Scratch::new();
    for (name, bytes, mention) in [
        ("empty.gguf", &b""[..], "empty"),
        ("pytorch_model.bin", b"PK\x03\x04 and so on", "safetensors"),
        ("model.pt", b"\x80\x02}q", "safetensors"),
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0{}      ", "folder"),
        ("config.json", b"{}", "folder"),
        ("notes.txt", b"once upon a time", "GGUF"),
    ] {
        let model = scratch.write(name, bytes);
        refused_by_all(&scratch, name, &model, &[mention]);
    }
    let pipe = scratch.join("pipe.gguf");
    let made = std::process::Command::new("mkfifo")
        .arg(&pipe)
        .status()
        .expect("mkfifo");
    assert!(made.success());
    // Opening it would wait for a writer.
    refused_by_all(&scratch, "a pipe", &pipe, &["neither a file nor a folder"]);
    let looped = scratch.join("loop.gguf");
    std::os::unix::fs::symlink(&looped, &looped).expect("a link");
    refused_by_all(&scratch, "a link to itself", &looped, &["symbolic links"]);
}

/// What is done to a sound folder, and what the message mentions.
type FolderDamage = (&'static str, fn(&Path), &'static [&'static str]);

const FOLDER_DAMAGES: [FolderDamage; 12] = [
    ("no config", |f| remove(f, "config.json"), &["config.json"]),
    (
        "no tokenizer",
        |f| remove(f, "tokenizer.json"),
        &["tokenizer.json"],
    ),
    (
        "no weights",
        |f| remove(f, "model.safetensors"),
        &["safetensors"],
    ),
    (
        "config is no JSON",
        |f| write(f, "config.json", b"{\"model_type\": "),
        &["config.json"],
    ),
    (
        "config is a list",
        |f| write(f, "config.json", b"[1, 2]"),
        &["config.json"],
    ),
    (
        "config is not UTF-8",
        |f| write(f, "config.json", b"\xff\xfe{}"),
        &["config.json"],
    ),
    (
        "tokenizer is no JSON",
        |f| write(f, "tokenizer.json", b"]"),
        &["tokenizer.json"],
    ),
    (
        "architecture",
        |f| set(f, "config.json", "/model_type", json!("mamba")),
        &["config.json", "mamba"],
    ),
    (
        "activation",
        |f| set(f, "config.json", "/hidden_act", json!("gelu_10")),
        &["hidden_act", "gelu_10"],
    ),
    (
        "no layers",
        |f| set(f, "config.json", "/num_hidden_layers", json!(0)),
        &["num_hidden_layers"],
    ),
    (
        "too wide",
        |f| set(f, "config.json", "/hidden_size", json!(1_u64 << 62)),
        &["hidden_size"],
    ),
    (
        "cut off weights",
        |f| cut(f, "model.safetensors"),
        &["model.safetensors"],
    ),
];

fn remove(folder: &Path, name: &str) {
    std::fs::remove_file(folder.join(name)).expect("a file to remove");
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(folder.join(name), bytes).expect("writable");
}

fn cut(folder: &Path, name: &str) {
    let bytes = std::fs::read(folder.join(name)).expect("readable");
    write(folder, name, &bytes[..bytes.len() / 2]);
}

fn set(folder: &Path, name: &str, pointer: &str, value: Value) {
    let bytes = std::fs::read(folder.join(name)).expect("readable");
    let mut object: Value = serde_json::from_slice(&bytes).expect("JSON");
    *object.pointer_mut(pointer).expect("a field of that name") = value;
    write(folder, name, object.to_string().as_bytes());
}

#[test]
fn a_folder_that_is_incomplete_or_wrong_is_refused() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny/llama_relu_f16");
    for (what, damage, mentions) in FOLDER_DAMAGES {
        let scratch = Scratch::new();
        let model = scratch.copy_of(&tiny, "model");
        damage(&model);
        refused_by_all(&scratch, what, &model, mentions);
    }
    let scratch = Scratch::new();
    let empty = scratch.folder("empty");
    refused_by_all(&scratch, "an empty folder", &empty, &["config.json"]);
}

const TOKENIZER_DAMAGES: [FolderDamage; 4] = [
    (
        "another kind",
        |f| set(f, "tokenizer.json", "/model/type", json!("WordPiece")),
        &["tokenizer.json"],
    ),
    (
        "no merges",
        |f| set(f, "tokenizer.json", "/model/merges", json!(7)),
        &["tokenizer.json"],
    ),
    (
        "a wrong decoder",
        |f| set(f, "tokenizer.json", "/decoder/type", json!("WordPiece")),
        &["tokenizer.json"],
    ),
    (
        "an id far away",
        |f| set(f, "tokenizer.json", "/added_tokens/0/id", json!(123_456)),
        &["tokenizer.json", "added_tokens.id", "123456"],
    ),
];

#[test]
fn a_tokenizer_that_cannot_be_used_is_refused_before_anything_is_packed() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny/llama_relu_f16");
    for (what, damage, mentions) in TOKENIZER_DAMAGES {
        let scratch = Scratch::new();
        let model = scratch.copy_of(&tiny, "model");
        damage(&model);
        refused_by_users(&scratch, what, &model, mentions);
        assert!(found_in(scratch.path(), ".fbay").is_empty(), "{what}");
    }
    // Tokens without an embedding are no fault of a prompt that does not use them; this one begins with
    // one, as every text does.
    let scratch = Scratch::new();
    let model = scratch.copy_of(&tiny, "model");
    for (file, field, value) in [
        ("tokenizer.json", "/added_tokens/0/id", json!(288)),
        ("tokenizer.json", "/added_tokens/0/content", json!("<new>")),
        ("tokenizer_config.json", "/bos_token", json!("<new>")),
    ] {
        set(&model, file, field, value);
    }
    let run = ["run", text(&model), "-p", "the", "-q"];
    refused(
        scratch.path(),
        "a token without an embedding",
        &run,
        &["288", "vocabulary of 288"],
    );
}
