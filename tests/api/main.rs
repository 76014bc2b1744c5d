//! The library as its users see it: streams, sessions, cancelling, sampling, statistics.

mod answers;
mod statistics;
#[path = "../support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use forebay::packed::Preparation;
use forebay::{
    BlockingTokens, Engine, EngineBuilder, Error, FinishReason, PlanGoal, Request, SamplerConfig,
    Session, Statistics, StreamItem, Token, TokenStream,
};
use forebay_models::tokenizer::EncodeOptions;
use futures_util::StreamExt;
use support::{build, engine, generate, hot_model};

const PROMPT: &str = "Once upon a time, there was a little girl named Lily.";

/// The demo with part of its weights on flash.
fn demo() -> Engine {
    build(engine(None).weight_memory(4 << 20))
}

fn greedy(prompt: &str, n: usize) -> Request {
    Request::text(prompt).max_tokens(n).ignore_eog(true)
}

fn tokens(prompt: &[u32], n: usize) -> Request {
    Request::tokens(prompt).max_tokens(n).ignore_eog(true)
}

fn hot(temperature: f32) -> SamplerConfig {
    let mut sampler = SamplerConfig::default();
    sampler.temperature = temperature;
    sampler
}

/// Sampling that really varies.
fn sampled(seed: u64) -> Request {
    greedy(PROMPT, 24).sampler(hot(1.2)).seed(seed)
}

/// What a stream yielded.
#[derive(Debug, Default)]
struct Items {
    tokens: Vec<Token>,
    rest: String,
    done: Option<Statistics>,
}

impl Items {
    fn add(&mut self, item: Result<StreamItem, forebay::Error>) {
        assert!(self.done.is_none(), "an item after the last one");
        match item.expect("no fault") {
            StreamItem::Token(token) => {
                assert!(self.rest.is_empty(), "a token after the rest of the text");
                self.tokens.push(token);
            }
            StreamItem::Rest(text) => self.rest.push_str(&text),
            StreamItem::Done(statistics) => self.done = Some(*statistics),
            _ => {}
        }
    }

    /// The tokens and the statistics of a stream that came to its end.
    fn finish(self) -> (Vec<Token>, Statistics) {
        let done = self.done.expect("the last item is Done");
        let text: String = self
            .tokens
            .iter()
            .map(|t| &*t.text)
            .chain([&*self.rest])
            .collect();
        assert_eq!(text, done.text, "the pieces are the whole");
        assert_eq!(ids(&self.tokens), done.tokens);
        (self.tokens, done)
    }
}

/// One generation of a session, by the blocking iterator.
fn read(session: &mut Session, request: Request) -> (Vec<Token>, Statistics) {
    let mut items = Items::default();
    let stream = session.generate(request).expect("a good request");
    stream.blocking().for_each(|item| items.add(item));
    items.finish()
}

fn ids(tokens: &[Token]) -> Vec<u32> {
    tokens.iter().map(|t| t.id).collect()
}

#[tokio::test]
async fn async_and_blocking_streams_give_the_same_items() {
    let engine = demo();
    let (blocking, done) = read(&mut engine.session(), greedy(PROMPT, 32));
    let mut stream = engine
        .session()
        .generate(greedy(PROMPT, 32))
        .expect("a good request");
    let mut items = Items::default();
    while let Some(item) = stream.next().await {
        items.add(item);
    }
    let (tokens, statistics) = items.finish();
    assert_eq!(tokens, blocking);
    assert_eq!(statistics.logits_hash, done.logits_hash);
    assert_eq!(
        (statistics.tokens.len(), statistics.decode.tokens),
        (32, 31)
    );
    let fused = stream.next().await;
    assert!(fused.is_none());
}

/// Characters of several bytes come out whole, whatever tokens they are cut into.
#[test]
fn pieces_add_up_to_the_text_for_any_bytes() {
    let engine = demo();
    // At this temperature nearly any token may follow, bytes of unfinished characters among them.
    let mut sampler = hot(50.0);
    (sampler.top_k, sampler.top_p, sampler.min_p, sampler.seed) = (0, 1.0, 0.0, 3);
    let (tokens, done) = read(&mut engine.session(), greedy(PROMPT, 150).sampler(sampler));
    assert!(
        tokens.iter().any(|t| t.text.is_empty()),
        "some token ended inside a character"
    );
    assert_eq!(done.tokens.len(), 150);
}

