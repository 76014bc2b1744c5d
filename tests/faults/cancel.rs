//! Cancelled generations: the stream is dropped, or the engine itself.

use std::time::{Duration, Instant};

use forebay::{DriverChoice, Error, Request, Sparsity, StreamItem};

use crate::stage::{Mode, PROMPT, Patient, right_tokens};
use crate::watchdog::within;

const LIMIT: Duration = Duration::from_secs(30);
const STREAMED: Mode = Mode {
    sparsity: Sparsity::Exact,
    weight_memory: 1 << 20,
    driver: DriverChoice::Auto,
};

/// Goes on to the end of the context, whatever the model says.
fn endless() -> Request {
    Request::text(PROMPT).ignore_eog(true)
}

#[test]
fn a_dropped_stream_makes_way_for_the_next_request_at_once() {
    within(LIMIT, || {
        let patient = Patient::new(STREAMED);
        let engine = &patient.engine;
        let start = Instant::now();
        let whole = engine
            .session()
            .generate(endless())
            .expect("a prompt")
            .finish();
        assert!(whole.expect("a sound file").1.tokens.len() > 100);
        let whole = start.elapsed();

        let start = Instant::now();
        for read in 0..4 {
            let mut session = engine.session();
            let stream = session.generate(endless()).expect("a prompt");
            assert_eq!(
                stream.blocking().take(read).filter(Result::is_ok).count(),
                read
            );
        }
        assert_eq!(patient.tokens().expect("a sound file"), right_tokens());
        // Five whole generations would take five times as long.
        assert!(
            start.elapsed() < whole * 3,
            "{:?}, one takes {whole:?}",
            start.elapsed()
        );
    });
}

#[test]
fn a_stream_dropped_during_the_prompt_is_cancelled_between_batches() {
    within(LIMIT, || {
        let patient = Patient::new(STREAMED);
        let engine = forebay::Engine::builder()
            .hot_set(false)
            .model(&patient.path)
            .threads(crate::stage::threads())
            .weight_memory(STREAMED.weight_memory)
            .max_batch(1)
            .build()
            .expect("an engine");
        let prompt = |n: u32| {
            let tokens: Vec<u32> = (0..n).map(|i| 3 + i % 500).collect();
            Request::tokens(tokens).max_tokens(1)
        };
        let start = Instant::now();
        engine
            .session()
            .generate(prompt(100))
            .expect("a prompt")
            .finish()
            .expect("a sound file");
        let whole = start.elapsed();
        let start = Instant::now();
        for _ in 0..10 {
            drop(engine.session().generate(prompt(100)).expect("a prompt"));
        }
        let next = engine
            .session()
            .generate(prompt(2))
            .expect("a prompt")
            .finish();
        assert_eq!(next.expect("a sound file").1.tokens.len(), 1);
        assert!(
            start.elapsed() < whole * 5,
            "{:?}, one takes {whole:?}",
            start.elapsed()
        );
    });
}

#[test]
fn dropping_the_engine_ends_a_generation_that_nobody_reads() {
    within(LIMIT, || {
        let Patient { engine, .. } = Patient::new(STREAMED);
        let mut session = engine.session();
        let mut stream = session.generate(endless()).expect("a prompt").blocking();
        assert!(matches!(stream.next(), Some(Ok(StreamItem::Token(_)))));
        // The stream's channel fills up; its reader is right here.
        std::thread::sleep(Duration::from_millis(300));
        drop(engine);
        assert!(matches!(stream.finish(), Err(Error::Stopped)));
        assert!(matches!(session.generate(endless()), Err(Error::Stopped)));
    });
}

#[test]
fn dropping_the_engine_ends_a_generation_that_somebody_reads() {
    within(LIMIT, || {
        let Patient { engine, .. } = Patient::new(STREAMED);
        let streams: Vec<_> = (0..3)
            .map(|_| engine.session().generate(endless()).expect("a prompt"))
            .collect();
        let readers: Vec<_> = streams
            .into_iter()
            .map(|stream| std::thread::spawn(move || stream.finish()))
            .collect();
        let start = Instant::now();
        drop(engine);
        // The running one ends at its next token, the ones after it before their first.
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
        for reader in readers {
            let end = reader.join().expect("a reader that ends");
            assert!(
                matches!(end, Err(Error::Stopped)),
                "cut short is no success: {end:?}"
            );
        }
    });
}

#[test]
fn dropping_the_engine_during_faults_does_not_hang() {
    within(LIMIT, || {
        let patient = Patient::new(STREAMED);
        let stream = patient
            .engine
            .session()
            .generate(endless())
            .expect("a prompt");
        patient.truncate(4096);
        drop(patient);
        assert!(stream.finish().is_err());
    });
}
