//! Flags that cannot be: each refusal names the flag (or the file in it) and what would be accepted.

use std::io::Write;
use std::process::Stdio;

use crate::gguf_writer::Model;
use crate::packs::small_pack;
use crate::program::{answer, forebay};
use crate::refusal::{refused, refused_to_write, text};
use crate::scratch::Scratch;

/// Flags behind `run -p "the" -n 2`, or instead of them, and what the message mentions.
const FLAGS: [(&[&str], &[&str]); 41] = [
    (
        &["--threads", "0"],
        &["0 threads", "at least one", "--threads"],
    ),
    (&["--threads", "100000"], &["100000 threads", "--threads"]),
    (&["--threads", "-1"], &["-1"]),
    (&["--threads", "two"], &["--threads", "two"]),
    (&["--ctx", "-1"], &["--ctx", "not below 0"]),
    (&["--ctx", "129"], &["129 tokens", "--ctx 128"]),
    (&["--ctx", "18446744073709551615"], &["--ctx", "128"]),
    (&["--ctx", "18446744073709551616"], &["--ctx"]),
    (&["--ctx", "1"], &["--ctx", "context holds 1"]),
    (
        &["--ctx", "3"],
        &["--ctx", "3 tokens", "context holds 3, and one more"],
    ),
    (&["-n", "-5"], &["-5"]),
    (&["-n", "many"], &["-n", "many"]),
    (&["-n", "1.5"], &["-n", "1.5"]),
    (&["--temp", "NaN"], &["--temp", "from 0"]),
    (&["--temp", "inf"], &["--temp", "from 0"]),
    (&["--temp", "hot"], &["--temp", "hot"]),
    (&["--temp", "1e308"], &["--temp", "1e308", "too large"]),
    (&["--top-p", "1e308"], &["--top-p", "1e308", "too large"]),
    (
        &["--chat", "--template-option", "messages=[]"],
        &["--template-option", "sets messages itself"],
    ),
    (&["--policy", "lru"], &["--policy"]),
    (&["--top-p", "1.5"], &["--top-p", "from 0 to 1"]),
    (&["--top-p=-0.1"], &["--top-p", "from 0 to 1"]),
    (&["--min-p", "2"], &["--min-p", "from 0"]),
    (&["--min-p", "nan"], &["--min-p", "from 0"]),
    (&["--top-k", "-1"], &["-1"]),
    (&["--repeat-penalty", "0"], &["--repeat-penalty", "above 0"]),
    (&["--seed", "x"], &["--seed", "x"]),
    (&["--greedy", "--temp", "1"], &["--greedy", "--temp"]),
    (&["--isa", "quantum"], &["--isa", "quantum", "scalar"]),
    (&["--io", "telepathy"], &["--io", "telepathy", "pread"]),
    (&["--sparsity", "some"], &["--sparsity", "exact"]),
    (&["--memory", "lots"], &["--memory", "lots", "640MiB"]),
    (&["--memory", "0%"], &["--memory", "0%"]),
    (&["--memory", "101%"], &["--memory", "101%"]),
    (&["--memory", "-1"], &["-1", "640MiB"]),
    (&["--memory", "20000000TiB"], &["--memory", "16 EiB"]),
    (&["--memory", "0"], &["0 B", "the minimum is", "--memory"]),
    (&["--memory", "1"], &["1 B", "the minimum is", "--memory"]),
    (&["--experts", "1"], &["--experts", "no experts"]),
    (
        &["--drop-cold-experts", "0.5"],
        &["--drop-cold-experts", "no experts"],
    ),
    (&["--colour", "red"], &["--colour"]),
];

#[test]
fn impossible_flags_are_refused() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    for (flags, mentions) in FLAGS {
        let mut arguments = vec!["run", text(&model), "-q"];
        if flags[0] != "-n" {
            arguments.extend(["-n", "2"]);
        }
        arguments.extend(["-p", "the"]);
        arguments.extend(flags);
        refused(scratch.path(), "run", &arguments, mentions);
    }
    // The largest count there is means "to the end of the context".
    let most = [
        "run",
        text(&model),
        "-q",
        "-p",
        "the",
        "-n",
        "18446744073709551615",
        "--greedy",
    ];
    let said = answer(forebay(scratch.path(), most));
    assert!(said.status.success(), "{}", said.stderr);
    refused(scratch.path(), "no such command", &["sing"], &["sing"]);
}