#[test]
fn a_conversation_goes_on_with_its_cached_keys_and_equals_one_long_prompt() {
    let engine = demo();
    let mut session = engine.session();
    let (first, one) = read(&mut session, greedy(PROMPT, 12));
    let used = session.history().len();
    assert_eq!(used, one.prefill.tokens + first.len());
    let more = " Then her brother came";
    let (second, two) = read(&mut session, greedy(more, 12));
    // The last token of the first answer was sampled and never run.
    let added = session.history().len() - used - second.len();
    assert_eq!(two.prefill.tokens, added + 1, "only what is new is read");

    let mut long = session.history();
    long.truncate(used + added);
    let (alone, whole) = read(&mut build(self::engine(None)).session(), tokens(&long, 12));
    assert_eq!(whole.prefill.tokens, long.len());
    assert_eq!(alone, second);
    assert_eq!(whole.logits_hash, two.logits_hash);

    let options = EncodeOptions {
        add_bos: false,
        parse_special: true,
    };
    let encoded = engine.tokenizer().encode(more, options).expect("text");
    assert_eq!(
        long[used..],
        encoded[..],
        "no second BOS inside a conversation"
    );
}

#[test]
fn turns_that_wait_in_a_queue_are_one_conversation() {
    // A text that begins gets a space in front here, one that goes on does not.
    let spaced = hot_model("queued.fbay", false, 0);
    for engine in [demo(), build(engine(Some(&spaced.0)))] {
        let turns = [PROMPT, " Then her brother came", "and they"];
        let mut one_by_one = engine.session();
        for turn in turns {
            read(&mut one_by_one, greedy(turn, 6));
        }
        read(&mut one_by_one, tokens(&[], 6));
        let mut queued = engine.session();
        let streams = turns.map(|turn| queued.generate(greedy(turn, 6)).expect("a good request"));
        let last = queued.generate(tokens(&[], 6)).expect("not empty by then");
        for stream in streams.into_iter().chain([last]) {
            stream.finish().expect("no fault");
        }
        assert_eq!(queued.history(), one_by_one.history());
        let bos = engine.tokenizer().bos().expect("both have one");
        let begins = queued.history().iter().filter(|&&id| id == bos).count();
        assert_eq!(begins, 1, "BOS is where the conversation begins");
    }
    let alone = demo().session().generate(tokens(&[], 6));
    assert!(matches!(alone, Err(Error::EmptyPrompt)), "{alone:?}");
}

#[test]
fn control_tokens_in_a_text_are_text_unless_asked_for() {
    let engine = demo();
    let text = format!("{PROMPT}<|end|> Then");
    let read_as = |request: Request| {
        let mut session = engine.session();
        read(&mut session, request.max_tokens(1));
        session.history()
    };
    let control = |ids: &[u32]| {
        let inside = ids[1..].iter();
        inside.filter(|&&id| engine.tokenizer().is_eog(id)).count()
    };
    let plain = read_as(Request::text(&*text));
    assert_eq!(control(&plain), 0, "{plain:?}");
    assert!(engine.tokenizer().decode(&plain, true).starts_with(&text));
    let parsed = read_as(Request::text(&*text).parse_special(true));
    assert_eq!(control(&parsed), 1, "{parsed:?}");
}

#[test]
fn interleaved_sessions_do_not_mix() {
    let engine = demo();
    let turns = ["Tom had a red car.", " He drove it", " and then"];
    let others = ["The sun was hot.", " The dog", " but the cat"];
    let alone = |turns: &[&str]| -> Vec<Vec<Token>> {
        let mut session = engine.session();
        turns
            .iter()
            .map(|turn| read(&mut session, greedy(turn, 10)).0)
            .collect()
    };
    let (first, second) = (alone(&turns), alone(&others));
    let (mut a, mut b) = (engine.session(), engine.session());
    for i in 0..turns.len() {
        // Both requests wait in the engine before either is read.
        let stream_a = a.generate(greedy(turns[i], 10)).expect("a good request");
        let stream_b = b.generate(greedy(others[i], 10)).expect("a good request");
        let said = |stream: TokenStream| stream.finish().expect("no fault").1.tokens;
        assert_eq!(said(stream_b), ids(&second[i]));
        assert_eq!(said(stream_a), ids(&first[i]));
    }
}

