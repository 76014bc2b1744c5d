//! The library as its users see it: streams, sessions, cancelling, sampling, statistics.

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay::models::tokenizer::EncodeOptions;
use forebay::{Engine, Prompt, Request, SamplerConfig, Session, Statistics, StreamItem, Token};
use futures_util::StreamExt;
use serde_json::Value;
use support::{build, engine, generate, number};

const PROMPT: &str = "Once upon a time, there was a little girl named Lily.";

/// The demo with part of its weights on flash.
fn demo() -> Engine {
    build(engine(None).weight_memory(4 << 20))
}

fn greedy(prompt: &str, n: usize) -> Request {
    Request {
        ignore_eog: true,
        ..Request::text(prompt).max_tokens(n)
    }
}

/// Sampling that really varies.
fn sampled(seed: u64) -> Request {
    let sampler = SamplerConfig {
        temperature: 1.2,
        seed,
        ..SamplerConfig::default()
    };
    greedy(PROMPT, 24).sampler(sampler)
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
        assert!(self.done.is_none(), "an item behind the last one");
        match item.expect("no fault") {
            StreamItem::Prompt(_) => {}
            StreamItem::Token(token) => {
                assert!(self.rest.is_empty(), "a token behind the rest of the text");
                self.tokens.push(token);
            }
            StreamItem::Rest(text) => self.rest.push_str(&text),
            StreamItem::Done(statistics) => self.done = Some(*statistics),
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
    Iterator::for_each(stream, |item| items.add(item));
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
    while let Some(item) = StreamExt::next(&mut stream).await {
        items.add(item);
    }
    let (tokens, statistics) = items.finish();
    assert_eq!(tokens, blocking);
    assert_eq!(statistics.logits_hash, done.logits_hash);
    assert_eq!(
        (statistics.tokens.len(), statistics.decode.tokens),
        (32, 31)
    );
    let fused = StreamExt::next(&mut stream).await;
    assert!(fused.is_none());
}

/// Characters of several bytes come out whole, whatever tokens they are cut into.
#[test]
fn pieces_add_up_to_the_text_for_any_bytes() {
    let engine = demo();
    // At this temperature nearly any token may follow, bytes of unfinished characters among them.
    let sampler = SamplerConfig {
        temperature: 50.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 3,
        ..SamplerConfig::default()
    };
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
    let request = Request {
        prompt: Prompt::Tokens(long.clone()),
        ..greedy("", 12)
    };
    let (alone, whole) = read(&mut build(self::engine(None)).session(), request);
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
        let tokens = |stream: forebay::TokenStream| -> Vec<u32> {
            stream.finish().expect("no fault").1.tokens
        };
        assert_eq!(tokens(stream_b), ids(&second[i]));
        assert_eq!(tokens(stream_a), ids(&first[i]));
    }
}