#[test]
fn wrong_sampling_is_refused_before_a_model_is_read() {
    let scratch = Scratch::new();
    let missing = scratch.join("missing.gguf");
    let arguments = ["run", text(&missing), "-p", "the", "--top-p", "3"];
    let message = refused(
        scratch.path(),
        "top-p",
        &arguments,
        &["--top-p", "from 0 to 1"],
    );
    assert!(!message.contains("missing.gguf"), "{message}");
    let stop = ["run", text(&missing), "-p", "the", "--tokens", "5"];
    refused(scratch.path(), "no such flag", &stop, &["--tokens"]);
}

#[test]
fn counts_of_nothing_are_refused() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    let words = scratch.write("text.txt", "the other ".repeat(200));
    let (model, words) = (text(&model), text(&words));
    for (command, flag, values) in [
        (&["eval", "perplexity"][..], "--ctx", &["0", "2"][..]),
        (&["eval", "perplexity"], "--chunks", &["0"]),
        (&["calibrate"], "--ctx", &["0", "2"]),
        (&["fit-predictor"], "--ctx", &["0", "2"]),
        (&["profile"], "--ctx", &["0"]),
        (&["profile"], "--tokens", &["0"]),
        (&["calibrate"], "--tokens", &["0"]),
        (&["fit-predictor"], "--tokens", &["0"]),
        (&["eval", "multiple-choice"], "-n", &["0"]),
    ] {
        for value in values {
            let arguments = [command, &[model, "-f", words, flag, value]].concat();
            refused(scratch.path(), flag, &arguments, &[flag, value]);
        }
    }
    for value in ["0", "18446744073709551615", "18446744073709551614"] {
        let arguments = ["profile", model, "--generate", value];
        refused(
            scratch.path(),
            "--generate",
            &arguments,
            &["--generate", value],
        );
    }
}

#[test]
fn habits_from_other_programs_are_understood() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    let run = |arguments: &[&str]| {
        let said = answer(forebay(scratch.path(), arguments));
        assert!(said.status.success(), "{arguments:?}: {}", said.stderr);
        said
    };
    let model = text(&model);
    let usual = [
        "run", model, "-q", "-p", "the", "-n", "4", "--greedy", "--ctx", "64",
    ];
    let expected = run(&usual).stdout;
    for other in [
        &[
            "run", "-m", model, "-q", "-p", "the", "-n", "4", "--temp", "-1", "-c", "64",
        ][..],
        &[
            model, "-q", "-p", "the", "-n", "4", "--temp", "0", "-c", "64",
        ],
        &["-m", model, "-q", "-p", "the", "-n", "4", "--temp=-1"],
    ] {
        assert_eq!(run(other).stdout, expected, "{other:?}");
    }
    let endless = [model, "-q", "-p", "the", "--greedy", "-c", "32"];
    let limited = [&endless[..], &["-n", "-1"]].concat();
    assert_eq!(run(&limited).stdout, run(&endless).stdout);
    // One line beside the results, unless more is asked for.
    let said = run(&[model, "-p", "the", "-n", "4", "--greedy"]);
    assert_eq!(said.stderr.lines().count(), 1, "{}", said.stderr);
    assert!(said.stderr.contains("tok/s"), "{}", said.stderr);
    let said = run(&[model, "-p", "the", "-n", "4", "--greedy", "-v"]);
    assert!(said.stderr.contains("kv_cache"), "{}", said.stderr);
}

#[test]
fn shells_are_told_what_there_is() {
    let scratch = Scratch::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let said = answer(forebay(scratch.path(), ["completions", shell]));
        assert!(said.status.success(), "{shell}: {}", said.stderr);
        for word in ["fit-predictor", "n-predict", "prune"] {
            assert!(said.stdout.contains(word), "{shell} does not know {word}");
        }
    }
    refused(
        scratch.path(),
        "no such shell",
        &["completions", "csh"],
        &["csh", "zsh"],
    );
}

#[test]
fn prompts_that_cannot_be_read_are_refused() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    let run = |flags: &[&str], mentions: &[&str]| {
        let mut arguments = vec!["run", text(&model), "-q", "-n", "2"];
        arguments.extend(flags);
        refused(scratch.path(), "prompt", &arguments, mentions);
    };
    run(&["-p", ""], &["the prompt is empty", "-p"]);
    run(
        &["-p", &"over and over ".repeat(100)],
        &["context holds 128", "shorter prompt"],
    );
    run(&["-p", "a", "-f", "b"], &["--prompt", "--file"]);
    let missing = scratch.join("missing.txt");
    run(
        &["-f", text(&missing)],
        &[text(&missing), "No such file", "-f"],
    );
    run(
        &["-f", text(scratch.path())],
        &[text(scratch.path()), "directory"],
    );
    let empty = scratch.write("empty.txt", "");
    run(&["-f", text(&empty)], &["the prompt is empty"]);
    let binary = scratch.write("binary.txt", b"once \xff\xfe upon");
    run(&["-f", text(&binary)], &[text(&binary), "UTF-8"]);
    // Nothing on standard input, and something that is no text.
    run(&[], &["the prompt is empty"]);
    let mut command = forebay(scratch.path(), ["run", text(&model), "-q", "-n", "2"]);
    command.stdin(Stdio::from(std::fs::File::open(&binary).expect("readable")));
    let said = answer(command);
    assert_eq!(said.status.code(), Some(1));
    assert!(
        said.stderr.contains("standard input") && said.stderr.contains("UTF-8"),
        "{}",
        said.stderr
    );
}

