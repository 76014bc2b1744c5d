//! An engine that yields memory: a neighbour fills their control group while tokens are generated, and leaves again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay::{Engine, Request, Sparsity, Statistics};
use forebay_plans::limits::MemoryLimits;
use forebay_plans::process::rss_now;

use crate::group::Group;
use crate::measured::MIB;
use crate::role;
use crate::subject::{length, sparse_model};
use crate::support::{build, engine};

const BYTES: &str = "FOREBAY_STRESS_GROWS_BYTES";
/// Environment variable: how fast the neighbour takes memory, MiB per second.
const RATE: &str = "FOREBAY_STRESS_RATE";
/// The reserve below the group's limit lasts half a second then: so long may a busy machine keep the engine from
/// looking.
const USUAL_RATE: u64 = 8;
/// What the neighbour takes at once.
const BLOCK: u64 = 256 << 10;
/// The neighbour's program, and what the kernel charges for both processes.
const BESIDE: u64 = 4 * MIB;
/// Left free in the group while the engine is alone.
const FREE: u64 = 16 * MIB;
const TOKENS: usize = 100;
/// What never comes within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine that has most neurons in its cache, or, where it is dense, all clusters pinned, and gives them up.
fn yielding(sparsity: Sparsity) -> Engine {
    let mib = match sparsity {
        Sparsity::Dense => 64,
        _ => 30,
    };
    let builder = engine(Some(sparse_model())).sparsity(sparsity);
    build(builder.weight_memory(mib << 20).yields_memory(true))
}

/// A neighbour that takes memory once and keeps it; ended with its handle.
struct Neighbour {
    child: Child,
    has_all: Arc<AtomicBool>,
}

