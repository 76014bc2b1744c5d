//! `forebay plan`, and what `run` makes of it: the same tokens, the figures in the statistics, clear errors.

mod program;
mod scratch;
mod support;

use std::path::Path;
use std::sync::OnceLock;

use forebay::bench::LADDER;
use program::{Answer, answer, forebay};
use scratch::names_in;
use serde_json::Value;

const MEMORY: &str = "70MiB";
const PROMPT: &str = "Once upon a time";

/// A folder with what was measured of the machine for the demo, once for all tests: on a busy machine another
/// measurement leads to other plans.
fn measured() -> tempfile::TempDir {
    const FILE: &str = "machine.json";
    static MACHINE: OnceLock<Vec<u8>> = OnceLock::new();
    let empty = || tempfile::tempdir().expect("temporary folder");
    let machine = MACHINE.get_or_init(|| {
        let first = empty();
        plan(first.path(), &["--memory", MEMORY]);
        std::fs::read(first.path().join(FILE)).expect("the machine's profile")
    });
    let folder = empty();
    std::fs::write(folder.path().join(FILE), machine).expect("a writable folder");
    folder
}

fn plan(cache: &Path, flags: &[&str]) -> Value {
    let demo = support::root().join("models/demo/hf");
    let mut arguments = vec!["plan".into(), demo.into_os_string()];
    arguments.extend(["--quick", "--json"].iter().chain(flags).map(Into::into));
    let a = answer(forebay(cache, arguments));
    assert!(a.status.success(), "{}", a.stderr);
    serde_json::from_str(&a.stdout).expect("one JSON object")
}

fn run(cache: &Path, flags: &[&str]) -> Answer {
    let demo = support::root().join("models/demo/hf");
    let mut arguments = vec!["run".into(), demo.into_os_string()];
    let usual = [
        "-p", PROMPT, "-n", "24", "--greedy", "--memory", MEMORY, "--quiet", "--stats", "-",
    ];
    arguments.extend(usual.iter().chain(flags).map(Into::into));
    answer(forebay(cache, arguments))
}

fn statistics(a: &Answer) -> Value {
    assert!(a.status.success(), "{}", a.stderr);
    serde_json::from_str(&a.stdout).expect("one JSON object")
}

/// The title of a plan's text, and what it has of memory, but for the process's own and the sum.
fn memory(text: &str) -> Vec<String> {
    let items = text.lines().take_while(|l| !l.contains(" sum "));
    // Page tables are a share of all, the process's own memory included.
    let items = items.filter(|l| !l.contains(" process ") && !l.contains(" page_tables "));
    items.map(str::to_string).collect()
}

#[test]
fn a_plan_to_be_read_packs_nothing() {
    let cache = measured();
    let demo = support::root().join("models/demo/hf");
    let text = |note: bool| {
        let mut arguments = vec!["plan".into(), demo.clone().into_os_string()];
        arguments.extend(["--quick", "--memory", MEMORY].map(Into::into));
        let a = answer(forebay(cache.path(), arguments));
        assert!(a.status.success(), "{}", a.stderr);
        assert_eq!(
            a.stdout.contains("has not been packed"),
            note,
            "{}",
            a.stdout
        );
        a.stdout
    };
    let before = text(true);
    let names = names_in(cache.path());
    assert!(names.iter().all(|n| !n.contains(".fbay")), "{names:?}");
    // The same memory once it is packed, but for the process's own and the sum, and the same parts of a token's time.
    // In between only alternatives are listed, and none that costs the same as measured this time.
    plan(cache.path(), &["--memory", MEMORY]);
    let after = text(false);
    assert!(memory(&before).len() > 5, "{before}");
    assert_eq!(memory(&before), memory(&after));
    let parts = |text: &str| {
        let lines = text.lines().skip_while(|l| !l.contains("a token takes"));
        lines.filter(|l| !l.contains("packed")).count()
    };
    assert!(parts(&before) > 5, "{before}");
    assert_eq!(parts(&before), parts(&after), "{before}\n{after}");
}

