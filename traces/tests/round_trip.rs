//! Records to a file and back: what the viewers need is there, and the report agrees with the ledgers.

use std::collections::HashMap;

use forebay_traces::chrome::write_chrome;
use forebay_traces::events::{ReadError, Trace, What};
use forebay_traces::lane::TraceLane;
use forebay_traces::ledger::{Bubbles, Charged, Ledger, State};
use forebay_traces::record::{Counter, Reason, Record, Residency, Stage};
use forebay_traces::report::Report;
use serde_json::Value;

/// Marsaglia's xorshift64, for a schedule that is random and the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

struct Run {
    lanes: Vec<TraceLane>,
    charged: Vec<Charged>,
    arrows: u64,
}

/// Two cores and two I/O slots; every gap of a core goes through its ledger, as in the engine.
fn run(turns: usize, capacity: usize) -> Run {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut slots = [0, 1].map(|i| (TraceLane::new(format!("slot {i}"), capacity), 0_u64));
    let mut lanes = Vec::new();
    let mut charged = Vec::new();
    let mut flow = 0;
    for core in 0..2 {
        let mut lane = TraceLane::new(format!("core \"{core}\""), capacity);
        let mut now = 1_000_000_007 * (core + 1);
        let mut ledger = Ledger::start(now);
        for turn in 0..turns {
            let layer = turn as u16 % 32;
            // Idle time before the first work is not counted, and the ledger is opened here.
            let reasons = if turn == 0 { 4 } else { 5 };
            let reason = Reason::ALL[random.below(reasons) as usize];
            let step = now + 1 + random.below(900_000);
            let waited = ledger.enter(State::Stall(reason), now);
            assert_eq!(waited.end_ns, now);
            let stall = ledger.enter(State::Busy, step);
            lane.push(Record::stall(reason, stall.start_ns, stall.end_ns));
            now = step;
            let done = now + 500 + random.below(300_000);
            let computing: Vec<_> = Stage::ALL.into_iter().filter(|s| !s.brings()).collect();
            let stage = computing[random.below(computing.len() as u64) as usize];
            let mut record = Record::stage(stage, layer, now, done)
                .with_clusters(turn as u32, 3, Residency::Hit)
                .with_bytes(random.below(1 << 40));
            if reason == Reason::IoGate {
                flow += 1;
                let (slot, free_at) = &mut slots[flow as usize % 2];
                let start = stall.start_ns.max(*free_at).min(stall.end_ns - 1);
                *free_at = stall.end_ns;
                slot.push(Record::read(layer, 8192, start, stall.end_ns).with_flow(flow));
                record = record.with_clusters(turn as u32, 3, Residency::Miss);
                record = record.with_flow(flow);
            }
            lane.push(record);
            now = done;
        }
        ledger.finish(now);
        lane.push(Record::counter(Counter::CacheLive, 41 + core, now));
        charged.push(ledger.charged());
        lanes.push(lane);
    }
    lanes.extend(slots.map(|s| s.0));
    Run {
        lanes,
        charged,
        arrows: flow,
    }
}

fn json(lanes: &[TraceLane]) -> Value {
    let mut bytes = Vec::new();
    write_chrome(&mut bytes, "forebay", lanes).expect("memory");
    serde_json::from_slice(&bytes).expect("valid JSON")
}

fn events<'a>(json: &'a Value, ph: &str) -> Vec<&'a Value> {
    let all = json["traceEvents"].as_array().expect("object form");
    all.iter().filter(|e| e["ph"] == ph).collect()
}

fn nanos(event: &Value, key: &str) -> u64 {
    (event[key].as_f64().expect("a number") * 1000.0).round() as u64
}

#[test]
fn every_field_is_in_the_file() {
    let mut lane = TraceLane::new("core \"0\" \\ é", 8);
    lane.push(
        Record::stage(Stage::Udc, 7, 1_234_567_891, 1_234_569_002)
            .with_clusters(42, 3, Residency::Hit)
            .with_bytes(u64::MAX)
            .with_flow(9),
    );
    lane.push(Record::stall(Reason::IoUpDown, 5, 1005));
    lane.push(Record::counter(Counter::QueueDepth, 17, 3));
    let json = json(&[lane]);
    let names: Vec<_> = events(&json, "M")
        .iter()
        .map(|e| &e["args"]["name"])
        .collect();
    assert_eq!(names[..2], ["forebay", "core \"0\" \\ é"]);
    assert_eq!(events(&json, "M")[2]["args"]["sort_index"], 1);

    let slices = events(&json, "X");
    let stage = slices[0];
    assert_eq!(
        (&stage["name"], &stage["cat"]),
        (&"udc".into(), &"stage".into())
    );
    assert_eq!(
        (nanos(stage, "ts"), nanos(stage, "dur")),
        (1_234_567_891, 1111)
    );
    let args = serde_json::json!({
        "layer": 7, "first_cluster": 42, "clusters": 3, "bytes": u64::MAX, "residency": "hit"
    });
    assert_eq!(stage["args"], args);
    assert_eq!(slices[1]["name"], "stall: wait_io_updown");
    assert_eq!(slices[1]["cat"], "stall");
    assert!(slices[1]["cname"].is_string());

    let arrow = events(&json, "f")[0];
    assert_eq!((&arrow["bp"], &arrow["id"]), (&"e".into(), &9.into()));
    let counter = events(&json, "C")[0];
    assert_eq!(
        (nanos(counter, "ts"), &counter["args"]["value"]),
        (3, &17.into())
    );
}