impl Neighbour {
    fn start(bytes: u64) -> Self {
        let mut command = role::command("pressure::grows");
        command.env(BYTES, bytes.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let output = child.stdout.take().expect("piped");
        let has_all = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&has_all);
        std::thread::spawn(move || {
            let mut lines = BufReader::new(output).lines();
            let full = lines.any(|line| line.is_ok_and(|line| line.ends_with("full")));
            seen.store(full, Ordering::Release);
        });
        Self { child, has_all }
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    fn has_all(&self) -> bool {
        self.has_all.load(Ordering::Acquire)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // One that has ended by itself is what the test looks for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "a process beside the engine, started by another test"]
fn grows() {
    let blocks = role::number(BYTES) / BLOCK;
    let rate = std::env::var(RATE).map_or(USUAL_RATE, |_| role::number(RATE));
    let pause = Duration::from_secs(1).mul_f64(BLOCK as f64 / (rate * MIB) as f64);
    let start = Instant::now();
    let mut held = Vec::with_capacity(blocks as usize);
    for _ in 0..blocks {
        held.push(vec![1u8; BLOCK as usize]);
        // Never faster, to make up for time in which the machine was busy.
        std::thread::sleep(pause);
    }
    eprintln!(
        "at {:.0} MiB per second",
        (blocks * BLOCK / MIB) as f64 / start.elapsed().as_secs_f64()
    );
    println!("full");
    std::io::stdout().flush().expect("the parent reads it");
    // Until its parent is gone, at the latest.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    std::hint::black_box(&held);
}

/// What an engine has and holds after a generation.
#[derive(Debug)]
struct State {
    budget: u64,
    resident: u64,
    tokens_per_second: f64,
}

/// Generates, and compares with what came without pressure.
fn generate(engine: &Engine, reference: Option<&Statistics>) -> (State, Statistics) {
    let mut request = Request::text("the quick brown fox").max_tokens(TOKENS);
    request.ignore_eog = true;
    let stream = engine.session().generate(request).expect("a request");
    let (_, done) = stream.finish().unwrap_or_else(|e| panic!("{e}"));
    if let Some(reference) = reference {
        assert_eq!(done.tokens, reference.tokens);
        assert_eq!(done.logits_hash, reference.logits_hash);
    }
    let state = State {
        budget: engine.budget().total_bytes(),
        resident: rss_now().expect("a size"),
        tokens_per_second: done.decode.tokens_per_second,
    };
    (state, done)
}

/// Generates until `there` says so.
fn until(
    engine: &Engine,
    reference: &Statistics,
    what: &str,
    mut there: impl FnMut(&State) -> bool,
) -> State {
    let start = Instant::now();
    loop {
        let (state, _) = generate(engine, Some(reference));
        if there(&state) {
            return state;
        }
        assert!(start.elapsed() < PATIENCE, "{what} never comes: {state:?}");
    }
}

#[test]
#[ignore = "a process in a control group, started by another test"]
fn a_cache_gives_way() {
    gives_way(&yielding(Sparsity::Predicted));
}

#[test]
#[ignore = "a process in a control group, started by another test"]
fn clusters_give_way() {
    gives_way(&yielding(Sparsity::Dense));
}

fn gives_way(engine: &Engine) {
    let (least, asked) = (engine.least_budget(), engine.budget().total_bytes());
    let can = engine.budget().claimed() - least;
    assert!(can > 8 * MIB, "{can} shows nothing");
    let (alone, reference) = generate(engine, None);
    assert_eq!(alone.budget, asked, "there is room enough");
    let limits = MemoryLimits::read().expect("limits");
    let left = limits.tightest_group().expect("a group").available();
    // The engine has to give half of what it can, or one of them is killed.
    let bytes = left + can / 2 - BESIDE;
    let started = Instant::now();
    let mut neighbour = Neighbour::start(bytes);
    let pressed = until(engine, &reference, "the neighbour", |_| {
        assert!(!neighbour.has_ended(), "the neighbour was killed");
        neighbour.has_all()
    });
    let took = started.elapsed();
    assert!(pressed.budget <= asked - can / 4, "{pressed:?} of {asked}");
    assert!(
        pressed.resident <= alone.resident - can / 4,
        "{pressed:?} after {alone:?}"
    );
    let (kept, _) = generate(engine, Some(&reference));
    drop(neighbour);
    let (left_at, all) = (Instant::now(), asked);
    let back = until(engine, &reference, "the whole budget", |s| s.budget == all);
    let grown = left_at.elapsed();
    let full = until(engine, &reference, "a full cache", |s| {
        s.resident >= pressed.resident + can / 4
    });
    let mib = |bytes: u64| bytes / MIB;
    eprintln!(
        "a neighbour takes {} MiB where {} are left, in {took:.1?}; of {} MiB the engine can give up it gave {}",
        mib(bytes),
        mib(left),
        mib(can),
        mib(alone.resident - pressed.resident),
    );
    for (when, state) in [
        ("alone", alone),
        ("pressed", pressed),
        ("beside", kept),
        ("budget back", back),
        ("cache back", full),
    ] {
        eprintln!(
            "{when:>12}: {:>5} MiB resident, {:>7.1} tok/s",
            mib(state.resident),
            state.tokens_per_second
        );
    }
    eprintln!("the budget was back {grown:.1?} after the neighbour had gone");
}

fn check(role: &str, sparsity: Sparsity) {
    let claimed = yielding(sparsity).budget().claimed();
    for _ in 0..length() {
        let Some(group) = Group::new(claimed + BESIDE + FREE) else {
            return;
        };
        let command = group.run(&role::command(role));
        role::finish(role, command);
        assert_eq!(group.kills(), 0);
        eprintln!(
            "the group: limit {} MiB, peak {} MiB, at its limit {} times",
            (claimed + BESIDE + FREE) / MIB,
            group.peak() / MIB,
            group.times_at_limit()
        );
    }
}

#[test]
fn an_engine_beside_a_growing_neighbour_gives_way_and_takes_back() {
    check("pressure::a_cache_gives_way", Sparsity::Predicted);
    check("pressure::clusters_give_way", Sparsity::Dense);
}
