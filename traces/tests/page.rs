//! The page: it needs nothing but itself, hostile names do no harm, and a browser draws it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forebay_traces::chrome::write_chrome;
use forebay_traces::events::Trace;
use forebay_traces::headline::Headline;
use forebay_traces::lane::TraceLane;
use forebay_traces::page::page;
use forebay_traces::record::{Reason, Record, Stage, StepKind};
use forebay_traces::report::Report;

/// Names with all that could end an element, an attribute, a string or the script.
const HOSTILE: &str = "</script><script>throw 1</script><img src=x onerror='throw 2'>\"&\u{2028}";

/// Twenty tokens of four layers on two cores, half of their time waiting for reads.
fn lanes(suffix: &str) -> Vec<TraceLane> {
    let mut slot = TraceLane::new(format!("I/O slot 0{suffix}"), 1000);
    let mut cores = [0, 1].map(|i| TraceLane::new(format!("core {i}{suffix}"), 1000));
    let (mut now, mut flow) = (1_000_000, 0);
    for token in 0..20 {
        for core in &mut cores {
            core.push(Record::stall(Reason::Idle, now, now + 20_000));
        }
        now += 20_000;
        for core in &mut cores {
            core.push(Record::step(StepKind::Token, 1, now));
        }
        for layer in 0..4 {
            let waits = 200_000 + 10_000 * token;
            flow += 1;
            slot.push(Record::read(0, 65536, now + 5_000, now + waits).with_flow(flow));
            let [first, second] = &mut cores;
            let norm = Record::stage(Stage::Norm, layer, now, now + 30_000);
            let come = now + waits + 5_000;
            let done = come + 145_000;
            first.push(norm);
            first.push(Record::stall(Reason::IoGate, now + 30_000, come));
            first.push(Record::stage(Stage::Gc, layer, come, done).with_flow(flow));
            second.push(norm);
            second.push(Record::stage(Stage::Gc, layer, now + 30_000, now + 120_000));
            second.push(Record::stall(Reason::Barrier, now + 120_000, done + 5_000));
            first.push(Record::stage(Stage::Fold, layer, done, done + 20_000));
            second.push(Record::stage(
                Stage::Fold,
                layer,
                done + 5_000,
                done + 20_000,
            ));
            now = done + 20_000;
        }
        for core in &mut cores {
            core.push(Record::stage(Stage::Head, 4, now, now + 90_000));
        }
        now += 90_000;
    }
    cores.into_iter().chain([slot]).collect()
}

fn page_of(suffix: &str) -> String {
    let mut bytes = Vec::new();
    write_chrome(&mut bytes, "forebay", &lanes(suffix)).expect("memory");
    let trace = Trace::parse(&bytes).expect("valid");
    page(&trace, &Report::of(&trace), &format!("trace{suffix}.json")).expect("tokens")
}

#[test]
fn the_page_says_what_limits_and_needs_nothing_else() {
    let page = page_of("");
    assert!(
        page.contains("<h1>38% of core time is computing, most of it gc</h1>"),
        "{page}"
    );
    for word in [
        "Median token: ",
        "P99 token: ",
        "token 20 of 20",
        "Look first at <b>read for gc</b>",
    ] {
        assert!(page.contains(word), "{word} in {page}");
    }
    for outside in [
        "http:", "https:", "src=", "href=", "url(", "@import", "fetch(", "import(",
    ] {
        assert!(!page.contains(outside), "{outside} in the page");
    }
}

/// What 100 ns of a core are called when so many of them went into each wait.
fn finding(gate: u64, updown: u64, barrier: u64, idle: u64) -> String {
    let mut core = TraceLane::new("core 0", 9);
    let mut now = 0;
    let mut push = |record: fn(u64, u64) -> Record, ns: u64| {
        core.push(record(now, now + ns));
        now += ns;
    };
    let busy = 100 - gate - updown - barrier - idle;
    push(|a, b| Record::stage(Stage::Norm, 0, a, b), busy);
    push(|a, b| Record::stall(Reason::IoGate, a, b), gate);
    push(|a, b| Record::stage(Stage::Head, 0, a, b), 0);
    push(|a, b| Record::stall(Reason::IoUpDown, a, b), updown);
    push(|a, b| Record::stage(Stage::Udc, 0, a, b), 0);
    push(|a, b| Record::stall(Reason::Barrier, a, b), barrier);
    push(|a, b| Record::stall(Reason::Idle, a, b), idle);
    let mut bytes = Vec::new();
    write_chrome(&mut bytes, "forebay", [&core]).expect("memory");
    Headline::of(&Report::of(&Trace::parse(&bytes).expect("valid"))).finding
}

