//! What is wrong is said before a model is packed or run, which may take hours.

use std::io::Write;
use std::process::Stdio;

use crate::gguf_writer::Model;
use crate::packs::small_pack;
use crate::program::{answer, forebay};
use crate::refusal::{refused, text};
use crate::scratch::{Scratch, found_in};

/// A model that has not been packed, and a text.
fn source(scratch: &Scratch) -> [String; 2] {
    let model = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    let words = scratch.write("words.txt", "the other ".repeat(300));
    [text(&model).into(), text(&words).into()]
}

/// Refused, and nothing is packed.
fn refused_unpacked(scratch: &Scratch, arguments: &[&str], mentions: &[&str]) {
    refused(scratch.path(), "early", arguments, mentions);
    let packed = found_in(scratch.path(), ".fbay");
    assert!(packed.is_empty(), "{arguments:?} packed {packed:?}");
}

#[test]
fn what_the_arguments_or_the_header_rule_out_is_refused_before_the_model_is_packed() {
    let scratch = Scratch::new();
    let [model, words] = source(&scratch);
    let template = scratch.write("broken.jinja", "{% if %}");
    let plan = scratch.write("plan.json", "no plan");
    let run = ["run", &model, "-p", "the"];
    for (flags, mentions) in [
        (
            &["--chat", "--chat-template", "missing.jinja"][..],
            &["missing.jinja", "No such file"][..],
        ),
        (
            &["--chat", "--chat-template", text(&template)],
            &["broken.jinja", "line 1"],
        ),
        (&["--chat"], &["no chat template", "--chat-template"]),
        (&["--plan", text(&plan)], &["plan.json", "forebay plan"]),
        (&["--threads", "1000"], &["1000 threads"]),
        (&["--stop", ""], &["--stop", "give some text"]),
        (&["--ctx", "129"], &["129 tokens", "--ctx 128"]),
        (&["--experts", "2"], &["no experts"]),
        (
            &["--memory", "4MiB"],
            &["4.00 MiB is too small", "process", "--memory"],
        ),
        (
            &["--density", "0.5"],
            &["--density", "--sparsity threshold"],
        ),
        (
            &["--density", "0.5", "--sparsity", "dense"],
            &["--density", "--sparsity threshold"],
        ),
    ] {
        refused_unpacked(&scratch, &[&run, flags].concat(), mentions);
    }
    let bench = ["bench", &model, "--tests", "pp4,tg129"];
    refused_unpacked(&scratch, &bench, &["tg129", "128", "shorter test"]);
    for arguments in [
        &["profile", &model, "-f", &words, "--ctx", "129"][..],
        &["calibrate", &model, "-f", &words, "--ctx", "129"],
        &["fit-predictor", &model, "-f", &words, "--ctx", "129"],
    ] {
        refused_unpacked(&scratch, arguments, &["129 tokens", "--ctx 128"]);
    }
    let fit = ["fit-predictor", &model, "-f", &words, "--ctx", "64"];
    for (flags, mentions) in [
        (&["--rank", "0"][..], &["--rank", "at least 2"][..]),
        (&["--recall", "2"], &["--recall", "at most 1"]),
        (
            &["--tokens", "128"],
            &["128 tokens", "4 pieces of 64", "--test-pieces"],
        ),
    ] {
        refused_unpacked(&scratch, &[&fit, flags].concat(), mentions);
    }
    #[cfg(not(feature = "gpu"))]
    for command in [
        &["run", &model, "-p", "the", "--device", "gpu:7"][..],
        &["bench", "--kernels", "--device", "gpu:7"],
    ] {
        let mentions = ["no device gpu:7", "--features gpu", "omit --device"];
        refused_unpacked(&scratch, command, &mentions);
    }
}

#[test]
fn what_is_no_model_is_not_examined() {
    let scratch = Scratch::new();
    let words = scratch.write("text.txt", "no model");
    let arguments = ["doctor", text(&words), "--quick"];
    refused(scratch.path(), "a text", &arguments, &["text.txt", "GGUF"]);
    let folder = ["doctor", text(scratch.path()), "--quick"];
    refused(scratch.path(), "a folder", &folder, &["config.json"]);
}

#[test]
fn a_question_that_is_too_long_is_told_with_a_remedy() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    let (short, long) = ("the", "the other ".repeat(40));
    let question = |context: &str| {
        format!(r#"{{"context": "{context}", "choices": ["one", "two"], "answer": 1}}"#)
    };
    let lines = format!("{}\n{}\n", question(short), question(&long));
    let file = scratch.write("questions.jsonl", lines);
    let mut arguments = vec!["eval", "multiple-choice", text(&model), "-f", text(&file)];
    arguments.extend(["--ctx", "32"]);
    let mentions = ["questions.jsonl", "question 2", "holds 32", "larger --ctx"];
    refused(scratch.path(), "question", &arguments, &mentions);
}

