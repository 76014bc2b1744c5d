//! Trace files that no run has written: clear errors, no panics, whatever they say.

use forebay_traces::chrome::write_chrome;
use forebay_traces::events::Trace;
use forebay_traces::lane::TraceLane;
use forebay_traces::page::page;
use forebay_traces::record::{Reason, Record, Stage, StepKind};
use forebay_traces::report::Report;
use serde_json::{Value, json};

/// Everything that can be made of a trace.
fn use_all(trace: &Trace) {
    let report = Report::of(trace);
    let _ = report.to_string();
    let _ = page(trace, &report, "trace.json");
}

fn slice(fields: &Value) -> Result<Trace, String> {
    let mut event = json!({"ph": "X", "cat": "stage", "name": "gc", "tid": 1, "ts": 1, "dur": 2});
    for (name, value) in fields.as_object().expect("fields") {
        event[name] = value.clone();
        if value.is_null() {
            event.as_object_mut().expect("an event").remove(name);
        }
    }
    let text = json!({"traceEvents": [event]}).to_string();
    Trace::parse(text.as_bytes()).map_err(|e| e.to_string())
}

#[test]
fn times_that_cannot_be_are_errors_that_name_event_and_field() {
    for (fields, words) in [
        (json!({"ts": null}), "no ts"),
        (json!({"dur": null}), "no dur"),
        (json!({"dur": -5}), "dur is -5"),
        (json!({"ts": -0.5}), "ts is -0.5"),
        (json!({"ts": 1e300}), "104 days"),
        (json!({"dur": 1e17, "cat": "io"}), "104 days"),
        (
            json!({"dur": -1, "cat": "stall", "name": "stall: idle"}),
            "negative",
        ),
    ] {
        let error = slice(&fields).expect_err(&fields.to_string());
        assert!(
            error.contains("event 0") && error.contains(words),
            "{error}"
        );
    }
    for text in [
        r#"[{"ph":"X","cat":"stage","ts":1e999,"dur":1}]"#,
        r#"[{"ph":"X","cat":"stage","ts":"now","dur":1}]"#,
        r#"[{"ph":7}]"#,
    ] {
        let error = Trace::parse(text.as_bytes()).expect_err(text).to_string();
        assert!(error.contains("line 1"), "{error}");
    }
}

#[test]
fn odd_facts_are_tolerated() {
    for fields in [
        json!({"args": null}),
        json!({"args": {"layer": u64::MAX, "clusters": u64::MAX, "bytes": u64::MAX, "first_cluster": u64::MAX}}),
        json!({"args": {"layer": -1}}),
        json!({"args": [[[]]]}),
        json!({"tid": "x"}),
        json!({"tid": u64::MAX}),
        json!({"name": ""}),
        json!({"ts": 0, "dur": 0}),
    ] {
        use_all(&slice(&fields).expect("tolerated"));
    }
}

/// Marsaglia's xorshift64.
fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % below
}

/// Slices that overlap in all ways, arrows from anywhere to anywhere.
#[test]
fn any_arrangement_of_slices_is_survived() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let reasons: Vec<String> = Reason::ALL
        .iter()
        .map(|r| format!("stall: {}", r.name()))
        .collect();
    for _ in 0..400 {
        let mut events = Vec::new();
        for _ in 0..1 + random(&mut state, 60) {
            let mut r = |below| random(&mut state, below);
            let (tid, ts, dur) = (r(4), r(40), r(25));
            let (category, name) = match r(4) {
                0 => ("stage", ["norm", "gc", "head", "<b>"][r(4) as usize]),
                1 => ("stall", &*reasons[r(5) as usize]),
                2 => ("io", "read"),
                _ => ("step", StepKind::ALL[r(3) as usize].name()),
            };
            let phase = match category {
                "step" => "i",
                _ => ["X", "X", "X", "s", "f"][r(5) as usize],
            };
            events.push(json!({
                "ph": phase, "cat": category, "name": name, "tid": tid, "id": r(5),
                "ts": ts as f64 / 1000.0, "dur": dur as f64 / 1000.0,
                "args": {"layer": r(3), "clusters": r(3)}
            }));
        }
        let text = json!(events).to_string();
        let trace = Trace::parse(text.as_bytes()).expect("valid");
        use_all(&trace);
        let report = Report::of(&trace);
        for path in report.paths.iter().flat_map(|p| [&p.median, &p.p99]) {
            let ns: u64 = path.pieces.iter().map(|p| p.end_ns - p.start_ns).sum();
            assert_eq!(ns, path.token.ns(), "{text}");
        }
    }
}

#[test]
fn a_damaged_byte_anywhere_never_panics() {
    let mut core = TraceLane::new("core 0", 9);
    core.push(Record::step(StepKind::Token, 1, 0));
    core.push(Record::stage(Stage::Norm, 0, 0, 10));
    core.push(Record::stall(Reason::IoGate, 10, 50));
    core.push(Record::stage(Stage::Gc, 0, 50, 60).with_flow(1));
    core.push(Record::stage(Stage::Head, 1, 60, 70));
    let mut slot = TraceLane::new("I/O slot 0", 1);
    slot.push(Record::read(0, 4096, 5, 45).with_flow(1));
    let mut whole = Vec::new();
    write_chrome(&mut whole, "forebay", [&core, &slot]).expect("memory");
    for at in 0..whole.len() {
        for byte in [b'9', b'-', b'"', b'e', b'}', 0] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            if let Ok(trace) = Trace::parse(&damaged) {
                use_all(&trace);
            }
        }
    }
}