/// The engine notices at the next token that nobody reads, and is free for the next request.
#[test]
fn dropping_a_stream_cancels_it() {
    let engine = build(self::engine(None).context(512));
    let mut session = engine.session();
    let mut stream = session
        .generate(greedy(PROMPT, 480))
        .expect("a good request");
    let mut first = Vec::new();
    while first.len() < 3 {
        match Iterator::next(&mut stream)
            .expect("an item")
            .expect("no fault")
        {
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
    // What had been generated stays part of the conversation, which goes on as if it had been asked for.
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
    let items: Vec<_> = Iterator::collect(stream);
    assert!(
        items
            .iter()
            .all(|item| matches!(item, Ok(StreamItem::Token(_))))
    );
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
    let nothing = Request {
        prompt: Prompt::Tokens(Vec::new()),
        ..greedy("", 1)
    };
    assert!(refusal(&mut session, nothing).contains("empty"));
    let long = Request {
        prompt: Prompt::Tokens(vec![5; 32]),
        ..greedy("", 1)
    };
    let message = refusal(&mut session, long);
    assert!(
        message.contains("32 tokens") && message.contains("--ctx"),
        "{message}"
    );
    let unknown = Request {
        prompt: Prompt::Tokens(vec![1 << 20]),
        ..greedy("", 1)
    };
    assert!(refusal(&mut session, unknown).contains("outside the vocabulary"));
    let bad = greedy("x", 1).sampler(SamplerConfig {
        temperature: -1.0,
        ..Default::default()
    });
    assert!(refusal(&mut session, bad).contains("--temp"));
    assert!(engine.logits(&[1 << 20], 0, |_, _| {}).is_err());
    assert!(engine.logits(&[], 0, |_, _| {}).is_err());
    assert!(engine.logits(&[1; 33], 0, |_, _| {}).is_err());
    assert!(
        engine
            .perplexity(&[1 << 20; 64], 32, None, |_, _, _| {})
            .is_err()
    );

    // Two requests of one session: the second begins where the first has ended, and ends with the context.
    let prompt = |ids: &[u32]| Request {
        prompt: Prompt::Tokens(ids.to_vec()),
        ..greedy("", 1000)
    };
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

#[test]
fn generation_ends_at_an_end_token_unless_told_to_go_on() {
    let engine = build(self::engine(None).context(512));
    let mut text = Request::text(PROMPT).max_tokens(450);
    let ended = generate(&engine, text.clone());
    assert!(ended.tokens.len() < 450, "the story ends by itself");
    assert!(!ended.tokens.iter().any(|&id| engine.tokenizer().is_eog(id)));
    text.ignore_eog = true;
    let on = generate(&engine, text);
    assert_eq!(on.tokens.len(), 450);
    assert_eq!(on.tokens[..ended.tokens.len()], ended.tokens);
    assert!(engine.tokenizer().is_eog(on.tokens[ended.tokens.len()]));
}

/// The fields of `--stats` that others rely on (DESIGN.md section 3), by object.
const CONTRACT: [(&str, &[&str]); 7] = [
    (
        "",
        &[
            "model",
            "plan",
            "memory",
            "prefill",
            "decode",
            "cache",
            "io",
            "bubbles",
            "tokens",
            "text",
            "logits_hash",
        ],
    ),
    ("/memory", &["budget_bytes", "peak_rss_bytes", "items"]),
    ("/prefill", &["tokens", "seconds", "tokens_per_second"]),
    (
        "/decode",
        &[
            "tokens",
            "seconds",
            "tokens_per_second",
            "ms_p50",
            "ms_p90",
            "ms_p99",
        ],
    ),
    ("/cache", &["hits", "misses", "hit_rate", "miss_rate_p99"]),
    (
        "/io",
        &[
            "reads",
            "bytes",
            "seconds_busy",
            "bytes_per_second",
            "ceiling_bytes_per_second",
        ],
    ),
    (
        "/bubbles",
        &[
            "compute_busy",
            "wait_io_gate",
            "wait_io_updown",
            "wait_barrier",
            "wait_pred",
            "idle",
        ],
    ),
];

#[test]
fn the_statistics_file_keeps_its_contract() {
    let file = support::TemporaryFile::new("stats.json");
    let mut command = support::program();
    let command = command.args(["run", "--greedy", "-n", "24", "--quiet", "--ignore-eog"]);
    let output = command
        .arg("-p")
        .arg(PROMPT)
        .arg("--stats")
        .arg(&file.0)
        .output()
        .expect("run");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let statistics: Value = support::json(&file.0);
    for (object, fields) in CONTRACT {
        let object = statistics
            .pointer(object)
            .and_then(Value::as_object)
            .expect(object);
        for field in fields {
            assert!(
                object.contains_key(*field),
                "{field} is missing in {object:?}"
            );
        }
    }
    let bubbles: BTreeMap<String, f64> =
        serde_json::from_value(statistics["bubbles"].clone()).expect("fractions");
    let sum: f64 = bubbles.values().sum();
    assert!((sum - 1.0).abs() < 1e-6, "{bubbles:?}");
    assert!(
        bubbles.values().all(|share| (0.0..=1.0).contains(share)),
        "{bubbles:?}"
    );
    assert!(bubbles["compute_busy"] > 0.0, "{bubbles:?}");
    check_figures(&statistics);
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(
        printed,
        format!("{}\n", statistics["text"].as_str().expect("text"))
    );
}

/// Figures of the statistics that follow from each other or from the run.
fn check_figures(statistics: &Value) {
    let get = |pointer: &str| number(statistics, pointer);
    assert_eq!(statistics["tokens"].as_array().map(Vec::len), Some(24));
    assert_eq!(get("/decode/tokens"), 23.0);
    assert!(get("/prefill/tokens") >= 13.0);
    for phase in ["/prefill", "/decode"] {
        let (n, seconds) = (
            get(&format!("{phase}/tokens")),
            get(&format!("{phase}/seconds")),
        );
        let speed = get(&format!("{phase}/tokens_per_second"));
        assert!((speed * seconds - n).abs() < 1e-6 * n, "{phase}");
    }
    assert!(get("/decode/ms_p50") <= get("/decode/ms_p90"));
    assert!(get("/decode/ms_p90") <= get("/decode/ms_p99"));
    let (hits, misses) = (get("/cache/hits"), get("/cache/misses"));
    assert!(
        hits > 0.0 && misses > 0.0,
        "the demo runs in less memory than its weights take"
    );
    assert!((get("/cache/hit_rate") - hits / (hits + misses)).abs() < 1e-9);
    assert!(get("/io/reads") > 0.0 && get("/io/bytes") >= 4096.0 * get("/io/reads"));
    let items = statistics["memory"]["items"].as_object().expect("items");
    let claimed: f64 = items.values().filter_map(Value::as_f64).sum();
    assert!(claimed > 0.0 && claimed <= get("/memory/budget_bytes"));
    let hash = statistics["logits_hash"].as_str().expect("a hash");
    assert!(
        hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
        "{hash}"
    );
}