#[test]
fn slices_of_a_lane_do_not_overlap_and_arrows_are_paired() {
    let run = run(400, 10_000);
    let json = json(&run.lanes);
    let mut ends = HashMap::new();
    for slice in events(&json, "X") {
        let end = ends.entry(slice["tid"].as_u64()).or_insert(0);
        assert!(nanos(slice, "ts") >= *end, "{slice}");
        *end = nanos(slice, "ts") + nanos(slice, "dur");
    }
    assert_eq!(ends.len(), 4);
    let slices = events(&json, "X");
    let encloses = |arrow: &Value, category: &str| {
        let ns = nanos(arrow, "ts");
        slices.iter().any(|s| {
            let start = nanos(s, "ts");
            s["tid"] == arrow["tid"]
                && s["cat"] == category
                && (start..start + nanos(s, "dur")).contains(&ns)
        })
    };
    let (starts, ends) = (events(&json, "s"), events(&json, "f"));
    assert!(run.arrows > 50);
    assert_eq!(
        (starts.len() as u64, ends.len()),
        (run.arrows, starts.len())
    );
    for end in ends {
        let start = starts
            .iter()
            .find(|s| s["id"] == end["id"])
            .expect("paired");
        assert!(nanos(start, "ts") <= nanos(end, "ts"));
        assert!(
            encloses(start, "io") && encloses(end, "stage"),
            "{start} {end}"
        );
    }
}

