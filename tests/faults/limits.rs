//! Systems that allow the program little: few files, little address space, less memory than was asked for.

use std::path::Path;
use std::process::Command;

use crate::gguf_writer::Model;
use crate::packs::small_pack;
use crate::program::{Answer, answer, forebay, with_limit};
use crate::refusal::text;
use crate::scratch::Scratch;

/// Runs under `limit`: either all is well, or the message names `remedy`. Returns whether all was well.
fn well_or_clear(limit: &str, command: &Command, remedy: &str) -> bool {
    let said = answer(with_limit(command, limit));
    if said.status.success() {
        return true;
    }
    assert_eq!(said.status.code(), Some(1), "{limit}: {}", said.stderr);
    assert_eq!(said.stderr.lines().count(), 1, "{limit}: {}", said.stderr);
    assert!(said.stderr.contains("forebay: error: "), "{}", said.stderr);
    assert!(said.stderr.contains(remedy), "{limit}: {}", said.stderr);
    false
}

/// Two tokens of a model, which is read by `driver`.
fn short_run(scratch: &Scratch, model: &Path, driver: &str) -> Command {
    let model = text(model);
    let run = ["run", model, "-p", "the", "-q", "-n", "2", "--io", driver];
    forebay(scratch.path(), run)
}

#[test]
fn too_few_files_are_a_clear_error() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    for driver in ["auto", "pread"] {
        let run = short_run(&scratch, &model, driver);
        // With fewer, the dynamic linker cannot open its libraries.
        let enough = |files: u32| well_or_clear(&format!("-n {files}"), &run, "ulimit -n ");
        for files in 4..40 {
            enough(files);
        }
        assert!(!enough(6) && !enough(20) && enough(64));
    }
}

#[test]
fn too_little_address_space_is_a_clear_error() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    for driver in ["auto", "pread"] {
        let run = short_run(&scratch, &model, driver);
        let enough = |mib: u64| {
            let limit = format!("-v {}", mib << 10);
            well_or_clear(&limit, &run, "ulimit -v ")
        };
        // With less, the program itself cannot be mapped.
        for mib in (100..700).step_by(23) {
            enough(mib);
        }
        assert!(!enough(100) && !enough(150) && enough(8192));
    }
}

#[test]
fn a_budget_beyond_the_machine_is_warned_of() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    let run = |memory: &str| {
        let run = [
            "run",
            text(&model),
            "-p",
            "the",
            "-q",
            "-n",
            "2",
            "--memory",
            memory,
        ];
        let said = answer(forebay(scratch.path(), run));
        assert!(said.status.success(), "{}", said.stderr);
        said.stderr
    };
    assert_eq!(run("200MiB"), "");
    let warning = run("4000TiB");
    assert!(
        warning.starts_with("forebay: warning: --memory"),
        "{warning}"
    );
    assert!(warning.contains("MiB or less"), "{warning}");
    assert_eq!(warning.lines().count(), 1, "{warning}");
}

#[test]
fn signals_end_the_program_as_documented() {
    let scratch = Scratch::new();
    let stats = scratch.join("stats.json");
    let interrupted = |signal: &str| {
        let mut run = forebay(scratch.path(), ["run", "-n", "480", "--ignore-eog", "-q"]);
        run.arg("--stats").arg(&stats);
        let mut child = run.spawn().expect("the program starts");
        // Its first output says that it listens.
        let mut first = [0];
        let out = child.stdout.as_mut().expect("piped");
        std::io::Read::read_exact(out, &mut first).expect("a story");
        let id = child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status();
        assert!(sent.expect("a program named kill").success());
        child.wait_with_output().expect("its end").status
    };
    assert_eq!(interrupted("-INT").code(), Some(0));
    let text = std::fs::read_to_string(&stats).expect("statistics");
    assert!(text.contains("\"cancelled\""), "{text}");
    assert_eq!(interrupted("-TERM").code(), Some(143));
}

/// The size that a refusal names.
fn least(said: &Answer) -> String {
    assert_eq!(said.status.code(), Some(1), "{}", said.stderr);
    let named = said.stderr.split("give --memory ").nth(1);
    let named = named.and_then(|text| text.split(' ').next());
    named.expect("a size to give").to_string()
}

#[test]
fn the_least_budget_beside_a_model_that_drafts_suffices() {
    let scratch = Scratch::new();
    let wide = Model {
        vocab: 60_000,
        ..Model::default()
    };
    let model = wide.writer().write(scratch.path(), "model.gguf");
    let run = |memory: &str| {
        let mut run = vec![
            "run",
            text(&model),
            "--draft",
            text(&model),
            "-q",
            "-n",
            "8",
        ];
        run.extend(["-t", "1", "--greedy", "-p", "the other", "--memory", memory]);
        answer(forebay(&scratch.folder("cache"), run))
    };
    run("2GiB");
    let least = least(&run("1MiB"));
    let said = run(&least);
    assert!(said.status.success(), "{least}: {}", said.stderr);
}

#[test]
fn the_least_budget_does_in_the_run_that_packs_too() {
    let scratch = Scratch::new();
    let large_vocabulary = Model {
        vocab: 150_000,
        ..Model::default()
    };
    let model = large_vocabulary
        .writer()
        .write(scratch.path(), "model.gguf");
    let run = |cache: &str, memory: &str, prompt: Option<&str>| {
        let mut run = vec!["run", text(&model), "-q", "-n", "2", "--greedy", "-t", "1"];
        run.extend(["--memory", memory]);
        run.extend(prompt.iter().flat_map(|prompt| ["-p", prompt]));
        let mut run = forebay(&scratch.folder(cache), run);
        let words = scratch.write("prompt.txt", "the other");
        run.stdin(std::fs::File::open(words).expect("readable"));
        answer(run)
    };
    let first = least(&run("warm", "1MiB", Some("the other")));
    let least = least(&run("warm", "1MiB", Some("the other")));
    // What a process has resident differs a little from start to start; what packing leaves behind is far more.
    let mib = |size: &str| size.trim_end_matches("MiB").parse::<u64>().expect("MiB");
    assert!(mib(&first).abs_diff(mib(&least)) <= 1, "{first} {least}");
    let expected = run("warm", &least, Some("the other"));
    assert!(expected.status.success(), "{}", expected.stderr);
    for (cache, prompt) in [("argument", Some("the other")), ("input", None)] {
        let said = run(cache, &least, prompt);
        assert!(said.status.success(), "{least}: {}", said.stderr);
        assert_eq!(said.stdout, expected.stdout);
    }
}
