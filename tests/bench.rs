//! `forebay bench`: what its JSON promises, and that its figures fit together. How fast anything is, no
//! test can know.

mod program;
mod scratch;
mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};

use forebay::Isa;
use forebay::bench::{BenchTest, LADDER, Phase, Workload, measure_point};
use forebay_models::block::BlockType;
use forebay_models::bundle::Bundle;
use program::{Answer, answer, forebay};
use serde_json::Value;
use support::{build, engine, number, tiny};

/// Runs the program on the demo, with the tests' own cache folder.
fn run(arguments: &[&str]) -> Answer {
    answer(forebay(support::scratch(), arguments))
}

fn success(arguments: &[&str]) -> Answer {
    let answer = run(arguments);
    assert!(answer.status.success(), "{arguments:?}: {}", answer.stderr);
    answer
}

fn report(arguments: &[&str]) -> Value {
    let stdout = success(arguments).stdout;
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e} in {stdout}"))
}

/// The only line of an answer that is meant to be a refusal.
fn refusal(arguments: &[&str]) -> String {
    let answer = run(arguments);
    assert!(!answer.status.success(), "{arguments:?} succeeds");
    assert_eq!(answer.stdout, "", "nothing on standard output");
    answer.stderr
}

/// `{median, min, max, runs}` of that many measurements.
fn assert_spread(document: &Value, pointer: &str, runs: f64) {
    let of = |name| number(document, &format!("{pointer}/{name}"));
    let (min, median, max) = (of("min"), of("median"), of("max"));
    assert!(0.0 < min && min <= median && median <= max, "{document:#}");
    assert_eq!(of("runs"), runs);
}

#[test]
fn the_report_on_the_demo_keeps_its_contract() {
    let arguments = ["bench", "--json", "--tests", "tg3,pp20,pp1", "-r", "3"];
    let report = report(&[&arguments[..], &["--threads", "1", "--memory", "256MiB"]].concat());
    assert_eq!(report["model"], "stories-relu-3.4M");
    assert_eq!(report["isa"], Isa::detect().name());
    assert_eq!(number(&report, "/threads"), 1.0);
    assert_eq!(
        number(&report, "/memory_budget_bytes"),
        f64::from(256 << 20)
    );
    let peak = number(&report, "/peak_rss_bytes");
    assert!((1e6..f64::from(256 << 20)).contains(&peak), "{peak}");
    let tests = report["tests"].as_array().expect("tests");
    let names: Vec<_> = tests.iter().map(|t| t["test"].as_str()).collect();
    assert_eq!(names, [Some("tg3"), Some("pp20"), Some("pp1")]);
    for test in tests {
        assert_spread(test, "/tokens_per_second", 3.0);
        assert_eq!(test["samples"].as_array().map(Vec::len), Some(3));
        let speed = number(test, "/tokens_per_second/median");
        let gb = number(test, "/bytes_per_token") * speed / 1e9;
        assert!((number(test, "/gb_per_second") / gb - 1.0).abs() < 1e-9);
        for figure in [
            "bound_gb_per_second",
            "gops",
            "int8_peak_gops",
            "f32_peak_gops",
        ] {
            assert!(
                number(test, &format!("/{figure}")) > 0.0,
                "{figure}: {test:#}"
            );
        }
        let bound = number(test, "/bound/tokens_per_second");
        let what = test["bound"]["what"].as_str().expect("what");
        assert!(
            ["memory read", "int8 peak", "f32 peak"].contains(&what),
            "{what}"
        );
        let fraction = number(test, "/fraction_of_bound");
        assert!((fraction / (speed / bound) - 1.0).abs() < 1e-9);
    }
    // A prompt shares the weights and leaves the head out for all tokens but one.
    let bytes = |i: usize| number(&tests[i], "/bytes_per_token");
    assert!(bytes(1) < bytes(2) / 10.0, "{} and {}", bytes(1), bytes(2));
    assert!(report.get("kernels").is_none());
}

