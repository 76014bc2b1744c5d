//! `run --trace`: the file can be read back, shows what happened on every core and I/O slot, and tells the
//! same story as the statistics.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use forebay_traces::events::{Lane, Trace, What};
use forebay_traces::ledger::Bubbles;
use forebay_traces::record::Reason;
use forebay_traces::report::Report;
use serde_json::Value;
use support::{TemporaryFile, number, program};

const THREADS: usize = 2;

/// Budget above the minimum, MiB, with which whole clusters are streamed.
const STREAMING: u64 = 2;
/// The same, with one of which Gate rows stay in memory and neurons are cached: a process does not start with the
/// same memory everywhere.
const CACHING: std::ops::Range<u64> = 4..10;

/// A traced generation of the demo with little memory.
struct Traced {
    trace: Trace,
    /// The same file as plain JSON, for what `Trace` leaves out.
    events: Vec<Value>,
    report: Report,
    statistics: Value,
}

/// Runs with `extra` MiB more than the minimum budget, in steps of one token.
fn traced(extra: u64) -> Traced {
    traced_with(extra, "Once upon a time", &["--no-drafts"])
}

fn traced_with(extra: u64, prompt: &str, flags: &[&str]) -> Traced {
    let file = |kind: &str| TemporaryFile::new(&format!("{kind}-{extra}-{}.json", flags.len()));
    let (trace, stats) = (file("trace"), file("stats"));
    let run = |memory: u64| {
        let mut command = program();
        command.args(["run", "--greedy", "--quiet", "--ignore-eog", "-n", "32"]);
        command
            .args(flags)
            .args(["-p", prompt, "-t", &THREADS.to_string()]);
        command.args(["--memory", &format!("{memory}MiB")]);
        command
            .arg("--trace")
            .arg(&trace.0)
            .arg("--stats")
            .arg(&stats.0);
        command.output().expect("run")
    };
    // The refusal names the minimum budget, trace included.
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

/// The first of [`traced`] whose plan caches neurons.
fn traced_caching() -> Traced {
    let pins_gates = |t: &Traced| number(&t.statistics, "/plan/clusters/gate_pinned") > 0.0;
    let mut traced = CACHING.map(traced);
    traced.find(pins_gates).expect("a plan that caches neurons")
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

    let t = traced_caching();
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
                // A cluster that waits for some of its neurons may be computed in part.
                let in_part = slice.args.clusters == 0 && ["gc", "udc"].contains(&&*slice.name);
                let whole = slice.args.clusters == 1;
                assert!((whole || in_part) && slice.args.bytes > 0, "{slice:?}");
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
    let steps = number(&t.statistics, "/drafts/steps") as u64 + 1;
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

/// The statistics count a core's time from the first step to the end of the last. The report leaves out the
/// idle time before the first work and behind the last step nothing is recorded, so both cover the same span
/// and must tell the same; so must a computation that knows nothing of the report's code.
#[test]
fn the_trace_tells_what_the_statistics_tell() {
    for t in [traced(STREAMING), traced_caching()] {
        let shown = t.report.bubbles();
        let counted: Bubbles =
            serde_json::from_value(t.statistics["bubbles"].clone()).expect("fractions");
        let naive = naive_fractions(&t.events);
        eprintln!("statistics: {counted}\ntrace:      {shown}\nnaive:      {naive:?}");
        for ((name, counted), (_, shown)) in counted.named().iter().zip(shown.named()) {
            let naive = naive.get(*name).copied().unwrap_or_default();
            assert!(
                (counted - shown).abs() < 0.01 && (naive - shown).abs() < 0.01,
                "{name}: {counted} counted, {shown} shown, {naive} by hand"
            );
        }
    }
}

/// Shares of the cores' time straight from the events: stalls added up, and the rest is work.
fn naive_fractions(events: &[Value]) -> BTreeMap<String, f64> {
    let of_cores = events.iter().filter(|e| {
        e["name"] == "thread_name"
            && e["args"]["name"]
                .as_str()
                .is_some_and(|n| n.starts_with("core "))
    });
    let (mut total, mut sums) = (0.0, BTreeMap::<String, f64>::new());
    for core in of_cores {
        let slices = || {
            events
                .iter()
                .filter(|e| e["ph"] == "X" && e["tid"] == core["tid"])
        };
        let start = |e: &Value| e["ts"].as_f64().expect("a start");
        let end = |e: &Value| start(e) + e["dur"].as_f64().expect("a length");
        let stages = slices().filter(|e| e["cat"] == "stage");
        let first = stages.map(start).fold(f64::MAX, f64::min);
        total += slices().map(end).fold(0.0, f64::max) - first;
        for stall in slices().filter(|e| e["cat"] == "stall" && start(e) >= first) {
            let name = stall["name"]
                .as_str()
                .and_then(|n| n.strip_prefix("stall: "));
            let name = name.expect("a stall's name").to_string();
            *sums.entry(name).or_default() += end(stall) - start(stall);
        }
    }
    let waited: f64 = sums.values().sum();
    sums.insert("compute_busy".into(), total - waited);
    sums.into_iter()
        .map(|(name, micros)| (name, micros / total))
        .collect()
}

/// The viewers show slices of a lane that overlap without nesting wrongly: reads, which do overlap, have a
/// lane for each I/O slot.
#[test]
fn slices_nest_on_every_lane() {
    let t = traced(STREAMING);
    let mut busiest = 0;
    for lane in &t.trace.lanes {
        let mut open: Vec<u64> = Vec::new();
        for slice in &lane.slices {
            open.retain(|&end| end > slice.start_ns);
            let nests = open.last().is_none_or(|&end| slice.end_ns <= end);
            assert!(nests, "{} on {}: {slice:?}", slice.name, lane.name);
            open.push(slice.end_ns);
        }
        busiest = busiest.max(lane.slices.len());
    }
    assert!(busiest > 100, "lanes with slices");
}

/// The critical path of a token whose weights are read shows reads, and is as long as the statistics say.
#[test]
fn critical_paths_cover_tokens_and_show_their_reads() {
    let t = traced(STREAMING);
    let paths = t.report.paths.as_ref().expect("tokens");
    // The first token comes from the prompt's last step.
    assert_eq!(
        t.report.tokens as f64,
        number(&t.statistics, "/drafts/steps")
    );
    let counted = number(&t.statistics, "/decode/ms_p50");
    let shown = paths.median.token.ns() as f64 * 1e-6;
    // What the driver does between steps belongs to the token here.
    assert!(
        shown > 0.9 * counted && shown < 2.0 * counted + 1.0,
        "{shown} {counted}"
    );
    for path in [&paths.median, &paths.p99] {
        let ns: u64 = path.pieces.iter().map(|p| p.end_ns - p.start_ns).sum();
        assert_eq!(ns, path.token.ns());
    }
    // How large it is depends on what else the machine does: a core that computes late finds everything read.
    let shares = [&paths.median, &paths.p99].map(|path| path.io_share());
    assert!(shares.iter().any(|&share| share > 0.0), "{shares:?}");
}

/// A step that checks a draft is one token's, and a short prompt's is none.
#[test]
fn tokens_are_the_steps_after_the_prompts() {
    for (prompt, extra) in [("Tom saw Sam. Tom saw Sam. Tom saw", 16), ("a", STREAMING)] {
        let t = traced_with(extra, prompt, &[]);
        let [steps, drafted] =
            ["/drafts/steps", "/drafts/drafted"].map(|n| number(&t.statistics, n));
        eprintln!("{steps} steps, {drafted} tokens drafted");
        assert_eq!(t.report.tokens as f64, steps, "{}", t.statistics["drafts"]);
    }
}

/// `forebay trace report` with these arguments: whether it succeeded, and what it printed.
fn report_of(arguments: &[&std::path::Path]) -> (bool, String, String) {
    let output = program()
        .args(["trace", "report"])
        .args(arguments)
        .output()
        .expect("run");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (
        output.status.success(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn the_report_is_printed_and_drawn() {
    let (trace, page) = (
        TemporaryFile::new("drawn.json"),
        TemporaryFile::new("drawn.html"),
    );
    let mut run = program();
    run.args([
        "run",
        "--greedy",
        "--quiet",
        "--ignore-eog",
        "-n",
        "4",
        "-p",
        "Once",
    ]);
    assert!(
        run.arg("--trace")
            .arg(&trace.0)
            .status()
            .expect("run")
            .success()
    );
    let html = std::path::Path::new("--html");
    let (success, table, error) = report_of(&[&trace.0, html, &page.0]);
    assert!(success, "{error}");
    assert!(
        table.contains("critical path of a token, of 3 in the trace"),
        "{table}"
    );
    let drawn = std::fs::read_to_string(&page.0).expect("a page");
    assert!(drawn.starts_with("<!doctype html>") && drawn.contains("Median token"));

    let json = std::path::Path::new("--json");
    let (success, text, error) = report_of(&[&trace.0, json]);
    assert!(success, "{error}");
    let report: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(number(&report, "/tokens"), 3.0);
    for path in ["median", "p99"] {
        let links = report["paths"][path]["links"].as_array().expect("links");
        let ns: f64 = links.iter().map(|link| number(link, "/ns")).sum();
        assert_eq!(ns, number(&report, &format!("/paths/{path}/ns")));
    }
    assert!(number(&report, "/stages/attention/slices") > 0.0);

    let nowhere = page.0.with_file_name("no such folder").join("page.html");
    let (success, _, error) = report_of(&[&trace.0, html, &nowhere]);
    assert!(
        !success && error.contains("no such folder") && error.contains("--html"),
        "{error}"
    );
    let (success, _, error) = report_of(&[&trace.0, html, &trace.0]);
    assert!(
        !success && error.contains("the trace is the same file"),
        "{error}"
    );
}

#[test]
fn a_bad_trace_is_refused_with_its_name_and_a_remedy() {
    let (trace, page) = (
        TemporaryFile::new("bad.json"),
        TemporaryFile::new("bad.html"),
    );
    let html = std::path::Path::new("--html");
    for (text, words) in [
        ("{\"traceEvents\":[{\"ph\":\"X\"", "line 1"),
        (
            r#"[{"ph":"X","cat":"stage","name":"gc","ts":1,"dur":-2}]"#,
            "dur is -2",
        ),
        (r#"[{"ph":"X","cat":"stage","name":"gc","ts":1}]"#, "no dur"),
        (
            r#"[{"ph":"X","cat":"stage","name":"gc","ts":1e40,"dur":1}]"#,
            "104 days",
        ),
        ("[]", "no stage, stall or read"),
        (
            r#"[{"ph":"X","cat":"stage","name":"gc","ts":1,"dur":2}]"#,
            "no whole token",
        ),
    ] {
        std::fs::write(&trace.0, text).expect("written");
        let (success, _, error) = report_of(&[&trace.0, html, &page.0]);
        assert!(
            !success && error.contains(words) && error.contains("--trace"),
            "{error}"
        );
        assert!(
            error.contains("bad.json") && !error.contains("panicked"),
            "{error}"
        );
        assert!(!page.0.exists(), "half a page");
    }
}
