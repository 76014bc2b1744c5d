//! What is known about a model's experts: measured, kept with the model, and true in the engine.

use std::process::Command;

use forebay::learn::Profile;
use forebay::{Prompt, Request};
use forebay_models::bundle::Bundle;
use serde_json::Value;

use crate::support::{self, TemporaryFile, build, generate, number};

const LAYERS: usize = 8;
const COUNT: usize = 16;
const USED: usize = 3;

fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Experts are most of it; returns what was printed, too.
fn synth(tokens: &str) -> (TemporaryFile, String) {
    let file = TemporaryFile::new("experts.fbay");
    let layers = LAYERS.to_string();
    let shape = [
        "synth",
        "--shape",
        "tiny-experts",
        "--quant",
        "f16",
        "--quiet",
    ];
    let text = run(support::program()
        .args(shape)
        .args(["--layers", &layers, "--measure", tokens, "-o"])
        .arg(&file.0));
    (file, text)
}

/// The first number in the line that begins so.
fn line(text: &str, what: &str) -> f64 {
    let found = text.lines().find_map(|l| l.trim().strip_prefix(what));
    let rest = found.unwrap_or_else(|| panic!("no line {what:?} in\n{text}"));
    let word = rest.split_whitespace().next().expect(rest);
    word.parse().unwrap_or_else(|_| panic!("{word} in {rest}"))
}

#[test]
fn synth_prints_how_experts_are_chosen() {
    let (_file, text) = synth("256");
    let shared = |lag: usize| {
        let plural = format!("experts shared with the token {lag} before");
        line(&text, &plural)
    };
    println!("{text}");
    // Of 16 experts, two tokens share 19% by chance.
    assert!(shared(1) > shared(8) && shared(8) > 25.0, "{text}");
    assert!(
        line(&text, "uses of a layer's top 4 experts") > 35.0,
        "{text}"
    );
    assert!(
        line(&text, "different experts over 8 tokens") < 14.0,
        "{text}"
    );
    assert!(
        line(&text, "foreseen by the next layer's router") > 60.0,
        "{text}"
    );
    let hits = text.lines().filter(|l| l.contains("Belady hits")).count();
    assert_eq!(hits, 5, "{text}");
}

#[test]
fn a_profile_of_experts_foretells_what_a_cache_misses() {
    let (model, _) = synth("0");
    let text = run(support::program()
        .args(["profile", "--generate", "600", "--json", "-t", "2"])
        .arg(&model.0));
    let value: Value = serde_json::from_str(&text).expect("JSON");
    for pointer in [
        "/experts/again/1",
        "/experts/top_share/8",
        "/experts/distinct/32",
    ] {
        assert!(number(&value, pointer) > 0.0);
    }
    let profile: Profile = serde_json::from_str(&text).expect("a profile");
    let bundle = Bundle::open(&model.0).expect("a sound file");
    assert_eq!(Profile::load(&bundle).as_ref(), Some(&profile));
    let experts = profile.experts.as_ref().expect("it has experts");
    assert_eq!(experts.counts.len(), LAYERS);
    for counts in &experts.counts {
        assert_eq!(counts.len(), COUNT);
        assert_eq!(counts.iter().sum::<u32>() as usize, profile.tokens * USED);
    }
    assert!((experts.weights.iter().sum::<f64>() - 1.0).abs() < 1e-3);
    assert!(experts.weights.is_sorted_by(|a, b| a >= b));
    assert_eq!((experts.threads, experts.misses.len()), (2, 20));
    let rates: Vec<f64> = experts.misses.iter().map(|p| p.miss_rate).collect();
    assert!(rates[1] > 0.3 && rates[19] < 0.01, "{rates:?}");
    // Where the future counts: a warm cache has no choice left if it holds nearly everything.
    for p in &experts.misses[..16] {
        assert!(p.belady <= p.lru && p.belady <= p.miss_rate, "{p:?}");
    }
    // The same caches in the engine, on another text.
    let whole = build(support::engine(Some(&model.0))).weight_bytes();
    for percent in [40, 60, 80] {
        let builder = support::engine(Some(&model.0)).weight_memory(whole * percent / 100);
        // What is read on a guess depends on what the disk has time for.
        let builder = builder.context(700).max_batch(1).guess_layers(0);
        let engine = build(builder);
        let cells = engine.plan().expert_cache.cells;
        let cached = (2 * cells) as f64 / (LAYERS * COUNT) as f64;
        let mut request = Request::text("").max_tokens(600);
        request.prompt = Prompt::Tokens(vec![1]);
        request.ignore_eog = true;
        (request.sampler.temperature, request.sampler.seed) = (1.0, 77);
        let measured = 1.0 - generate(&engine, request).cache.hit_rate;
        let foretold = experts.miss_rate(cached);
        // What fills the empty cache is in the measured rate alone.
        let difference = (measured - foretold).abs();
        assert!(difference < 0.06, "{percent} %: {measured} and {foretold}");
    }
}

#[test]
fn a_text_and_another_policy_are_printed_as_a_table() {
    let (model, _) = synth("0");
    let text = TemporaryFile::new("text.txt");
    std::fs::write(&text.0, "one two three four ".repeat(100)).expect("a writable folder");
    let table = run(support::program()
        .args([
            "profile",
            "--ctx",
            "64",
            "--tokens",
            "256",
            "--policy",
            "two-queue",
        ])
        .arg(&model.0)
        .arg("-f")
        .arg(&text.0));
    assert!(table.contains("missed (two-queue, "), "{table}");
    assert!(table.contains("Belady"), "{table}");
    assert!(!table.contains("a layer's neurons"), "{table}");
    assert_eq!(table.lines().filter(|l| l.contains("% |")).count(), 20);
}