#[test]
fn the_largest_concern_makes_the_headline() {
    for (waits, words) in [
        (
            (0, 41, 20, 0),
            "41% of core time waits for reads of Up/Down",
        ),
        (
            (38, 2, 20, 1),
            "40% of core time waits for reads of the output head",
        ),
        (
            (20, 30, 20, 0),
            "50% of core time waits for reads: 30% for Up/Down, 20% for the output head",
        ),
        (
            (20, 10, 50, 0),
            "50% of core time is spent by cores waiting for each other",
        ),
        (
            (0, 0, 20, 60),
            "60% of core time is spent without a token to work on",
        ),
        (
            (10, 10, 10, 0),
            "70% of core time is computing, most of it norm",
        ),
    ] {
        let (gate, updown, barrier, idle) = waits;
        assert_eq!(finding(gate, updown, barrier, idle), words);
    }
}

#[test]
fn text_from_the_file_stays_text() {
    let page = page_of(HOSTILE);
    assert!(page.contains("core 0&lt;/script&gt;"), "{page}");
    assert_eq!(page.matches("</script>").count(), 2, "the page's own");
    assert_eq!(page.matches("<img").count(), 0);
}

#[test]
fn a_trace_without_tokens_is_refused_with_a_remedy() {
    let text = br#"[{"ph":"X","cat":"stage","name":"gc","tid":3,"ts":1,"dur":2}]"#;
    let trace = Trace::parse(text).expect("valid");
    let refusal = page(&trace, &Report::of(&trace), "x")
        .expect_err("no token")
        .to_string();
    assert!(
        refusal.contains("no whole token") && refusal.contains("-n 2"),
        "{refusal}"
    );
}

/// Chromium, if it is there.
fn chromium() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&folders).map(|folder| folder.join("chromium"));
    let found = found.into_iter().find(|file| file.is_file());
    if found.is_none() {
        eprintln!(
            "SKIPPED: the page in a browser: there is no `chromium` on PATH (Debian: apt install chromium)"
        );
    }
    found
}

/// Opens the page without a window.
fn browse(chromium: &Path, folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(chromium);
    // Containers and the root user have no sandbox of Chromium's; the page is our own.
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ]);
    command.args([
        "--no-first-run",
        "--hide-scrollbars",
        "--virtual-time-budget=5000",
    ]);
    command.arg(format!(
        "--user-data-dir={}",
        folder.join("profile").display()
    ));
    let page = format!("file://{}", folder.join("page.html").display());
    command
        .args(arguments)
        .arg(page)
        .output()
        .expect("chromium starts")
}

/// Distinct colours of a picture.
fn colours(path: &Path) -> usize {
    let file = std::fs::File::open(path).expect("a screenshot");
    let mut reader = png::Decoder::new(std::io::BufReader::new(file))
        .read_info()
        .expect("a PNG");
    let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
    let frame = reader.next_frame(&mut pixels).expect("a whole PNG");
    assert_eq!((frame.width, frame.height), (1000, 1400));
    let bytes = frame.color_type.samples();
    let distinct: HashSet<&[u8]> = pixels[..frame.buffer_size()].chunks_exact(bytes).collect();
    distinct.len()
}

#[test]
fn a_browser_draws_it_without_an_error() {
    let Some(chromium) = chromium() else { return };
    for suffix in ["", HOSTILE] {
        let folder = tempfile::tempdir().expect("temporary folder");
        std::fs::write(folder.path().join("page.html"), page_of(suffix)).expect("written");
        let dom = browse(&chromium, folder.path(), &["--dump-dom"]);
        let dom = String::from_utf8_lossy(&dom.stdout).into_owned();
        assert!(
            dom.contains("data-drawn=\"2\""),
            "both tokens are drawn: {dom}"
        );
        assert!(!dom.contains("data-error"), "the script failed: {dom}");

        let picture = folder.path().join("page.png");
        let screenshot = format!("--screenshot={}", picture.display());
        let output = browse(
            &chromium,
            folder.path(),
            &[&screenshot, "--window-size=1000,1400"],
        );
        assert!(
            picture.exists(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        // Text alone would have some shades of grey; bars and timelines have the colours of all states.
        let distinct = colours(&picture);
        assert!(distinct > 100, "only {distinct} colours: the page is blank");
    }
}