#[test]
fn the_beginning_of_a_file_is_enough_for_a_plan() {
    let cache = measured();
    let whole = support::root().join("tests/golden/tiny/llama_k/model.gguf");
    let bytes = std::fs::read(&whole).unwrap();
    let begun = cache.path().join("begun.gguf");
    std::fs::write(&begun, &bytes[..bytes.len() / 2]).unwrap();
    let with = |command: &str, model: &Path, flags: &[&str]| {
        let mut arguments = vec![command.into(), model.as_os_str().to_owned()];
        arguments.extend(["--memory", "200MiB"].iter().chain(flags).map(Into::into));
        answer(forebay(cache.path(), arguments))
    };
    let planned = |model: &Path| {
        let a = with("plan", model, &["--quick"]);
        assert!(a.status.success(), "{}", a.stderr);
        a.stdout
    };
    let (all, part) = (planned(&whole), planned(&begun));
    let note = "only the beginning of the file is there";
    assert!(part.contains(note) && !all.contains(note), "{part}");
    assert!(memory(&all).len() > 5, "{all}");
    // The first line has the file's name.
    assert_eq!(memory(&all)[1..], memory(&part)[1..]);
    // Nothing else can be done with it, and a header is needed.
    let run = with("run", &begun, &["-p", "a", "-n", "1"]);
    assert!(
        !run.status.success() && run.stderr.contains("truncated"),
        "{}",
        run.stderr
    );
    std::fs::write(&begun, &bytes[..500]).unwrap();
    let short = with("plan", &begun, &["--quick"]);
    assert!(
        !short.status.success() && short.stderr.contains("truncated"),
        "{}",
        short.stderr
    );
}

#[test]
fn a_plan_is_followed_and_changes_no_token() {
    let cache = measured();
    let file = cache.path().join("plan.json");
    let mut made = plan(cache.path(), &["--memory", MEMORY, "--ctx", "256"]);
    let expected = &made["expected"];
    assert!(
        expected["decode_tokens_per_second"]
            .as_f64()
            .expect("a number")
            > 0.0
    );
    assert!(
        expected["prefill_tokens_per_second"]
            .as_f64()
            .expect("a number")
            > 0.0
    );
    assert!(["memory read", "disk read"].contains(&expected["bound_by"].as_str().expect("text")));
    let items = expected["memory_items"].as_object().expect("items");
    let sum: u64 = items.values().filter_map(Value::as_u64).sum();
    assert!(sum <= 70 << 20, "{sum}");
    // An unusual choice, to see that it is followed.
    made["choices"]["threads"] = 1.into();
    made["choices"]["max_batch"] = 3.into();
    std::fs::write(&file, made.to_string()).expect("writable");
    let path = file.to_str().expect("text");
    let planned = statistics(&run(cache.path(), &["--plan", path]));
    assert_eq!(planned["plan"]["threads"], 1);
    assert_eq!(planned["plan"]["max_batch"], 3);
    assert_eq!(planned["plan"]["expected"], made["expected"]);
    // Without a measured machine there is no plan.
    let bare = tempfile::tempdir().expect("temporary folder");
    let unplanned = statistics(&run(bare.path(), &[]));
    assert!(unplanned["plan"]["expected"].is_null());
    // With one, there is, unasked.
    let automatic = statistics(&run(cache.path(), &[]));
    assert!(automatic["plan"]["expected"].is_object());
    for other in [&unplanned, &automatic] {
        assert_eq!(other["tokens"], planned["tokens"]);
        assert_eq!(other["logits_hash"], planned["logits_hash"]);
    }
}

#[test]
fn auto_takes_less_than_everything_and_flags_go_before_plans() {
    let cache = measured();
    let auto = plan(cache.path(), &["--memory", "auto", "--ctx", "256"]);
    assert!(auto["memory_bytes"].as_u64().expect("bytes") < 1 << 30);
    let file = cache.path().join("plan.json");
    std::fs::write(&file, auto.to_string()).expect("writable");
    let path = file.to_str().expect("text");
    let s = statistics(&run(cache.path(), &["--plan", path, "--threads", "1"]));
    assert_eq!(s["plan"]["threads"], 1);
    let slow = plan(cache.path(), &["--speed", "1", "--ctx", "256"]);
    assert!(slow["memory_bytes"].as_u64().expect("bytes") < 1 << 30);
    let speed = &slow["expected"]["decode_tokens_per_second"];
    assert!(speed.as_f64().expect("a number") >= 0.999);
}

