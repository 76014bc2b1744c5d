//! Panics in what the caller gave the engine, and of the engine's own threads: whoever waits for an answer gets an
//! error, and nobody waits for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay::bench::BenchTest;
use forebay::{
    DriverChoice, Engine, Error, LiveMask, Observer, Request, Sparsity, StreamItem, TokenStream,
};
use futures_util::StreamExt;
use tracing::Subscriber;
use tracing::span::Id;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::panics::PLANTED;
use crate::stage::{Mode, PROMPT, Patient, packed_demo, right_tokens, threads, tokens_of};
use crate::watchdog::within;

const LIMIT: Duration = Duration::from_secs(60);
const MODE: Mode = Mode {
    sparsity: Sparsity::Exact,
    weight_memory: 1 << 20,
    driver: DriverChoice::Auto,
};

fn endless() -> Request {
    Request::text(PROMPT).ignore_eog(true)
}

fn short() -> Request {
    Request::text(PROMPT).max_tokens(2)
}

/// A message that is a `String`, by which [`crate::panics`] knows it.
fn planted() -> ! {
    panic!("{PLANTED}{}", "in a callback")
}

#[test]
fn a_first_position_behind_the_tokens_is_refused() {
    within(LIMIT, || {
        let patient = Patient::new(MODE);
        for first in [4, 5, usize::MAX] {
            let refusal = patient.engine.logits(&[3, 4, 5, 6], first, |_, _| {});
            let message = refusal.expect_err("no such position").to_string();
            assert!(
                message.contains("first") && message.contains("4 tokens"),
                "{message}"
            );
        }
        assert_eq!(patient.tokens().expect("still usable"), right_tokens());
    });
}

#[test]
fn a_callback_that_panics_fails_its_own_call_only() {
    within(LIMIT, || {
        let patient = Patient::new(MODE);
        let engine = &patient.engine;
        let tokens: Vec<u32> = (3..67).collect();
        let test: BenchTest = "tg2".parse().expect("a test");
        let calls: [&dyn Fn(); 3] = [
            &|| drop(engine.logits(&tokens, 0, |_, _| planted())),
            &|| drop(engine.perplexity(&tokens, 16, None, |_, _, _| planted())),
            &|| drop(engine.bench(&[test], 2, |_, _, _| planted())),
        ];
        for call in calls {
            let queued = engine.session().generate(endless()).expect("a prompt");
            let behind = std::thread::scope(|scope| {
                let reader = scope.spawn(|| queued.finish());
                let call = catch_unwind(AssertUnwindSafe(call));
                assert!(call.is_err(), "the panic is the caller's");
                reader.join().expect("a reader that ends")
            });
            behind.expect("another job's panic is none of its business");
            assert_eq!(patient.tokens().expect("still usable"), right_tokens());
        }
    });
}

/// Panics once told to.
#[derive(Debug, Default)]
struct Fuse(AtomicBool);

impl Observer for Fuse {
    fn residual(&self, _: usize, _: usize, _: &[f32]) {
        if self.0.load(Ordering::Relaxed) {
            planted();
        }
    }

    fn named(&self, _: usize, _: usize, _: usize, _: &[LiveMask]) {}

    fn gates(&self, _: usize, _: usize, _: (usize, usize), _: &[f32]) {}
}

#[test]
fn an_observer_that_panics_fails_every_job() {
    within(LIMIT, || {
        let scratch = crate::scratch::Scratch::new();
        let model = scratch.write("demo.fbay", packed_demo());
        let fuse = Arc::new(Fuse::default());
        let engine = Engine::builder()
            .hot_set(false)
            .model(model)
            .threads(threads())
            .context(128)
            .observer(fuse.clone())
            .build()
            .expect("an engine");
        assert_eq!(tokens_of(&engine).expect("not yet"), right_tokens());
        let mut first = engine
            .session()
            .generate(endless())
            .expect("a prompt")
            .blocking();
        assert!(matches!(first.next(), Some(Ok(StreamItem::Token(_)))));
        let queued = engine.session().generate(endless()).expect("a prompt");
        fuse.0.store(true, Ordering::Relaxed);
        for failed in [first.finish(), queued.finish()] {
            let error = failed.expect_err("a core has gone");
            assert!(matches!(error, Error::Fault { .. }), "{error}");
        }
        refuses_everything(&engine);
    });
}