#[test]
fn a_dense_token_goes_through_every_byte_of_the_weights() {
    let model = tiny("llama_gqa_tied_f32");
    let engine = build(engine(Some(&model)));
    let tests = ["tg2", "pp2"].map(|name| name.parse().expect(name));
    let reports = engine.bench(&tests, 1, |_, _, _| {}).expect("a report");
    let bundle = Bundle::open(Path::new(engine.bundle_path())).expect("a bundle");
    // Its head is its embedding, and in F32 there is no gap in a row.
    let vectors = bundle.vectors.values().len();
    let weights = bundle.weight_bytes() + 4 * vectors as u64;
    assert_eq!(reports[0].bytes_per_token, weights as f64);
    assert_eq!(reports[1].bytes_per_token, weights as f64 / 2.0);
    assert_eq!(reports[0].disk_gb_per_second, 0.0);
    let weights_per_second = weights as f64 / 4.0 * reports[0].tokens_per_second.median / 1e9;
    // A weight is a multiplication and an addition; vectors are not matrices.
    let share = reports[0].gops / (2.0 * weights_per_second);
    assert!((0.9..1.0).contains(&share), "{share}");
}

#[test]
fn streamed_weights_are_bounded_by_the_disk() {
    let tight = engine(None)
        .weight_memory(1_500_000)
        .sparsity(forebay::Sparsity::Dense);
    let engine = build(tight);
    let test = BenchTest {
        phase: Phase::Decode,
        tokens: 4,
    };
    let report = &engine.bench(&[test], 2, |_, _, _| {}).expect("a report")[0];
    assert!(report.disk_gb_per_second > 0.0, "{report:?}");
    let streamed = report.disk_bytes_per_token / report.bytes_per_token;
    assert!((0.5..2.0).contains(&streamed), "{report:?}");
    assert_eq!(report.bound.what, "disk read", "{report:?}");
}

#[test]
fn tests_take_turns() {
    let engine = build(engine(None));
    let tests: Vec<BenchTest> = ["tg2", "pp5", "tg1"]
        .map(|name| name.parse().expect(name))
        .to_vec();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let reports = engine.bench(&tests, 2, move |test, repetition, speed| {
        let mut seen = noted.lock().expect("no panic");
        seen.push((test.to_string(), repetition, speed));
    });
    let reports = reports.expect("reports");
    let seen = seen.lock().expect("no panic");
    let order: Vec<_> = seen
        .iter()
        .map(|(test, n, _)| (test.as_str(), *n))
        .collect();
    let expected = [
        ("tg2", 1),
        ("pp5", 1),
        ("tg1", 1),
        ("tg2", 2),
        ("pp5", 2),
        ("tg1", 2),
    ];
    assert_eq!(order, expected);
    for (i, report) in reports.iter().enumerate() {
        assert_eq!(
            report.samples,
            [seen[i].2, seen[i + 3].2],
            "{}",
            report.test
        );
    }
    assert!(engine.bench(&tests, 0, |_, _, _| {}).is_err());
    // The engine continues as before.
    let request = forebay::Request::text("Once upon").max_tokens(3);
    assert_eq!(support::generate(&engine, request).tokens.len(), 3);
}

#[test]
fn wrong_requests_are_refused_with_a_remedy() {
    for name in ["qq12", "pp", "tg0", ""] {
        let message = refusal(&["bench", "--tests", name]);
        assert!(
            message.contains("pp512") && message.contains("tg128"),
            "{message}"
        );
    }
    let message = refusal(&["bench", "--tests", "pp100000"]);
    assert!(
        message.contains("pp100000") && message.contains("512"),
        "{message}"
    );
    let message = refusal(&["bench", "--tests", "tg1", "-r", "0"]);
    assert!(message.contains("at least 1"), "{message}");
    let message = refusal(&["bench", "--isa", "mmx"]);
    assert!(message.contains("avx512vnni"), "{message}");
    let message = refusal(&["bench", "--tests", "tg1", "--memory", "1MiB"]);
    assert!(message.contains("give --memory"), "{message}");
}

#[test]
fn every_instruction_set_generates_the_same() {
    let hash = |isa: &[&str]| {
        let file = support::TemporaryFile::new(&format!("hash-{}.json", isa.concat()));
        let path = file.0.to_str().expect("a path");
        let common = ["run", "--greedy", "--quiet", "-n", "12", "--stats", path];
        success(&[&common[..], isa].concat());
        let statistics: Value = support::json(&file.0);
        (
            statistics["tokens"].clone(),
            statistics["logits_hash"].clone(),
        )
    };
    let usual = hash(&[]);
    assert!(usual.1.is_string());
    for isa in Isa::available() {
        assert_eq!(hash(&["--isa", isa.name()]), usual, "{isa}");
    }
}

