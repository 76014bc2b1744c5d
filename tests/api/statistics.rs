//! The statistics file, whose fields others rely on.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::PROMPT;
use crate::support::{self, number};

/// The fields of `--stats` that others rely on (DESIGN.md section 3), by object.
const CONTRACT: [(&str, &[&str]); 8] = [
    (
        "",
        &[
            "model",
            "plan",
            "memory",
            "prefill",
            "decode",
            "cache",
            "io",
            "bubbles",
            "tokens",
            "text",
            "logits_hash",
            "finish_reason",
        ],
    ),
    ("/memory", &["budget_bytes", "peak_rss_bytes", "items"]),
    ("/prefill", &["tokens", "seconds", "tokens_per_second"]),
    (
        "/decode",
        &[
            "tokens",
            "seconds",
            "tokens_per_second",
            "ms_p50",
            "ms_p90",
            "ms_p99",
        ],
    ),
    ("/drafts", &["steps", "drafted", "accepted"]),
    (
        "/cache",
        &[
            "hits",
            "misses",
            "hit_rate",
            "miss_rate_p99",
            "left_out_clusters",
        ],
    ),
    (
        "/io",
        &[
            "reads",
            "bytes",
            "seconds_busy",
            "bytes_per_second",
            "ceiling_bytes_per_second",
        ],
    ),
    (
        "/bubbles",
        &[
            "compute_busy",
            "wait_io_gate",
            "wait_io_updown",
            "wait_barrier",
            "wait_pred",
            "wait_device",
            "idle",
        ],
    ),
];

#[test]
fn the_statistics_file_keeps_its_contract() {
    let file = support::TemporaryFile::new("stats.json");
    let mut command = support::program();
    let command = command.args(["run", "--greedy", "-n", "24", "--quiet", "--ignore-eog"]);
    let output = command
        .arg("-p")
        .arg(PROMPT)
        .arg("--stats")
        .arg(&file.0)
        .output()
        .expect("run");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let statistics: Value = support::json(&file.0);
    for (object, fields) in CONTRACT {
        let object = statistics
            .pointer(object)
            .and_then(Value::as_object)
            .expect(object);
        for field in fields {
            assert!(
                object.contains_key(*field),
                "{field} is missing in {object:?}"
            );
        }
    }
    let bubbles: BTreeMap<String, f64> =
        serde_json::from_value(statistics["bubbles"].clone()).expect("fractions");
    let sum: f64 = bubbles.values().sum();
    assert!((sum - 1.0).abs() < 1e-6, "{bubbles:?}");
    assert!(
        bubbles.values().all(|share| (0.0..=1.0).contains(share)),
        "{bubbles:?}"
    );
    assert!(bubbles["compute_busy"] > 0.0, "{bubbles:?}");
    check_figures(&statistics);
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(
        printed,
        format!("{}\n", statistics["text"].as_str().expect("text"))
    );
}

/// Figures of the statistics that follow from each other or from the run.
fn check_figures(statistics: &Value) {
    let get = |pointer: &str| number(statistics, pointer);
    assert_eq!(statistics["tokens"].as_array().map(Vec::len), Some(24));
    assert_eq!(get("/decode/tokens"), 23.0);
    assert_eq!(get("/drafts/steps") + get("/drafts/accepted"), 23.0);
    assert!(get("/prefill/tokens") >= 13.0);
    for phase in ["/prefill", "/decode"] {
        let (n, seconds) = (
            get(&format!("{phase}/tokens")),
            get(&format!("{phase}/seconds")),
        );
        let speed = get(&format!("{phase}/tokens_per_second"));
        assert!((speed * seconds - n).abs() < 1e-6 * n, "{phase}");
    }
    assert!(get("/decode/ms_p50") <= get("/decode/ms_p90"));
    assert!(get("/decode/ms_p90") <= get("/decode/ms_p99"));
    let (hits, misses) = (get("/cache/hits"), get("/cache/misses"));
    assert!(
        hits > 0.0 && misses > 0.0,
        "the demo runs in less memory than its weights take"
    );
    assert!((get("/cache/hit_rate") - hits / (hits + misses)).abs() < 1e-9);
    assert!(get("/io/reads") > 0.0 && get("/io/bytes") >= 4096.0 * get("/io/reads"));
    let items = statistics["memory"]["items"].as_object().expect("items");
    let claimed: f64 = items.values().filter_map(Value::as_f64).sum();
    assert!(claimed > 0.0 && claimed <= get("/memory/budget_bytes"));
    let hash = statistics["logits_hash"].as_str().expect("a hash");
    assert!(
        hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
        "{hash}"
    );
}

#[test]
fn an_interrupted_run_still_writes_its_statistics() {
    let file = support::TemporaryFile::new("interrupted.json");
    for _ in 0..20 {
        // Jobs in the background of a script are started to ignore the signal.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=INT")
            .env("FOREBAY_CACHE", support::scratch());
        let command = command.arg(support::program().get_program());
        let command = command.args(["run", "--greedy", "--ignore-eog", "-t", "1", "-c", "512"]);
        let command = command.args(["-p", PROMPT, "--stats"]).arg(&file.0);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        // The first text after the prompt: tokens flow.
        let mut first = vec![0; PROMPT.len() + 1];
        let stdout = child.stdout.as_mut().expect("piped");
        stdout.read_exact(&mut first).expect("a prompt and a token");
        let kill = Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status();
        assert!(kill.expect("kill runs").success());
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let statistics: Value = support::json(&file.0);
        match statistics["finish_reason"].as_str() {
            Some("cancelled") => return assert!(said.contains("cancelled"), "{said}"),
            // It was faster than the signal.
            Some("context_full") => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("no signal came in time");
}
