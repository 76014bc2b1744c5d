//! Pipes without a writer in the place of files: opening them must not wait.

use std::path::Path;
use std::process::Command;

use forebay_models::bundle::hot_set_path;

use crate::packs::small_pack;
use crate::program::{answer, forebay};
use crate::refusal::{refused, text};
use crate::scratch::{Scratch, found_in};

fn pipe(path: &Path) {
    let _ = std::fs::remove_file(path);
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.expect("a program").success(), "{}", path.display());
}

#[test]
fn pipes_in_a_models_folder_are_refused() {
    let scratch = Scratch::new();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny/llama_relu_f16");
    let out = scratch.join("out.fbay");
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
    ] {
        let model = scratch.copy_of(&tiny, name);
        pipe(&model.join(name));
        for arguments in [
            vec!["run", text(&model), "-p", "the"],
            vec!["pack", text(&model), "-o", text(&out)],
        ] {
            let mentions = [name, "not a regular file"];
            refused(scratch.path(), name, &arguments, &mentions);
        }
    }
}

#[test]
fn pipes_for_what_the_engine_keeps_are_ignored_or_refused() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    let hot = hot_set_path(&model);
    let profile = scratch.join("model.fbay.profile");
    let (machine, plan) = (scratch.join("machine.json"), scratch.join("plan.json"));
    [&*hot, &profile, &machine, &plan]
        .into_iter()
        .for_each(pipe);
    let usual = [
        "run",
        text(&model),
        "-q",
        "-p",
        "the",
        "-n",
        "4",
        "--greedy",
        "--ctx",
        "64",
    ];
    let said = answer(forebay(scratch.path(), usual));
    assert!(said.status.success(), "{}", said.stderr);
    pipe(&hot);
    let cold = [&usual[..], &["--cold"]].concat();
    assert_eq!(answer(forebay(scratch.path(), cold)).stdout, said.stdout);
    let planned = [&usual[..], &["--plan", text(&plan)]].concat();
    let mentions = [text(&plan), "not a regular file"];
    refused(scratch.path(), "plan", &planned, &mentions);
    let out = scratch.join("out.fbay");
    let tiny = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/tiny/llama_relu_f16"
    );
    pipe(&profile);
    let sorted = ["pack", tiny, "-o", text(&out), "--profile", text(&profile)];
    let mentions = [text(&profile), "not a regular file"];
    refused(scratch.path(), "profile", &sorted, &mentions);
    assert_eq!(found_in(scratch.path(), "out.fbay").len(), 0);
}

/// As in `-f <(command)`.
#[test]
fn a_prompt_may_come_through_a_pipe() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    let prompt = scratch.join("prompt");
    pipe(&prompt);
    let run = [
        "run",
        text(&model),
        "-q",
        "-n",
        "2",
        "--ctx",
        "64",
        "-f",
        text(&prompt),
    ];
    let said = std::thread::scope(|scope| {
        scope.spawn(|| std::fs::write(&prompt, "the other"));
        answer(forebay(scratch.path(), run))
    });
    assert!(said.status.success(), "{}", said.stderr);
}

/// As in `--stats >(command)`.
#[test]
fn results_may_go_through_a_pipe() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    let stats = scratch.join("stats");
    pipe(&stats);
    let run = ["run", text(&model), "-q", "-p", "the", "-n", "2", "--stats"];
    let (said, passed) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| std::fs::read_to_string(&stats));
        let mut command = forebay(scratch.path(), run);
        command.arg(&stats);
        (answer(command), reader.join().expect("a reader"))
    });
    assert!(said.status.success(), "{}", said.stderr);
    assert!(passed.expect("text").contains("logits_hash"));
}
