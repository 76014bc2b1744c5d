//! `run --trace`: the file can be read back, shows what happened on every core and I/O slot, and tells the
//! same story as the statistics.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use forebay::traces::events::{Lane, Trace, What};
use forebay::traces::ledger::Bubbles;
use forebay::traces::record::Reason;
use forebay::traces::report::Report;
use serde_json::Value;
use support::{TemporaryFile, number, program};

const THREADS: usize = 2;
/// Numbers the files of this process.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Budget above the least possible one, MiB, with which whole clusters are streamed.
const STREAMING: u64 = 4;
/// The same with which Gate rows stay in memory and neurons are cached.
const CACHING: u64 = 7;

/// A traced generation of the demo with little memory.
struct Traced {
    trace: Trace,
    /// The same file as plain JSON, for what `Trace` leaves out.
    events: Vec<Value>,
    report: Report,
    statistics: Value,
}

/// Runs with `extra` MiB more than the least possible budget.
fn traced(extra: u64) -> Traced {
    let file = |kind: &str| {
        TemporaryFile::new(&format!(
            "{kind}-{extra}-{}.json",
            COUNT.fetch_add(1, Relaxed)
        ))
    };
    let (trace, stats) = (file("trace"), file("stats"));
    let run = |memory: u64| {
        let mut command = program();
        command.args(["run", "--greedy", "--quiet", "--ignore-eog", "-n", "32"]);
        command.args(["-p", "Once upon a time", "-t", &THREADS.to_string()]);
        command.args(["--memory", &format!("{memory}MiB")]);
        command
            .arg("--trace")
            .arg(&trace.0)
            .arg("--stats")
            .arg(&stats.0);
        command.output().expect("run")
    };
    // The refusal names the least possible budget, trace included.
    let refusal = String::from_utf8_lossy(&run(1).stderr).into_owned();
    let (_, rest) = refusal.rsplit_once("give --memory ").expect(&refusal);
    let least: u64 = rest
        .split_once("MiB")
        .expect(&refusal)
        .0
        .parse()
        .expect(&refusal);
    let output = run(least + extra);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let document: Value = support::json(&trace.0);
    Traced {
        trace: Trace::read(&trace.0).unwrap_or_else(|e| panic!("{e}")),
        events: document["traceEvents"].as_array().expect("events").clone(),
        report: Report::read(&trace.0).unwrap_or_else(|e| panic!("{e}")),
        statistics: support::json(&stats.0),
    }
}

fn is_core(lane: &Lane) -> bool {
    lane.name.starts_with("core ")
}

#[test]
fn a_trace_shows_cores_reads_arrows_counters_and_stalls() {
    let t = traced(STREAMING);
    assert!(number(&t.statistics, "/plan/clusters/streamed") > 0.0);
    let (consumers, reasons) = check(&t);
    assert!(
        consumers.contains("qkv") || consumers.contains("gc"),
        "{consumers:?}"
    );
    assert!(reasons.contains(&Reason::IoGate), "{reasons:?}");

    let t = traced(CACHING);
    assert!(number(&t.statistics, "/plan/clusters/gate_pinned") > 0.0);
    let (consumers, reasons) = check(&t);
    assert!(consumers.contains("udc"), "{consumers:?}");
    assert!(reasons.contains(&Reason::IoUpDown), "{reasons:?}");
}

/// Checks everything that any trace must show; returns the stages that reads have arrows to, and the
/// reasons of stalls.
fn check(t: &Traced) -> (BTreeSet<String>, BTreeSet<Reason>) {
    let names: BTreeSet<&str> = t.trace.lanes.iter().map(|l| l.name.as_str()).collect();
    for rank in 0..THREADS {
        assert!(names.contains(&*format!("core {rank}")), "{names:?}");
    }
    let slots = t
        .trace
        .lanes
        .iter()
        .filter(|l| l.name.starts_with("I/O slot "))
        .count();
    assert!(slots > 8, "{slots} I/O slots");
    assert!(
        t.trace.lanes.iter().all(|l| l.overwritten == 0),
        "nothing was lost"
    );
    check_counters(&t.events);
    check_report(t, slots as f64);
    (check_arrows(t), check_stages(t))
}

fn check_report(t: &Traced, slots: f64) {
    let (reads, bytes) = (
        number(&t.statistics, "/io/reads"),
        number(&t.statistics, "/io/bytes"),
    );
    let shown = &t.report.reads;
    // Those outside the generation were read ahead of its first token or for one that never came.
    assert!(
        shown.reads as f64 >= reads && shown.reads as f64 <= reads + 2.0 * slots,
        "{shown:?}"
    );
    assert!(shown.bytes as f64 >= bytes, "{shown:?}");
    assert_eq!(t.report.cores.len(), THREADS);
    assert!(
        t.report.cores.iter().all(|core| core.overlaps == 0),
        "slices overlap"
    );
    assert!(
        t.report.longest.iter().any(|b| b.cause.is_some()),
        "a bubble with its read"
    );
    let table = t.report.to_string();
    assert!(table.contains("core 0") && table.contains("gc"), "{table}");
}