#[test]
fn the_report_agrees_with_the_ledgers() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("trace.json");
    let run = run(3_000, 10_000);
    let file = std::fs::File::create(&path).expect("writable");
    write_chrome(file, "forebay", &run.lanes).expect("saved");
    let report = Report::read(&path).expect("readable");
    // To the nanosecond, per core and state.
    let cores: Vec<Charged> = report.cores.iter().map(|c| c.charged).collect();
    assert_eq!(cores, run.charged);
    assert_eq!(report.bubbles(), Bubbles::merged(&run.charged));

    for core in &report.cores {
        assert_eq!(
            (core.outside_ns, core.overlaps, core.overwritten),
            (0, 0, 0)
        );
        let staged: u64 = core.stages.values().map(|s| s.busy_ns).sum();
        assert_eq!(staged, core.charged.get(State::Busy));
        let mut waited = Charged::default();
        core.stages.values().for_each(|s| waited.merge(&s.waited));
        for reason in Reason::ALL.map(State::Stall) {
            assert_eq!(waited.get(reason), core.charged.get(reason));
        }
    }
    assert_eq!(report.reads.reads, run.arrows);
    assert_eq!(report.reads.bytes, 8192 * run.arrows);
    assert!(report.reads.busy_ns <= report.reads.latency_ns);
    assert_eq!(report.stages.values().map(|s| s.slices).sum::<u64>(), 6_000);
    assert_eq!(
        report.stages.values().map(|s| s.misses).sum::<u64>(),
        run.arrows
    );
    let longest = &report.longest;
    assert!(longest.windows(2).all(|w| w[0].ns >= w[1].ns));
    for bubble in longest {
        assert_eq!(
            bubble.cause.is_some(),
            bubble.reason == Reason::IoGate,
            "{bubble}"
        );
        if let Some(read) = &bubble.cause {
            assert_eq!(read.end_ns, bubble.start_ns + bubble.ns);
        }
    }
    let text = report.to_string();
    for word in [
        "core \"0\"",
        "wait_io_gate",
        "udc",
        "GB/s",
        "longest bubbles",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[test]
fn a_full_ring_says_how_much_is_missing() {
    let run = run(100, 50);
    let mut bytes = Vec::new();
    write_chrome(&mut bytes, "forebay", &run.lanes).expect("memory");
    let report = Report::of(&Trace::parse(&bytes).expect("valid"));
    assert_eq!(report.cores[0].overwritten, 201 - 50);
    assert!(
        report
            .to_string()
            .contains("151 older records were overwritten")
    );
}

#[test]
fn nested_and_overlapping_slices_are_counted_once() {
    let mut lane = TraceLane::new("core 0", 9);
    lane.push(Record::stage(Stage::Attention, 0, 0, 100));
    lane.push(Record::stall(Reason::Barrier, 20, 50));
    lane.push(Record::stage(Stage::Norm, 0, 60, 70));
    lane.push(Record::stage(Stage::Gc, 0, 90, 130)); // 10 ns too early
    lane.push(Record::stage(Stage::Head, 0, 150, 160));
    let mut bytes = Vec::new();
    write_chrome(&mut bytes, "forebay", [&lane]).expect("memory");
    let core = Report::of(&Trace::parse(&bytes).expect("valid"))
        .cores
        .remove(0);
    let busy = |stage: &str| core.stages[stage].busy_ns;
    assert_eq!([busy("attention"), busy("norm"), busy("gc")], [60, 10, 30]);
    assert_eq!((core.overlaps, core.outside_ns), (1, 20));
    assert_eq!(core.charged.get(State::Stall(Reason::Barrier)), 30);
    assert_eq!(core.charged.get(State::Busy), 130);
}

#[test]
fn one_slice_may_consume_several_reads() {
    let slots = [("slot 0", 40), ("slot 1", 55)].map(|(name, end)| {
        let mut lane = TraceLane::new(name, 2);
        lane.push(Record::read(2, 4096, 10, end).with_flow(end));
        lane
    });
    let mut core = TraceLane::new("core 0", 9);
    core.push(Record::stall(Reason::IoUpDown, 5, 60));
    core.push(Record::stage(Stage::Udc, 2, 60, 90).with_flow(40));
    let mut bytes = Vec::new();
    write_chrome(&mut bytes, "forebay", slots.iter().chain([&core])).expect("memory");
    // Forebay draws one arrow to a slice; files may have more.
    let mut file: Value = serde_json::from_slice(&bytes).expect("valid JSON");
    let all = file["traceEvents"].as_array_mut().expect("object form");
    let end = all.iter().find(|e| e["ph"] == "f").cloned();
    let mut second = end.expect("an arrow");
    second["id"] = 55.into();
    all.push(second);
    let trace = Trace::parse(file.to_string().as_bytes()).expect("valid");
    let report = Report::of(&trace);
    let cause = report.longest[0].cause.as_ref().expect("the later read");
    assert_eq!((cause.lane.as_str(), cause.end_ns), ("slot 1", 55));
}

#[test]
fn foreign_events_and_the_array_form_are_tolerated() {
    let text = r#" [
        {"ph":"M","name":"thread_name","tid":"3","args":{"name":"core"}},
        {"ph":"X","cat":"stage","name":"gc","tid":3,"ts":1,"dur":2.5,"args":{"layer":1,"x":[]}},
        {"ph":"X","cat":"stall","name":"stall: from another tool","tid":3,"ts":9,"dur":2},
        {"ph":"X","cat":"io","name":"read","tid":4,"ts":0,"dur":0.5,"sf":12},
        {"ph":"s","cat":"flow","id":"0x1f","tid":4,"ts":0.4},
        {"ph":"B","name":"open"}, {"args":null}, {}
    ]"#;
    let trace = Trace::parse(text.as_bytes()).expect("tolerant");
    assert_eq!(trace.arrows_out[&31], (1, 400));
    let names: Vec<_> = trace.lanes.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["core", ""]);
    let slice = &trace.lanes[0].slices[0];
    assert_eq!(
        (slice.what, slice.start_ns, slice.end_ns),
        (What::Stage, 1000, 3500)
    );
    assert_eq!((slice.args.layer, trace.lanes[0].slices.len()), (1, 1));
}

#[test]
fn damaged_files_are_clear_errors() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("trace.json");
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("written");
        Report::read(&path).expect_err("damaged")
    };
    let mut whole = Vec::new();
    write_chrome(&mut whole, "forebay", &run(3, 99).lanes).expect("memory");
    for cut in 0..whole.len() - 3 {
        assert!(
            Trace::parse(&whole[..cut]).is_err(),
            "cut after {cut} bytes"
        );
    }
    let text = read(&whole[..whole.len() / 2]).to_string();
    assert!(
        text.contains("trace.json") && text.contains("line"),
        "{text}"
    );
    for bytes in [
        &b"\xff\x00"[..],
        b"{}",
        b"[1]",
        b"\"traceEvents\"",
        b"{\"traceEvents\":7}",
    ] {
        assert!(matches!(read(bytes), ReadError::Damaged { .. }));
    }
    assert!(matches!(
        read(b"{\"traceEvents\":[]}"),
        ReadError::Empty { .. }
    ));
    let missing = Report::read(&folder.path().join("none.json")).expect_err("missing");
    assert!(missing.to_string().contains("none.json"));
}