#[test]
fn impossible_conversions_are_refused() {
    let scratch = Scratch::new();
    let model = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    let out = scratch.join("out.fbay");
    for (format, mention) in [
        ("q9", "q8_0"),
        ("", "q8_0"),
        ("iq3_xxs", "iq4_xs"),
        ("q4_k_m", "q4_k"),
    ] {
        let arguments = ["pack", text(&model), "-o", text(&out), "--quant", format];
        refused_to_write(
            scratch.path(),
            "--quant",
            &arguments,
            &["quant", mention],
            &out,
        );
    }
    for name in ["out.gguf", "out", ".fbay", "out.fbay.gz"] {
        let out = scratch.join(name);
        let arguments = ["pack", text(&model), "-o", text(&out)];
        refused_to_write(
            scratch.path(),
            name,
            &arguments,
            &[text(&out), ".fbay"],
            &out,
        );
    }
    refused(
        scratch.path(),
        "no output",
        &["pack", text(&model)],
        &["--output"],
    );
}

#[test]
fn the_least_memory_that_a_refusal_names_really_works() {
    let scratch = Scratch::new();
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/models/demo/hf");
    let model = scratch.write("model.fbay", small_pack());
    for model in [demo, text(&model)] {
        for extra in [
            &[][..],
            &["--threads", "1"],
            &["--ctx", "100"],
            &["--sparsity", "dense"],
        ] {
            let with = |memory: &str| {
                let mut arguments = vec!["run", model, "-p", "the", "-n", "4", "-q", "--greedy"];
                arguments.extend(["--memory", memory]);
                arguments.extend(extra);
                arguments.into_iter().map(String::from).collect::<Vec<_>>()
            };
            let refusal = with("1MiB");
            let refusal: Vec<&str> = refusal.iter().map(String::as_str).collect();
            let message = refused(scratch.path(), "1 MiB", &refusal, &["the minimum is"]);
            let least = message
                .split("give --memory ")
                .nth(1)
                .and_then(|m| m.split(' ').next());
            let least = least.expect("a size to give");
            for _ in 0..2 {
                let said = answer(forebay(scratch.path(), with(least)));
                assert!(
                    said.status.success(),
                    "{extra:?} with {least}: {}",
                    said.stderr
                );
                assert!(!said.stdout.is_empty());
            }
        }
    }
}

#[test]
fn an_output_that_goes_away_is_no_panic() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    for arguments in [
        vec!["inspect", text(&model)],
        vec!["inspect", text(&model), "--json"],
        vec!["run", text(&model), "-p", "the", "-q"],
        vec!["run", text(&model), "-p", "the", "-n", "2"],
        vec!["doctor", "--quick"],
        vec!["--help"],
        vec!["run", "--help"],
        vec!["--version"],
    ] {
        let mut full = forebay(scratch.path(), &arguments);
        let device = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("a full device");
        full.stdout(Stdio::from(device));
        let said = answer(full);
        assert_eq!(
            said.status.code(),
            Some(1),
            "{arguments:?}: {}",
            said.stderr
        );
        assert!(
            said.stderr.contains("standard output"),
            "{arguments:?}: {}",
            said.stderr
        );
        assert!(
            !said.stderr.contains("panicked"),
            "{arguments:?}: {}",
            said.stderr
        );

        // As other programs leave `| head`: without a word, but not as if all had been written.
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(b"x").expect("room");
        drop(reader);
        let mut broken = forebay(scratch.path(), &arguments);
        broken.stdout(Stdio::from(writer));
        let said = answer(broken);
        assert_eq!(
            said.status.code(),
            Some(128 + 13),
            "{arguments:?}: {}",
            said.stderr
        );
        assert!(
            !said.stderr.contains("error") && !said.stderr.contains("panicked"),
            "{arguments:?}: {}",
            said.stderr
        );
    }
}
