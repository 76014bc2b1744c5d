//! Critical paths of traces made by hand, whose answer is known.

use forebay_traces::chrome::write_chrome;
use forebay_traces::events::Trace;
use forebay_traces::lane::TraceLane;
use forebay_traces::path::{CriticalPath, Link};
use forebay_traces::record::{Reason, Record, Residency, Stage, StepKind};
use forebay_traces::report::Report;
use forebay_traces::tokens::{at_percentile, tokens};

fn lane(name: &str, records: &[Record]) -> TraceLane {
    let mut lane = TraceLane::new(name, records.len().max(1));
    records.iter().for_each(|r| lane.push(*r));
    lane
}

fn trace(lanes: &[TraceLane]) -> Trace {
    let mut bytes = Vec::new();
    write_chrome(&mut bytes, "forebay", lanes).expect("memory");
    Trace::parse(&bytes).expect("valid")
}

fn median(trace: &Trace) -> CriticalPath {
    Report::of(trace).paths.expect("a token").median
}

/// `(link, lane, start, end)` of each piece.
fn pieces(path: &CriticalPath) -> Vec<(Link, usize, u64, u64)> {
    let pieces = path.pieces.iter();
    pieces
        .map(|p| (p.link.clone(), p.lane, p.start_ns, p.end_ns))
        .collect()
}

fn assert_chain(path: &CriticalPath) {
    let ends = path.pieces.iter().map(|p| p.end_ns);
    let starts = path.pieces.iter().skip(1).map(|p| p.start_ns);
    assert!(
        ends.zip(starts).all(|(end, start)| end == start),
        "{path:?}"
    );
    assert_eq!(
        path.pieces.first().map(|p| p.start_ns),
        Some(path.token.start_ns)
    );
    assert_eq!(
        path.pieces.last().map(|p| p.end_ns),
        Some(path.token.end_ns)
    );
}

fn work(stage: &str) -> Link {
    Link::Work(stage.into())
}

fn norm(start: u64, end: u64) -> Record {
    Record::stage(Stage::Norm, 0, start, end)
}

/// A step for a token begins.
fn begin(ns: u64) -> Record {
    Record::step(StepKind::Token, 1, ns)
}

/// Core 1 asks for a read at 40 and gets it at 190; core 0 waits for core 1; the head is on core 0.
fn two_cores() -> Vec<TraceLane> {
    let read = Record::read(0, 4096, 40, 190).with_flow(7);
    let miss = Record::stage(Stage::Gc, 0, 200, 250).with_flow(7);
    vec![
        lane(
            "core 0",
            &[
                begin(10),
                norm(10, 30),
                Record::stage(Stage::Gc, 0, 30, 80),
                Record::stall(Reason::Barrier, 80, 260),
                Record::stage(Stage::Fold, 0, 260, 280),
                Record::stage(Stage::Head, 1, 280, 400),
            ],
        ),
        lane(
            "core 1",
            &[
                begin(10),
                norm(10, 35),
                Record::stage(Stage::Gc, 0, 35, 60),
                Record::stall(Reason::IoGate, 60, 200),
                miss.with_clusters(3, 1, Residency::Miss),
                Record::stage(Stage::Fold, 0, 250, 270),
                Record::stage(Stage::Head, 1, 270, 390),
            ],
        ),
        lane("I/O slot 0", &[read]),
    ]
}