#[test]
fn auto_measures_a_machine_that_is_not_known() {
    let cache = tempfile::tempdir().expect("temporary folder");
    let demo = support::root().join("models/demo/hf");
    let run = || {
        let mut run = forebay(cache.path(), ["run"]);
        run.arg(&demo)
            .args(["-p", PROMPT, "-n", "4", "--greedy", "--ctx", "256"]);
        run.args(["--memory", "auto", "--stats", "-"]);
        let answer = answer(run);
        let budget = statistics(&answer)["memory"]["budget_bytes"].as_u64();
        assert!(budget.expect("bytes") < 1 << 30);
        answer.stderr
    };
    let said = "measuring this machine for the model once";
    let first = run();
    assert!(first.contains(said), "{first}");
    let second = run();
    assert!(!second.contains(said), "{second}");
}

#[test]
fn bad_plans_and_wishes_are_named() {
    let cache = measured();
    let good = plan(cache.path(), &["--memory", MEMORY]);
    let file = cache.path().join("plan.json");
    let path = file.to_str().expect("text").to_string();
    let changed = |pointer: &str, value: Value| {
        let mut plan = good.clone();
        *plan.pointer_mut(pointer).expect("a field") = value;
        plan.to_string()
    };
    let whole = good.to_string();
    // What the plan's own model could compute need not be possible for this one.
    let mut others = good.clone();
    others["model"]["identity"] = 5.into();
    others["choices"]["sparsity"] = "threshold".into();
    let cases = [
        (others.to_string(), "is for the model"),
        (whole[..whole.len() / 2].to_string(), "is not a plan"),
        ("[]".into(), "is not a plan"),
        (changed("/version", 99.into()), "version is 99"),
        (
            changed("/choices/threads", 0.into()),
            "choices.threads is 0",
        ),
        (
            changed("/choices/max_batch", 1_000_000.into()),
            "choices.max_batch",
        ),
        (
            changed("/choices/neuron_cache_bytes", u64::MAX.into()),
            "neuron_cache_bytes",
        ),
        (changed("/model/identity", 5.into()), "is for the model"),
        (changed("/machine", "abacus".into()), "another machine"),
        (
            changed("/choices/loading", "by mule".into()),
            "is not a plan",
        ),
    ];
    for (text, says) in cases {
        std::fs::write(&file, &text).expect("writable");
        let a = run(cache.path(), &["--plan", &path]);
        assert!(!a.status.success());
        assert!(
            a.stderr.contains(says) && a.stderr.contains(&path),
            "{says}: {}",
            a.stderr
        );
        assert!(!a.stderr.contains("panicked"), "{}", a.stderr);
    }
    let a = run(cache.path(), &["--plan", "/nowhere/plan.json"]);
    assert!(
        !a.status.success() && a.stderr.contains("/nowhere/plan.json"),
        "{}",
        a.stderr
    );
    let demo = support::root().join("models/demo/hf");
    let arguments = [
        "plan".into(),
        demo.into_os_string(),
        "--speed".into(),
        "1e12".into(),
    ];
    let a = answer(forebay(cache.path(), arguments));
    assert!(
        !a.status.success() && a.stderr.contains("--speed"),
        "{}",
        a.stderr
    );
}

#[test]
fn a_plan_changes_nothing_of_what_the_ladder_compares() {
    let cache = measured();
    let demo = support::root().join("models/demo/hf");
    for rung in &LADDER[..2] {
        let builder = forebay::Engine::builder().model(&demo);
        let builder = rung.configure(builder.cache_folder(cache.path()));
        let request = forebay::Request::text(PROMPT).max_tokens(1);
        let plan = support::generate(&support::build(builder), request).plan;
        assert!(plan.expected.is_some(), "it is planned");
        let plan = serde_json::to_value(plan).expect("JSON");
        let loading = format!("{:?}", rung.options.loading).to_lowercase();
        assert_eq!(
            (&plan["loading"], &plan["guessed_layers"]),
            (&loading.into(), &0.into())
        );
    }
}