fn check_stages(t: &Traced) -> BTreeSet<Reason> {
    let layers = number(&t.statistics, "/plan/layers") as u64;
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    let mut reasons = BTreeSet::new();
    for lane in t.trace.lanes.iter().filter(|lane| is_core(lane)) {
        for slice in &lane.slices {
            assert!(slice.start_ns <= slice.end_ns);
            match slice.what {
                What::Stage => {
                    *seen.entry(&slice.name).or_default() += 1;
                    assert!(slice.args.layer <= layers, "{slice:?}");
                }
                What::Stall(reason) => {
                    reasons.insert(reason);
                }
                What::Read => panic!("a read on a core's lane: {slice:?}"),
            }
            let of_weights = ["qkv", "output", "gc", "udc", "head"].contains(&&*slice.name);
            if of_weights {
                assert!(
                    slice.args.clusters == 1 && slice.args.bytes > 0,
                    "{slice:?}"
                );
                assert!(
                    ["hit", "miss"].contains(&&*slice.args.residency),
                    "{slice:?}"
                );
            }
        }
    }
    for stage in [
        "norm",
        "qkv",
        "attention",
        "output",
        "gc",
        "udc",
        "fold",
        "head",
    ] {
        assert!(seen.contains_key(stage), "no slice of {stage} in {seen:?}");
    }
    // One per core, layer and step.
    let steps = number(&t.statistics, "/decode/tokens") as u64 + 1;
    assert_eq!(seen["attention"], THREADS as u64 * layers * steps);
    assert!(
        reasons.contains(&Reason::Barrier) && reasons.contains(&Reason::Idle),
        "{reasons:?}"
    );
    let misses: u64 = t.report.stages.values().map(|stage| stage.misses).sum();
    assert!(misses > 0, "with little memory something had to be read");
    reasons
}

/// Every arrow into a core's slice starts inside a read that ended before that slice did.
fn check_arrows(t: &Traced) -> BTreeSet<String> {
    let mut consumers = BTreeSet::new();
    for lane in t.trace.lanes.iter().filter(|lane| is_core(lane)) {
        for &(ns, id) in &lane.arrows_in {
            let consumer = lane.slice_at(ns).expect("an arrow ends inside a slice");
            assert_eq!(
                (consumer.what, &*consumer.args.residency),
                (What::Stage, "miss")
            );
            let &(from, out_ns) = t.trace.arrows_out.get(&id).expect("an arrow has a start");
            let read = t.trace.lanes[from]
                .slice_at(out_ns)
                .expect("it starts inside a slice");
            assert_eq!(read.what, What::Read);
            assert!(read.args.bytes >= 4096, "{read:?}");
            assert!(read.end_ns <= consumer.end_ns, "{read:?} {consumer:?}");
            consumers.insert(consumer.name.clone());
        }
    }
    consumers
}

fn check_counters(events: &[Value]) {
    let counters: BTreeSet<&str> = events
        .iter()
        .filter(|event| event["ph"] == "C")
        .filter_map(|event| event["name"].as_str())
        .collect();
    for rank in 0..THREADS {
        for counter in ["cache_live", "queue_depth", "stream_ready"] {
            assert!(
                counters.contains(&*format!("core {rank} {counter}")),
                "{counters:?}"
            );
        }
    }
}

/// The statistics count a core's time from the first step to the end of the last. A lane also shows the
/// idle time before the first step (the stall that it begins with); behind the last step nothing more is
/// recorded. Without that first stall both cover the same span and must tell the same.
#[test]
fn the_trace_tells_what_the_statistics_tell() {
    for extra in [STREAMING, CACHING] {
        let mut t = traced(extra);
        for lane in t.trace.lanes.iter_mut().filter(|lane| is_core(lane)) {
            assert_eq!(
                lane.slices[0].what,
                What::Stall(Reason::Idle),
                "{}",
                lane.name
            );
            lane.slices.remove(0);
        }
        let shown = Report::of(&t.trace).bubbles();
        let counted: Bubbles =
            serde_json::from_value(t.statistics["bubbles"].clone()).expect("fractions");
        eprintln!("statistics: {counted}\ntrace:      {shown}");
        for ((name, counted), (_, shown)) in counted.named().iter().zip(shown.named()) {
            assert!(
                (counted - shown).abs() < 0.005,
                "{name}: {counted} counted, {shown} shown"
            );
        }
    }
}