#[test]
fn it_leads_over_the_last_core_and_its_read_to_the_start() {
    let path = median(&trace(&two_cores()));
    let expected = [
        (work("norm"), 1, 10, 35),
        (work("gc"), 1, 35, 40), // until the read was started
        (Link::Read("gc".into()), 2, 40, 190),
        (Link::HandOverOfRead, 1, 190, 200),
        (work("gc"), 1, 200, 250),
        (Link::HandOverByCore, 0, 250, 260),
        (work("fold"), 0, 260, 280),
        (work("head"), 0, 280, 400),
    ];
    assert_eq!(pieces(&path), expected);
    assert_chain(&path);
    assert_eq!(path.io_share(), 150.0 / 390.0);
    let read = &path.by_link()[&Link::Read("gc".into())];
    assert_eq!((read.ns, read.count), (150, 1));
    assert_eq!(path.pieces[2].bytes, 4096);

    let text = Report::of(&trace(&two_cores())).to_string();
    for word in ["median (token 1)", "P99 (token 1)", "read for gc", "38.5 %"] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

/// A read that was started while the core was already waiting waited itself for room on the disk:
/// the chain continues with the read that made room.
#[test]
fn reads_that_wait_for_reads_are_a_chain() {
    let second = Record::stage(Stage::Udc, 0, 205, 220).with_flow(2);
    let lanes = [
        lane(
            "core 0",
            &[
                begin(0),
                norm(0, 10),
                Record::stall(Reason::IoUpDown, 10, 205),
                second.with_clusters(0, 1, Residency::Miss),
                Record::stage(Stage::Head, 1, 220, 230),
            ],
        ),
        lane(
            "I/O slot 0",
            &[
                Record::read(0, 10, 5, 98).with_flow(1),
                Record::read(0, 20, 100, 200).with_flow(2),
            ],
        ),
    ];
    let path = median(&trace(&lanes));
    let expected = [
        (work("norm"), 0, 0, 5),
        (Link::Read("udc".into()), 1, 5, 98),
        (Link::HandOverOfRead, 0, 98, 100),
        (Link::Read("udc".into()), 1, 100, 200),
        (Link::HandOverOfRead, 0, 200, 205),
        (work("udc"), 0, 205, 220),
        (work("head"), 0, 220, 230),
    ];
    assert_eq!(pieces(&path), expected);
    assert_chain(&path);
}

#[test]
fn stalls_without_a_known_cause_stay_what_they_are() {
    let lanes = [lane(
        "core 0",
        &[
            begin(0),
            norm(0, 10),
            Record::stall(Reason::IoGate, 10, 50),
            Record::stage(Stage::Gc, 0, 50, 60),
            Record::stall(Reason::Pred, 60, 70),
            Record::stage(Stage::Udc, 0, 75, 80), // 5 ns of dispatch before it
            Record::stall(Reason::Barrier, 80, 85),
            Record::stage(Stage::Head, 1, 85, 90),
        ],
    )];
    let path = median(&trace(&lanes));
    let links: Vec<_> = path.pieces.iter().map(|p| p.link.clone()).collect();
    let expected = [
        work("norm"),
        Link::Wait(Reason::IoGate),
        work("gc"),
        Link::Wait(Reason::Pred),
        Link::Outside,
        work("udc"),
        Link::Wait(Reason::Barrier),
        work("head"),
    ];
    assert_eq!(links, expected);
    assert_chain(&path);
    assert_eq!(path.io_share(), 40.0 / 90.0);
}

/// A read from before the token is cut at its start.
#[test]
fn tokens_are_found_and_begin_where_the_step_before_ended() {
    let mut records = vec![
        Record::stall(Reason::Idle, 0, 1000),
        // The prompt, which may be short.
        Record::step(StepKind::Prompt, 1, 1000),
        norm(1000, 1010),
        Record::stage(Stage::Head, 2, 1010, 1100),
    ];
    let mut now = 1100;
    for n in 1..=10 {
        records.push(Record::stall(Reason::Idle, now, now + 5));
        records.push(begin(now + 5));
        records.push(norm(now + 5, now + 10));
        records.push(Record::stage(Stage::Head, 2, now + 10, now + 20 * n));
        now += 20 * n;
    }
    // Cut short: no head.
    records.push(begin(now + 5));
    records.push(norm(now + 5, now + 10));
    let trace = trace(&[lane("core 0", &records)]);
    let found = tokens(&trace);
    assert_eq!(found.len(), 10);
    assert_eq!(
        (found[0].number, found[0].start_ns, found[0].end_ns),
        (1, 1100, 1120)
    );
    let at = |p| at_percentile(&found, p).expect("tokens").number;
    assert_eq!((at(0.5), at(0.99), at(0.0)), (5, 10, 1));
    let paths = Report::of(&trace).paths.expect("tokens");
    assert_eq!((paths.median.token.ns(), paths.p99.token.ns()), (100, 200));
    assert_eq!(paths.median.pieces[0].link, Link::Wait(Reason::Idle));
    assert_chain(&paths.p99);
    // The idle time before the first work is charged to nothing.
    assert_eq!(Report::of(&trace).cores[0].charged.total(), now + 10 - 1000);
}

#[test]
fn a_step_ends_where_the_next_one_begins() {
    let token = |at| {
        [
            begin(at),
            norm(at, at + 4),
            Record::stage(Stage::Head, 1, at + 4, at + 10),
        ]
    };
    let records = [token(0), token(10), token(20)].concat();
    assert_eq!(tokens(&trace(&[lane("core 0", &records)])).len(), 3);
}

/// Guesses of what follows have logits as well, and take time; a step that checks several of them is one token's.
#[test]
fn steps_that_draft_belong_to_the_token_that_they_draft_for() {
    let step = |kind, tokens, at| {
        [
            Record::step(kind, tokens, at),
            norm(at, at + 4),
            Record::stage(Stage::Head, 1, at + 4, at + 10),
        ]
    };
    let records = [
        step(StepKind::Prompt, 9, 0),
        step(StepKind::Draft, 1, 10),
        step(StepKind::Draft, 1, 20),
        step(StepKind::Token, 3, 30),
        step(StepKind::Token, 1, 40),
    ];
    let trace = trace(&[lane("core 0", &records.concat())]);
    let times = tokens(&trace).into_iter().map(|t| (t.start_ns, t.end_ns));
    assert_eq!(times.collect::<Vec<_>>(), [(10, 40), (40, 50)]);
}

/// What is read meanwhile has nothing to do with it.
#[test]
fn a_wait_for_the_device_is_one() {
    let lanes = [
        lane(
            "core 0",
            &[
                begin(0),
                norm(0, 10),
                Record::stall(Reason::Device, 10, 60),
                Record::stage(Stage::Head, 1, 60, 90),
            ],
        ),
        lane("I/O slot 0", &[Record::read(0, 4096, 5, 50)]),
    ];
    let trace = trace(&lanes);
    let links: Vec<_> = pieces(&median(&trace)).into_iter().map(|p| p.0).collect();
    assert_eq!(
        links,
        [work("norm"), Link::Wait(Reason::Device), work("head")]
    );
    let text = Report::of(&trace).to_string();
    assert!(text.contains("device") && text.contains("55.6 %"), "{text}");
}

/// Where a ring was full only the tokens behind the loss count.
#[test]
fn tokens_with_lost_records_are_left_out() {
    let token = |at| {
        [
            begin(at),
            norm(at, at + 4),
            Record::stage(Stage::Head, 1, at + 4, at + 10),
        ]
    };
    let all = [token(0), token(10), token(20), token(30)].concat();
    let mut short = TraceLane::new("core 1", 7);
    all.iter().for_each(|r| short.push(*r));
    let found = tokens(&trace(&[lane("core 0", &all), short]));
    let starts: Vec<u64> = found.iter().map(|t| t.start_ns).collect();
    assert_eq!(starts, [20, 30]);
}

#[test]
fn without_tokens_the_rest_is_still_reported() {
    let report = Report::of(&trace(&[lane("core 0", &[norm(0, 10)])]));
    assert_eq!((report.tokens, report.paths.clone()), (0, None));
    assert!(report.to_string().contains("no critical path"), "{report}");
}
