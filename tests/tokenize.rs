//! `forebay tokenize`: every kind of model, what is printed, and clear errors.

#[path = "../models/tests/gguf_writer/mod.rs"]
mod gguf_writer;
mod program;
mod scratch;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gguf_writer::{GgufWriter, Model};
use program::{Answer, answer, forebay};
use scratch::Scratch;
use serde_json::{Value, json};

/// A vocabulary and nothing else: `<s>` is 0, byte b is b + 2, `th` is 258.
fn vocabulary() -> GgufWriter {
    let mut writer = Model::default().writer();
    writer.tensors.clear();
    writer
        .metadata
        .retain(|(key, _)| key.starts_with("tokenizer."));
    writer
}

fn tokenize(scratch: &Scratch, model: &Path, flags: &[&str]) -> Command {
    let arguments = [OsStr::new("tokenize"), model.as_os_str()];
    forebay(
        scratch.path(),
        arguments.into_iter().chain(flags.iter().map(OsStr::new)),
    )
}

fn json_of(answer: &Answer) -> Value {
    assert!(answer.status.success(), "{}", answer.stderr);
    serde_json::from_str(&answer.stdout).expect("one JSON object")
}

#[test]
fn ids_and_pieces_of_a_vocabulary_without_tensors() {
    let scratch = Scratch::new();
    let model = vocabulary().write(scratch.path(), "vocabulary.gguf");
    let text = "the \u{e9}\n";
    let said = answer(tokenize(&scratch, &model, &["-p", text]));
    assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
    let lines: Vec<&str> = said.stdout.lines().map(str::trim_start).collect();
    let expected = [
        r#"0  "<s>""#,
        r#"258  "th""#,
        r#"103  "e""#,
        r#"34  " ""#,
        r#"197  "\xc3""#,
        r#"171  "\xa9""#,
        r#"12  "\n""#,
    ];
    assert_eq!(lines, expected);
    let said = json_of(&answer(tokenize(&scratch, &model, &["-p", text, "--json"])));
    let expected = json!({"ids": [0, 258, 103, 34, 197, 171, 12],
        "pieces": ["<s>", "th", "e", " ", "\u{fffd}", "\u{fffd}", "\n"]});
    assert_eq!(said, expected);
}

#[test]
fn special_tokens_and_ways_to_give_a_text() {
    let scratch = Scratch::new();
    let model = vocabulary().write(scratch.path(), "vocabulary.gguf");
    let ids = |flags: &[&str]| json_of(&answer(tokenize(&scratch, &model, flags)))["ids"].clone();
    assert_eq!(ids(&["--json", "-p", "</s>th"]), json!([0, 1, 258]));
    let plain = ids(&["--json", "--no-special", "-p", "</s>th"]);
    assert_eq!(plain, json!([62, 49, 117, 64, 258]));
    assert_eq!(ids(&["--json", "-p", ""]), json!([0]));
    let file = scratch.write("text.txt", "th");
    let file = file.to_str().expect("a path in Unicode");
    assert_eq!(ids(&["--json", "-f", file]), json!([0, 258]));

    let mut piped = tokenize(&scratch, &model, &["--json"]);
    let mut child = piped.stdin(Stdio::piped()).spawn().expect("a program");
    let mut stdin = child.stdin.take().expect("a pipe");
    // More than a pipe holds, in many pieces.
    let text = "th ".repeat(100_000);
    stdin.write_all(text.as_bytes()).expect("a reader");
    drop(stdin);
    let output = child.wait_with_output().expect("an end");
    assert!(output.status.success());
    let said: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(said["ids"].as_array().map(Vec::len), Some(200_001));
}