/// The engine notices at the next token that its reader has gone, and is free for the next request.
#[test]
fn dropping_a_stream_cancels_it() {
    let engine = build(self::engine(None).context(512));
    let mut session = engine.session();
    let stream = session.generate(greedy(PROMPT, 480));
    let mut stream = stream.expect("a good request").blocking();
    let mut first = Vec::new();
    while first.len() < 3 {
        match stream.next().expect("an item").expect("no fault") {
            StreamItem::Token(token) => first.push(token.id),
            other => panic!("480 tokens cannot be done: {other:?}"),
        }
    }
    drop(stream);
    // The next request runs after the cancelled one has ended; its queue held 64 items.
    let reference = generate(&engine, greedy(PROMPT, 80));
    let history = session.history();
    assert!(
        history.len() < 200,
        "{} tokens in spite of cancelling",
        history.len()
    );
    assert_eq!(first, reference.tokens[..3]);
    // What had been generated stays part of the conversation, which continues as if it had been requested.
    let options = EncodeOptions {
        add_bos: true,
        parse_special: true,
    };
    let prompt = engine
        .tokenizer()
        .encode(PROMPT, options)
        .expect("text")
        .len();
    let kept = history.len() - prompt;
    assert!(kept >= 3);
    let compared = kept.min(80);
    assert_eq!(
        history[prompt..prompt + compared],
        reference.tokens[..compared]
    );
    let (next, _) = read(&mut session, greedy(" The end", 4));
    assert_eq!(next.len(), 4);
}

/// What is sent to other threads and shared between them.
#[test]
fn everything_can_be_moved_to_another_thread() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    is_send::<EngineBuilder>();
    is_send::<Session>();
    is_send::<TokenStream>();
    is_send::<BlockingTokens>();
    is_shared::<Engine>();
    is_shared::<forebay::Error>();
}

#[test]
fn dropping_the_engine_ends_a_stream_that_nobody_reads() {
    let engine = build(self::engine(None));
    let stream = engine
        .session()
        .generate(greedy(PROMPT, 200))
        .expect("a good request");
    let start = Instant::now();
    drop(engine);
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    let mut items: Vec<_> = stream.blocking().collect();
    let last = items.pop().expect("an end");
    assert!(matches!(last, Err(Error::Stopped)), "{last:?}");
    let token = |item: &Result<_, _>| matches!(item, Ok(StreamItem::Token(_)));
    assert!(items.iter().all(token));
}

/// From a thread that has no stream, while another one waits for its tokens.
#[test]
fn a_canceller_ends_a_stream_that_another_thread_reads() {
    let engine = build(self::engine(None).context(512));
    let mut session = engine.session();
    let stream = session
        .generate(greedy(PROMPT, 480))
        .expect("a good request");
    let canceller = stream.canceller();
    let (said, heard) = std::sync::mpsc::channel();
    let statistics = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut items = stream.blocking();
            let _ = said.send(items.next().is_some());
            items.finish().expect("no fault").1
        });
        assert_eq!(heard.recv(), Ok(true));
        canceller.clone().cancel();
        reader.join().expect("no panic")
    });
    assert_eq!(statistics.finish_reason, FinishReason::Cancelled);
    assert!(statistics.tokens.len() < 200, "{}", statistics.tokens.len());
}

/// The engine waits for the callback, and would wait for ever for one that waits for the engine.
#[test]
fn a_callback_for_which_the_engine_waits_cannot_use_it() {
    let (engine, other) = (demo(), demo());
    let mut refused = 0;
    let mut use_both = |_: usize, _: &[f32]| {
        let asked = engine.session().generate(greedy("x", 1)).map(drop);
        let message = asked.expect_err("refused").to_string();
        assert!(message.contains("use the engine afterwards"), "{message}");
        let said = other.session().generate(greedy("x", 1));
        said.and_then(TokenStream::finish)
            .expect("another engine is free");
        refused += 1;
    };
    engine.logits(&[5; 3], 0, &mut use_both).expect("no fault");
    engine
        .decoded_logits(&[5; 3], 1, &mut use_both)
        .expect("no fault");
    assert_eq!(refused, 5);
    assert_eq!(generate(&engine, greedy("x", 1)).tokens.len(), 1);
}