#[test]
fn the_table_has_a_row_per_test() {
    let stdout = success(&["bench", "--tests", "pp3,tg2", "-r", "1", "--isa", "scalar"]).stdout;
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].starts_with("| model"), "{stdout}");
    for (line, test) in lines[2..4].iter().zip(["pp3", "tg2"]) {
        assert!(
            line.contains("| scalar") && line.contains(&format!("{test} |")),
            "{stdout}"
        );
        assert_eq!(line.len(), lines[0].len(), "{stdout}");
    }
}

#[test]
fn every_kernel_is_measured_for_every_format() {
    let report = report(&["bench", "--kernels", "--json", "-r", "2"]);
    assert_eq!(report["isa"], Isa::detect().name());
    assert_eq!(report["tests"], Value::Array(vec![]));
    let kernels = report["kernels"].as_array().expect("kernels");
    for kernel in kernels {
        assert_spread(kernel, "/microseconds_per_call", 2.0);
        assert!(kernel["shape"].is_string(), "{kernel:#}");
        assert!(number(kernel, "/gb_per_second") > 0.0 && number(kernel, "/gops") > 0.0);
        if !kernel["bound"].is_null() {
            assert!(number(kernel, "/bound/value") > 0.0, "{kernel:#}");
            assert!(number(kernel, "/fraction_of_bound") > 0.0, "{kernel:#}");
        }
    }
    let has = |name: &str, format: Value| {
        let found = kernels.iter();
        found
            .filter(|k| k["kernel"] == name && k["format"] == format)
            .count()
            == 1
    };
    for block in BlockType::ALL {
        for name in [
            "gemv",
            "gemm",
            "gemv by rows",
            "dot gathered",
            "axpy gathered",
        ] {
            assert!(has(name, block.name().into()), "{name} {block}");
        }
    }
    for name in [
        "rmsnorm",
        "gate_up silu",
        "quantise for rows",
        "quantise for panels",
    ] {
        assert!(has(name, Value::Null), "{name}");
    }
    for name in ["attend decode", "attend prefill"] {
        for format in ["f16", "q8"] {
            assert!(has(name, format.into()), "{name} {format}");
        }
    }
}

/// Counts that would measure nothing are refused before any model is looked for, and devices' shares without one.
#[test]
fn what_cannot_be_measured_is_refused_at_once() {
    for (arguments, flag, remedy) in [
        (&["-r", "0"][..], "--repetitions", "at least 1"),
        (&["ladder", "m", "-r", "0"], "--repetitions", "at least 1"),
        (&["ladder", "m", "-n", "1"], "--tokens", "at least 2"),
        (
            &["percentiles", "m", "--prompt", "0"],
            "--prompt",
            "at least 1",
        ),
        (&["sweep", "m", "--points", "0"], "--points", "at least 1"),
        (
            &["--device", "cpu", "--device-share", "0.5"],
            "--device-share",
            "--device cpu",
        ),
        (
            &["ladder", "m", "--device", "cpu", "--device-share", "0.5"],
            "--device-share",
            "--device cpu",
        ),
        #[cfg(not(feature = "gpu"))]
        (
            &["--device-share", "0.5"],
            "--device-share",
            "--features gpu",
        ),
    ] {
        let message = refusal(&[&["bench"][..], arguments].concat());
        let is_told = message.contains(flag) && message.contains(remedy);
        assert!(is_told, "{arguments:?}: {message}");
        assert_eq!(message.matches("error: ").count(), 1, "{message}");
    }
}

/// Each rung reads as it says, and no rung is something else.
#[test]
fn the_ladders_rungs_are_not_to_be_chosen() {
    let model = support::sparse_model();
    let model = model.to_str().expect("a path");
    for flags in [["--loading", "split"], ["--preset", "llm-in-a-flash"]] {
        let message = refusal(&[&["bench", "ladder", model], &flags[..]].concat());
        assert!(message.contains(flags[0]), "{message}");
    }
}

/// A long prompt reads nearly every neuron, a token only few of them.
#[test]
fn the_prompt_is_no_part_of_what_a_token_reads() {
    let model = support::sparse_model();
    let rung = LADDER[1];
    let bytes = |warm_up| {
        let workload = Workload {
            prompt: 64,
            warm_up,
            tokens: 8,
            repetitions: 1,
            seed: 1,
        };
        let builder = rung.configure(engine(Some(&model)));
        let point = measure_point(rung.name, builder.weight_memory(1 << 20), &workload);
        point.expect("a measurement").bytes_per_token
    };
    let (cold, warm) = (bytes(0), bytes(1));
    assert!(cold > 0.0);
    assert!((cold / warm - 1.0).abs() < 0.01, "{cold} and {warm}");
}