#[test]
fn folders_and_packed_files_have_the_same_tokens() {
    let scratch = Scratch::new();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo/hf");
    let packed = scratch.join("demo.fbay");
    let arguments = [
        "pack".as_ref(),
        demo.as_os_str(),
        "-o".as_ref(),
        packed.as_ref(),
        "-q".as_ref(),
    ];
    let said = answer(forebay(scratch.path(), arguments));
    assert!(said.status.success(), "{}", said.stderr);
    let bare = scratch.folder("bare");
    std::fs::copy(demo.join("tokenizer.json"), bare.join("tokenizer.json")).expect("a copy");

    let flags = ["--json", "--no-special", "-p", "Once upon a time"];
    let tokens = |model: &PathBuf| json_of(&answer(tokenize(&scratch, model, &flags)));
    let expected = tokens(&demo);
    let pieces = expected["pieces"].as_array().expect("pieces");
    let text: String = pieces.iter().filter_map(Value::as_str).collect();
    assert_eq!(text, "Once upon a time");
    assert_eq!(tokens(&packed), expected);
    assert_eq!(tokens(&bare), expected);
}

#[test]
fn a_model_that_names_no_pre_tokenizer_is_warned_of() {
    let scratch = Scratch::new();
    let mut writer = vocabulary();
    let model = writer
        .unset("tokenizer.ggml.pre")
        .write(scratch.path(), "old.gguf");
    let said = answer(tokenize(&scratch, &model, &["--json", "-p", "th"]));
    assert_eq!(json_of(&said)["ids"], json!([0, 258]));
    assert!(said.stderr.contains("warning") && said.stderr.contains("tokenizer.ggml.pre"));
}

#[test]
fn errors_name_the_file_the_field_and_a_remedy() {
    let scratch = Scratch::new();
    let folder = scratch.path();
    let model = vocabulary().write(folder, "vocabulary.gguf");
    let unknown = vocabulary()
        .set("tokenizer.ggml.pre", "klingon")
        .write(folder, "unknown.gguf");
    let unigram = vocabulary()
        .set("tokenizer.ggml.model", "t5")
        .write(folder, "unigram.gguf");
    let none = vocabulary()
        .unset("tokenizer.ggml.tokens")
        .write(folder, "none.gguf");
    let empty = scratch.folder("empty");
    let cut = scratch.write("cut.gguf", &vocabulary().bytes()[..999]);
    let packed = scratch.write("broken.fbay", "FOREBAY");
    let not_text = scratch.write("latin1.txt", b"caf\xe9");
    let not_text = not_text.to_str().expect("a path in Unicode");
    let cases: [(&Path, &[&str], &[&str]); 9] = [
        (
            &unknown,
            &["-p", "x"],
            &[
                "unknown.gguf",
                "tokenizer.ggml.pre",
                "klingon",
                "qwen2",
                "/issues",
            ],
        ),
        (
            &unigram,
            &["-p", "x"],
            &["unigram.gguf", "tokenizer.ggml.model", "t5"],
        ),
        (&none, &["-p", "x"], &["none.gguf", "tokenizer.ggml.tokens"]),
        (&empty, &["-p", "x"], &["empty", "tokenizer.json"]),
        (&cut, &["-p", "x"], &["cut.gguf", "again"]),
        (&packed, &["-p", "x"], &["broken.fbay"]),
        (&model, &["-f", "missing.txt"], &["missing.txt", "-f"]),
        (&model, &["-f", not_text], &["latin1.txt", "UTF-8"]),
        (
            &folder.join("missing.gguf"),
            &["-p", "x"],
            &["missing.gguf"],
        ),
    ];
    for (model, flags, mentions) in cases {
        let said = answer(tokenize(&scratch, model, flags));
        assert_eq!(said.status.code(), Some(1), "{}", said.stderr);
        assert_eq!(said.stderr.matches("error: ").count(), 1, "{}", said.stderr);
        for mention in mentions {
            assert!(
                said.stderr.contains(mention),
                "no word of {mention:?}: {}",
                said.stderr
            );
        }
    }
    let both = answer(tokenize(&scratch, &model, &["-p", "x", "-f", "y"]));
    assert_eq!(both.status.code(), Some(2), "{}", both.stderr);
}
