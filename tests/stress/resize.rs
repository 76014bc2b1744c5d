//! A budget that shrinks and grows while tokens are generated.

use forebay::{BlockingTokens, Engine, Request, Sparsity, Statistics, StreamItem};
use forebay_plans::process::rss_now;

use crate::measured::MIB;
use crate::role;
use crate::subject::{length, sparse_model};
use crate::support::{build, change_budget, engine};

const TOKENS: usize = 120;
/// The kernel's count of resident pages is off by some hundred KiB per core, and huge pages may be part of two things.
pub const COUNTED: u64 = 4 * MIB;

/// An engine that has most neurons in its cache.
fn roomy() -> Engine {
    build(engine(Some(sparse_model())).weight_memory(30 << 20))
}

/// An engine that has most clusters pinned, and streams the others.
fn dense() -> Engine {
    let builder = engine(Some(sparse_model())).sparsity(Sparsity::Dense);
    build(builder.weight_memory(23 << 20))
}

pub fn request() -> Request {
    let mut request = Request::text("the quick brown fox").max_tokens(TOKENS);
    request.ignore_eog = true;
    request
}

pub fn resident() -> u64 {
    rss_now().expect("a size")
}

/// Takes `n` tokens of a stream.
pub fn take(stream: &mut BlockingTokens, n: usize) {
    let mut taken = 0;
    while taken < n {
        match stream.next() {
            Some(Ok(StreamItem::Token(_))) => taken += 1,
            Some(Ok(StreamItem::Prompt(_))) => {}
            other => panic!("{TOKENS} tokens cannot be done: {other:?}"),
        }
    }
}

pub fn ask(engine: &Engine, request: Request) -> BlockingTokens {
    let stream = engine.session().generate(request).expect("a request");
    stream.blocking()
}

pub fn rest(stream: BlockingTokens) -> Statistics {
    stream.finish().unwrap_or_else(|e| panic!("{e}")).1
}

/// The minimum budget of an engine, and what was claimed of the one with which it was started.
pub fn limits(engine: &Engine) -> (u64, u64) {
    let (least, most) = (engine.least_budget(), engine.budget().claimed());
    assert!(most - least > 8 * MIB, "{least} to {most} shows nothing");
    (least, most)
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn a_cache_shrinks_and_grows() {
    shrinks_and_grows(roomy);
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn clusters_give_way_and_come_back() {
    shrinks_and_grows(dense);
}

pub fn shrinks_and_grows(start: fn() -> Engine) {
    let reference = {
        let engine = start();
        rest(ask(&engine, request()))
    };
    let engine = start();
    let (least, most) = limits(&engine);
    // All that may be in memory is.
    rest(ask(&engine, request()));
    let full = resident();
    for round in 0..length() {
        let mut stream = ask(&engine, request());
        take(&mut stream, 10);
        change_budget(&engine, least);
        let small = resident();
        take(&mut stream, 40);
        let later = resident();
        change_budget(&engine, most);
        let done = rest(stream);
        let mib = |bytes: u64| bytes / MIB;
        eprintln!(
            "round {round}: {} MiB resident, under a budget {} MiB smaller {} and after 40 tokens {}, then {}",
            mib(full),
            mib(most - least),
            mib(small),
            mib(later),
            mib(resident())
        );
        assert!(small <= least, "{small} resident under {least}");
        assert!(small + (most - least) / 2 <= full, "{small} of {full}");
        assert!(later <= small + COUNTED, "{later} after {small}");
        assert_eq!(done.tokens, reference.tokens);
        assert_eq!(done.logits_hash, reference.logits_hash);
        assert_eq!(done.memory.budget_bytes, most);
    }
    // And at once where nothing is generated.
    change_budget(&engine, least);
    assert!(resident() <= least);
    let done = rest(ask(&engine, request()));
    assert_eq!(done.logits_hash, reference.logits_hash);
    assert_eq!(
        (done.memory.budget_bytes, done.memory.items.claimed()),
        (least, least)
    );
}

#[test]
fn memory_that_a_smaller_budget_takes_is_given_back() {
    role::run("resize::a_cache_shrinks_and_grows", &[]);
    role::run("resize::clusters_give_way_and_come_back", &[]);
}

/// Every few tokens another budget, with long prompts between, which borrow the cache's memory.
#[test]
fn no_change_of_the_budget_changes_a_token() {
    let cases = [
        (Sparsity::Predicted, 28),
        (Sparsity::Exact, 28),
        // Of these the first streams a part, and the second begins with everything pinned.
        (Sparsity::Dense, 23),
        (Sparsity::Dense, 64),
    ];
    for (sparsity, mib) in cases {
        let start = || {
            let builder = engine(Some(sparse_model())).context(512).max_batch(32);
            build(builder.sparsity(sparsity).weight_memory(mib << 20))
        };
        let ask = |engine: &Engine| {
            let mut request = Request::text("one two three four five ".repeat(8)).max_tokens(70);
            request.ignore_eog = true;
            self::ask(engine, request)
        };
        let reference = rest(ask(&start()));
        let engine = start();
        let (least, most) = limits(&engine);
        for round in 0..length() as u64 {
            let mut stream = ask(&engine);
            for i in 0..12 {
                engine
                    .set_budget(least + (most - least) * ((7 * i + 3 * round) % 11) / 10)
                    .unwrap_or_else(|e| panic!("{e}"));
                take(&mut stream, 5);
            }
            let done = rest(stream);
            assert_eq!(done.tokens, reference.tokens, "round {round}");
            assert_eq!(done.logits_hash, reference.logits_hash, "round {round}");
        }
    }
}

#[test]
fn an_impossible_change_is_refused_and_changes_nothing() {
    let engine = roomy();
    let (least, before) = (engine.least_budget(), engine.budget());
    let error = engine.set_budget(least - 1).expect_err("too little");
    assert!(error.to_string().contains("the minimum is"), "{error}");
    let error = engine
        .set_budget(before.total_bytes() + 1)
        .expect_err("too much");
    assert!(error.to_string().contains("engine was started"), "{error}");
    assert_eq!(engine.budget(), before);
}