/// Panics where the engine thread enters the span of a request.
struct InTheEngine;

impl<S: Subscriber> Layer<S> for InTheEngine {
    fn on_enter(&self, _: &Id, _: Context<'_, S>) {
        let thread = std::thread::current();
        if thread.name() == Some("forebay-engine") {
            planted();
        }
    }
}

/// A request whose turn is the engine thread's end.
fn fatal(engine: &Engine) -> TokenStream {
    let subscriber = tracing_subscriber::registry().with(InTheEngine);
    tracing::subscriber::with_default(subscriber, || {
        engine.session().generate(short()).expect("a prompt")
    })
}

/// Each kind of job, sent now, has an error for an answer.
fn refuses_everything(engine: &Engine) {
    let tokens: Vec<u32> = (3..35).collect();
    let test: BenchTest = "tg2".parse().expect("a test");
    let answers = std::thread::scope(|scope| {
        let calls = [
            scope.spawn(|| engine.logits(&tokens, 0, |_, _| {})),
            scope.spawn(|| engine.perplexity(&tokens, 16, None, |_, _, _| {}).map(drop)),
            scope.spawn(|| engine.bench(&[test], 1, |_, _, _| {}).map(drop)),
            scope.spawn(|| engine.session().generate(short())?.finish().map(drop)),
        ];
        calls.map(|call| call.join().expect("no panic"))
    });
    for answer in answers {
        let error = answer.expect_err("the engine has failed");
        assert!(error.to_string().contains(PLANTED) || matches!(error, Error::Fault { .. }));
    }
}

#[test]
fn a_panic_of_the_engine_thread_is_the_answer_to_every_job() {
    within(LIMIT, || {
        let Patient { engine, .. } = Patient::new(MODE);
        // Nobody reads them, so they pause for those behind them; the last one waits in vain.
        let mut paused: Vec<_> = (0..2)
            .map(|_| engine.session().generate(endless()).expect("a prompt"))
            .collect();
        let last = paused.remove(1);
        let running = fatal(&engine);
        let mut session = engine.session();
        let waiting = session.generate(endless());
        refuses_everything(&engine);

        for stream in [paused.remove(0), last, running] {
            let error = stream.finish().expect_err("it never ended");
            assert!(matches!(error, Error::EngineFailed { .. }), "{error}");
            assert!(error.to_string().contains(PLANTED), "{error}");
        }
        // Sent before or after: the answer is the same, once.
        match waiting {
            Err(error) => assert!(matches!(error, Error::EngineFailed { .. }), "{error}"),
            Ok(mut stream) => {
                let runtime = tokio::runtime::Builder::new_current_thread().build();
                let items = async { [stream.next().await, stream.next().await] };
                let items = runtime.expect("a runtime").block_on(items);
                assert!(
                    matches!(&items, [Some(Err(Error::EngineFailed { .. })), None]),
                    "{items:?}"
                );
            }
        }
        assert!(session.generate(short()).is_err());
        assert!(engine.set_budget(engine.budget().total_bytes()).is_err());
        let scratch = crate::scratch::Scratch::new();
        let trace = scratch.join("trace.json");
        let lost = engine.finish_with_trace(&trace);
        assert!(matches!(lost, Err(Error::EngineFailed { .. })), "{lost:?}");
        assert!(!trace.exists());
        assert!(matches!(
            session.generate(short()),
            Err(Error::EngineFailed { .. })
        ));
    });
}

#[test]
fn a_request_sent_while_the_engine_is_dropped_ends() {
    within(LIMIT, || {
        for _ in 0..5 {
            let Patient { engine, .. } = Patient::new(MODE);
            let mut session = engine.session();
            let sender = std::thread::spawn(move || {
                loop {
                    match session.generate(short()) {
                        Ok(stream) => drop(stream.finish()),
                        Err(error) => return error,
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            drop(engine);
            let error = sender.join().expect("a sender that ends");
            assert!(matches!(error, Error::Stopped), "{error}");
        }
    });
}
