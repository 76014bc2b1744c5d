//! Prompts that fill the context, of tokenizers of both kinds: encoding them is part of the budget as well.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_models::tokenizer::EncodeOptions;

use crate::group::Group;
use crate::measured::{MIB, Run, run_command};
use crate::subject::length;
use crate::support::{self, TemporaryFile, program};

/// Contexts; the longest ones only where the tests run longer.
const CONTEXTS: [usize; 5] = [256, 1024, 4096, 16384, 32768];
/// Tokens generated after the prompt.
const TOKENS: usize = 2;
/// What is repeated: words, line ends, letters outside ASCII, and words of many tokens.
const TEXTS: [&str; 4] = [
    "Once upon a time there was a cat. ",
    "\n",
    "naïve Ærø 日本語 ",
    "zyxwvutsrq-",
];

/// In longer contexts line ends come with words between them: a run of more than 16 KiB that cannot be cut anywhere is
/// an error.
const LONGEST_RUN: usize = 8192;

/// The demo as a folder with `tokenizer.json`, for contexts that it was not trained for.
fn folder() -> PathBuf {
    let folder = support::scratch().join("long-demo");
    std::fs::create_dir_all(&folder).expect("a folder");
    for file in std::fs::read_dir(support::root().join("models/demo/hf")).expect("the demo") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), folder.join(file.file_name())).expect("copied");
    }
    let config = folder.join("config.json");
    let mut fields: serde_json::Value = support::json(&config);
    fields["max_position_embeddings"] = CONTEXTS[4].into();
    std::fs::write(config, fields.to_string()).expect("written");
    folder
}

/// A tiny GGUF file with a BPE vocabulary, for contexts that it was not trained for.
fn gguf() -> PathBuf {
    let path = support::scratch().join("long-tiny.gguf");
    let mut bytes = std::fs::read(support::tiny("llama_k")).expect("a golden");
    let key = b"llama.context_length";
    let at = bytes
        .windows(key.len())
        .position(|w| w == key)
        .expect("a context length");
    // Key, type (u32), value.
    let value = at + key.len() + 4;
    bytes[value..value + 4].copy_from_slice(&(CONTEXTS[4] as u32).to_le_bytes());
    std::fs::write(&path, bytes).expect("written");
    path
}

/// As many repetitions of `unit` as leave room for the tokens generated.
fn fill(engine: &forebay::Engine, unit: &str, context: usize) -> String {
    let unit = match unit {
        "\n" if context > LONGEST_RUN => "\n\n\n\n\n\n\nThe end.",
        _ => unit,
    };
    let count = |n: usize| {
        let options = EncodeOptions {
            add_bos: true,
            parse_special: true,
        };
        let ids = engine.tokenizer().encode(&unit.repeat(n), options);
        ids.expect("a sound tokenizer").len()
    };
    let (mut fits, mut too_many) = (1, 2 * context);
    while too_many - fits > 1 {
        let n = usize::midpoint(fits, too_many);
        match count(n) + TOKENS < context {
            true => fits = n,
            false => too_many = n,
        }
    }
    unit.repeat(fits)
}

fn command(model: &Path, context: usize, prompt: &Path, memory: u64, stats: &Path) -> Command {
    let mut command = program();
    command.arg("run").arg(model).arg("-f").arg(prompt);
    command.args(["--greedy", "--quiet", "--ignore-eog", "-t", "2"]);
    command.args(["--ctx", &context.to_string(), "-n", &TOKENS.to_string()]);
    command.args(["--memory", &memory.to_string()]);
    command.arg("--stats").arg(stats);
    command
}

/// The budget that the program itself names as the minimum.
fn minimum(model: &Path, context: usize, prompt: &Path) -> u64 {
    let stats = TemporaryFile::new("never-written.json");
    let output = command(model, context, prompt, MIB, &stats.0).output();
    let message = output.expect("the program starts").stderr;
    let message = String::from_utf8_lossy(&message);
    let (_, rest) = message.rsplit_once("give --memory ").expect(&message);
    let (mib, _) = rest.split_once("MiB").expect(&message);
    mib.parse::<u64>().expect(&message) * MIB
}

/// Packing is not part of a budget.
fn pack(model: &Path) {
    let prompt = TemporaryFile::new("short.txt");
    let stats = TemporaryFile::new("packed.json");
    std::fs::write(&prompt.0, TEXTS[0]).expect("written");
    run_command(
        command(model, CONTEXTS[0], &prompt.0, 1 << 30, &stats.0),
        &stats.0,
    );
}

fn check(name: &str, model: &Path) {
    let engine = support::build(support::engine(Some(model)));
    pack(model);
    let contexts = &CONTEXTS[..(1 + length()).min(CONTEXTS.len())];
    let mut runs = 0;
    for (i, &context) in contexts.iter().enumerate() {
        for (j, extra) in [0, 8, 40].into_iter().enumerate() {
            // Every text, though not with every budget; two with each where the tests run longer.
            let texts = [TEXTS[(i + j) % 4], TEXTS[(i + j + 2) % 4]];
            for text in texts.into_iter().take(length()) {
                let prompt = TemporaryFile::new(&format!("{name}-{context}-{extra}.txt"));
                std::fs::write(&prompt.0, fill(&engine, text, context)).expect("written");
                let budget = minimum(model, context, &prompt.0) + extra * MIB;
                let Some(group) = Group::new(budget) else {
                    return;
                };
                let stats = TemporaryFile::new(&format!("{name}-{context}-{extra}.json"));
                let command = command(model, context, &prompt.0, budget, &stats.0);
                let run: Run = run_command(group.run(&command), &stats.0);
                let tokens = support::number(&run.statistics, "/prefill/tokens") as usize;
                assert!(tokens + 64 > context, "{tokens} of {context} are filled");
                let what = format!("{name}, context {context}, {budget} bytes, {text:?}");
                assert!(run.peak() <= budget, "{what}: {} bytes", run.peak());
                assert!(run.peak_seen <= budget, "{what}: {} seen", run.peak_seen);
                assert!(group.peak() <= budget, "{what}: {}", group.peak());
                assert_eq!(group.kills(), 0, "{what}");
                runs += 1;
            }
        }
    }
    eprintln!("{name}: {runs} runs within their budgets");
}

#[test]
fn prompts_that_fill_the_context_stay_within_the_budget_with_a_tokenizer_json() {
    check("folder", &folder());
}

#[test]
fn prompts_that_fill_the_context_stay_within_the_budget_with_a_gguf_vocabulary() {
    check("gguf", &gguf());
}