#[test]
fn a_text_that_is_too_short_is_told_with_its_own_number_of_tokens() {
    let scratch = Scratch::new();
    let [model, words] = source(&scratch);
    let arguments = ["fit-predictor", &model, "-f", &words, "--test-pieces", "99"];
    let said = refused(scratch.path(), "short", &arguments, &["99 pieces of 128"]);
    assert!(!said.contains(" 0 tokens"), "{said}");
}

#[test]
fn a_missing_model_is_told_before_a_text_is_read() {
    let scratch = Scratch::new();
    let missing = scratch.join("missing.gguf");
    let draft = scratch.join("draft.gguf");
    let model = scratch.write("model.fbay", small_pack());
    for (arguments, file) in [
        (&["run", text(&missing)][..], &missing),
        (&["chat", text(&missing)], &missing),
        (&["run", text(&model), "--draft", text(&draft)], &draft),
        (&["doctor", text(&missing)], &missing),
        (&["doctor", text(&missing), "--quick"], &missing),
    ] {
        refused(scratch.path(), "missing", arguments, &[text(file)]);
    }
    let tests = ["bench", text(&missing), "--tests", "pp4"];
    let said = refused(scratch.path(), "bench", &tests, &[text(&missing)]);
    assert!(!said.contains("cannot run pp4"), "{said}");
    for n in ["0", "1000"] {
        let threads = ["doctor", "--quick", "-t", n];
        refused(scratch.path(), n, &threads, &[n, "threads"]);
    }
}

#[test]
fn files_to_be_written_are_tried_first_and_are_never_models() {
    let scratch = Scratch::new();
    let [model, words] = source(&scratch);
    let other = scratch.write("other.gguf", Model::default().writer().bytes());
    let packed = scratch.folder("elsewhere").join("other.fbay");
    std::fs::write(&packed, small_pack()).expect("a writable folder");
    let trace = scratch.write("trace.json", "[]");
    let out = scratch.folder("out").join("out.fbay");
    let before = |path| std::fs::read(path).expect("there");
    let models = [&other, &packed].map(|path| (path, before(path)));
    let missing = scratch.join("no/such/file");
    for (flag, command) in [
        ("--stats", &["run", &model, "-p", "the", "-n", "2"][..]),
        ("--trace", &["run", &model, "-p", "the", "-n", "2"]),
        ("--save", &["eval", "kl", &model, "-f", &words]),
        ("--importance", &["profile", &model, "-f", &words]),
        ("--trace", &["pack", &model, "-o", text(&out)]),
        ("--html", &["trace", "report", text(&trace)]),
    ] {
        for (target, mention) in [
            (text(&missing), "No such file"),
            (text(scratch.path()), "is a directory"),
            (&model, "is a model"),
            (text(&other), "is a model"),
            (text(&packed), "is a model"),
        ] {
            let arguments = [command, &[flag, target]].concat();
            refused_unpacked(&scratch, &arguments, &[flag, target, mention]);
        }
    }
    assert!(!out.exists());
    for (path, bytes) in models {
        assert!(before(path) == bytes, "{} was written to", path.display());
    }
}

#[test]
fn an_importance_matrix_may_be_written_again() {
    let scratch = Scratch::new();
    let [model, words] = source(&scratch);
    let matrix = scratch.join("importance.gguf");
    for _ in 0..2 {
        let arguments = ["profile", &model, "-f", &words, "--ctx", "32"];
        let out = ["--tokens", "64", "--importance", text(&matrix)];
        let said = answer(forebay(scratch.path(), arguments.iter().chain(&out)));
        assert!(said.status.success(), "{}", said.stderr);
    }
}

#[test]
fn a_hyphen_is_standard_input_and_no_context_is_the_trained_one() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    let run = |arguments: &[&str]| {
        let usual = ["run", text(&model), "-n", "4", "--greedy"];
        let mut command = forebay(scratch.path(), usual.iter().chain(arguments));
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(b"the other").expect("a pipe holds it");
        drop(writer);
        command.stdin(Stdio::from(reader));
        let said = answer(command);
        assert!(said.status.success(), "{}", said.stderr);
        said.stdout
    };
    let expected = run(&["-q", "-p", "the other"]);
    assert_eq!(run(&["-q", "-f", "-"]), expected);
    assert_eq!(run(&["-q"]), expected);
    let statistics = run(&["-c", "0", "--stats", "-"]);
    let statistics: serde_json::Value = serde_json::from_str(&statistics).expect("JSON");
    assert_eq!(statistics["plan"]["context"], 128);
}

#[test]
fn a_cache_that_is_no_folder_is_told() {
    let scratch = Scratch::new();
    let file = scratch.write("file", "");
    let named = ["cache", "ls", "--cache", text(&file)];
    refused(scratch.path(), "named", &named, &[text(&file), "directory"]);
    refused(
        &file,
        "variable",
        &["cache", "ls"],
        &[text(&file), "directory"],
    );
    let model = Model::default().writer().write(scratch.path(), "m.gguf");
    let run = ["run", text(&model), "-p", "the", "--cache", text(&file)];
    refused(scratch.path(), "run", &run, &[text(&file), "directory"]);
}