#[test]
fn requests_that_cannot_be_served_say_why() {
    let engine = build(self::engine(None).context(32));
    let mut session = engine.session();
    let refusal = |session: &mut Session, request: Request| {
        session
            .generate(request)
            .map(|_| ())
            .expect_err("refused")
            .to_string()
    };
    assert!(refusal(&mut session, tokens(&[], 1)).contains("empty"));
    let message = refusal(&mut session, tokens(&[5; 32], 1));
    assert!(
        message.contains("32 tokens") && message.contains("holds 32"),
        "{message}"
    );
    assert!(refusal(&mut session, tokens(&[1 << 20], 1)).contains("outside the vocabulary"));
    let bad = greedy("x", 1).sampler(hot(-1.0));
    assert!(refusal(&mut session, bad).contains("temperature"));
    assert!(engine.logits(&[1 << 20], 0, |_, _| {}).is_err());
    assert!(engine.logits(&[], 0, |_, _| {}).is_err());
    assert!(engine.logits(&[1; 33], 0, |_, _| {}).is_err());
    assert!(
        engine
            .perplexity(&[1 << 20; 64], 32, None, |_, _, _| {})
            .is_err()
    );

    // Two requests of one session: the second begins where the first has ended, and ends with the context.
    let prompt = |ids: &[u32]| tokens(ids, 1000);
    let first = session
        .generate(prompt(&[5, 6, 7]))
        .expect("a good request");
    let second = session.generate(prompt(&[8])).expect("a good request");
    assert_eq!(first.finish().expect("no fault").1.tokens.len(), 29);
    let error = second.finish().expect_err("no room").to_string();
    assert!(error.contains("33 tokens"), "{error}");
    assert_eq!(
        generate(&engine, prompt(&[5, 6, 7])).tokens.len(),
        29,
        "still usable"
    );
}

#[test]
fn a_seed_reproduces_and_another_differs() {
    let engine = demo();
    let a = generate(&engine, sampled(11));
    let b = generate(&engine, sampled(11));
    let c = generate(&engine, sampled(12));
    assert_eq!((&a.tokens, &a.logits_hash), (&b.tokens, &b.logits_hash));
    assert_ne!(a.tokens, c.tokens);
    assert_ne!(a.tokens, generate(&engine, greedy(PROMPT, 24)).tokens);
}

/// Another file takes the place of the packed model while it is loaded: what is read later would be of that one.
#[test]
fn a_model_that_is_replaced_while_it_is_loaded_is_refused() {
    let first = support::TemporaryFile::new("first.fbay");
    let second = support::TemporaryFile::new("second.fbay");
    for file in [&first, &second] {
        std::fs::copy(support::sparse_model(), &file.0).expect("writable");
    }
    let (from, to) = (second.0.clone(), first.0.clone());
    let builder = engine(Some(&first.0)).on_preparation(move |at| {
        // Only once: then there is no other.
        if matches!(at, Preparation::Loading { .. }) {
            let _ = std::fs::rename(&from, &to);
        }
    });
    let error = builder.build().expect_err("another model");
    assert!(error.to_string().contains("being overwritten"), "{error}");
    // The one that lies there now is sound.
    build(engine(Some(&first.0)));
}

fn item(engine: &Engine, name: &str) -> u64 {
    let budget = engine.budget();
    let found = budget.items().iter().find(|item| item.name == name);
    found.map_or(0, |item| item.bytes)
}

/// Tables do not give way, so they stay only where nothing else could need the room.
#[test]
fn embeddings_stay_in_memory_unless_memory_is_yielded() {
    let model = support::plain_model();
    let builder = || engine(Some(&model)).drafts(false);
    let (kept, not) = (build(builder()), build(builder().yields_memory(true)));
    let weights = |engine: &Engine| item(engine, "resident_weights");
    let tables = weights(&kept) - weights(&not);
    // In Q8_0.
    let network = kept.network();
    let least = (network.vocab_size * network.d_model / 32 * 34) as u64;
    assert!(tables >= least, "{tables} of {least}");
    let reads = |engine: &Engine| generate(engine, greedy("", 8)).io.reads;
    assert_eq!(reads(&kept), 0);
    assert!(reads(&not) > 0);
}

#[test]
fn numbers_that_no_engine_could_have_are_refused_by_name() {
    for (builder, refused) in [
        (engine(None).density(f64::NAN), "density"),
        (engine(None).density(-1.0), "density"),
        (engine(None).density(2.0), "density"),
        (engine(None).max_batch(usize::MAX), "max_batch"),
        (engine(None).max_logits(usize::MAX / 2), "max_logits"),
        (engine(None).cache_folder(""), "cache_folder"),
        (engine(None).trace_records(1 << 60), "trace_records"),
        (engine(None).goal(PlanGoal::Speed(0.0)), "goal"),
        (engine(None).goal(PlanGoal::Speed(f64::NAN)), "goal"),
    ] {
        let error = builder.build().expect_err(refused);
        let is_named = matches!(&error, Error::InvalidParameter { name, .. } if name == refused);
        assert!(is_named, "{error:?}");
    }
}
