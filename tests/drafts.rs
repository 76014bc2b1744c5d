//! Tokens that are run ahead change no token, no logit and no text, whatever is drafted and wherever a generation ends;
//! and where a text repeats itself, they save steps.
//!
//! How much is drafted depends on how long steps take, so no two runs need to draft the same.

mod support;

use std::path::PathBuf;

use forebay::{
    Engine, EngineBuilder, FinishReason, Request, SamplerConfig, Session, Statistics, StreamItem,
    Token,
};
use forebay_models::bundle::Bundle;
use forebay_models::network::Content;
use support::{build, engine, generate};

/// Every kind of layer, in clusters, neuron by neuron and as experts.
const MODELS: [&str; 10] = [
    "bamboo_drelu_bf16",
    "deepseek_v2_bf16",
    "gemma3_bf16",
    "gemma4_inputs_bf16_gguf",
    "gpt_oss_bf16_gguf",
    "llama_k",
    "llama_relu_f16",
    "mistral_window_f16_sharded",
    "olmoe_bf16_gguf",
    "phi3_longrope_bf16",
];
/// Their states cannot be taken back.
const RECURRENT: [&str; 2] = ["lfm2_bf16", "qwen3_5_bf16"];
const NEW_TOKENS: usize = 70;
/// Tokens that repeat themselves.
const PERIOD: usize = 11;

fn prompt() -> Vec<u32> {
    let token = |i: usize| 20 + 7 * (i % PERIOD) as u32;
    (0..4 * PERIOD).map(token).collect()
}

fn request() -> Request {
    let request = Request::tokens(prompt()).max_tokens(NEW_TOKENS);
    request.ignore_eog(true).log_probabilities(2)
}

/// Choices that are made in every way, most of them among a few tokens, so that drafts are right now and then.
fn samplers() -> Vec<SamplerConfig> {
    let few: Vec<(u32, f32)> = (0..4).map(|i| (20 + 7 * i, 40.0)).collect();
    let greedy = SamplerConfig::greedy();
    let mut penalised = greedy.clone();
    (penalised.repeat_penalty, penalised.repeat_last_n) = (1.3, 8);
    let mut drawn = SamplerConfig::default();
    (drawn.top_k, drawn.seed) = (3, 5);
    drawn.logit_bias.clone_from(&few);
    let mut all = drawn.clone();
    (all.top_k, all.top_p, all.min_p, all.temperature) = (0, 0.9, 0.02, 0.6);
    (all.repeat_penalty, all.repeat_last_n) = (1.02, 5);
    let mut one = drawn.clone();
    (one.top_k, one.temperature) = (2, 0.3);
    vec![greedy, penalised, drawn, all, one]
}

/// All that a stream says, and its statistics.
fn read(session: &mut Session, request: Request) -> (Vec<Token>, Statistics) {
    let stream = session.generate(request).unwrap_or_else(|e| panic!("{e}"));
    let (mut tokens, mut done) = (Vec::new(), None);
    for item in stream.blocking() {
        match item.unwrap_or_else(|e| panic!("{e}")) {
            StreamItem::Token(token) => tokens.push(token),
            StreamItem::Done(statistics) => done = Some(*statistics),
            _ => {}
        }
    }
    (tokens, done.expect("the last item"))
}

/// The same request with and without drafts, each in a new session; the statistics with drafts.
fn compare(with: &Engine, without: &Engine, request: &Request, what: &str) -> Statistics {
    let [(ours, drafted), (theirs, plain)] =
        [with, without].map(|engine| read(&mut engine.session(), request.clone()));
    assert_eq!(ours, theirs, "{what}");
    assert_eq!(drafted.tokens, plain.tokens, "{what}");
    assert_eq!(drafted.text, plain.text, "{what}");
    assert_eq!(drafted.logits_hash, plain.logits_hash, "{what}");
    assert_eq!(drafted.finish_reason, plain.finish_reason, "{what}");
    assert_eq!(drafted.decode.tokens, plain.decode.tokens, "{what}");
    assert_eq!(plain.drafts.drafted, 0, "{what}");
    assert_eq!(plain.drafts.steps, plain.decode.tokens, "{what}");
    let d = drafted.drafts;
    assert!(d.accepted <= d.drafted, "{what}: {d:?}");
    assert_eq!(d.steps + d.accepted, drafted.decode.tokens, "{what}: {d:?}");
    drafted
}

fn with_share(model: PathBuf, threads: usize, percent: u64) -> impl Fn(bool) -> Engine {
    let whole = build(engine(Some(&model))).weight_bytes();
    move |drafts| {
        let builder = |bytes| {
            let builder = engine(Some(&model)).threads(threads).drafts(drafts);
            builder.weight_memory(bytes)
        };
        match percent {
            100 => build(builder(u64::MAX)),
            _ => support::build_within(builder, whole * percent / 100),
        }
    }
}

#[test]
fn nothing_depends_on_drafts() {
    let done = support::several_at_once(&MODELS, |name| {
        let (mut drafted, mut accepted) = (0, 0);
        for (threads, percent) in [(1, 100), (2, 40)] {
            let build = with_share(support::tiny(name), threads, percent);
            let (with, without) = (build(true), build(false));
            assert!(with.plan().drafts > 0 && without.plan().drafts == 0);
            for (i, sampler) in samplers().into_iter().enumerate() {
                let what = format!("{name}, {threads} threads, {percent}%, sampler {i}");
                let done = compare(&with, &without, &request().sampler(sampler), &what);
                drafted += done.drafts.drafted;
                accepted += done.drafts.accepted;
            }
        }
        (drafted, accepted)
    });
    for (name, (drafted, accepted)) in MODELS.iter().zip(done) {
        eprintln!("{name}: {accepted} of {drafted} drafted tokens accepted");
        assert!(accepted > 0, "{name}: no draft was ever right");
        assert!(accepted < drafted, "{name}: no draft was ever wrong");
    }
}

/// Models most of whose weights are FFNs, so that only those are streamed: one layer after the other, and parallel
/// layers.
fn mostly_ffns() -> Vec<PathBuf> {
    let parallel = ["phi2_bf16", "falcon_bf16"].map(support::tiny);
    [support::plain_model()]
        .into_iter()
        .chain(parallel)
        .collect()
}

/// What a model says without its streamed clusters is only run ahead.
#[test]
fn a_streamed_model_drafts_for_itself() {
    let models = mostly_ffns();
    let done = support::several_at_once(&models, |model| {
        let (mut said, mut accepted) = (0, 0);
        for (threads, percent) in [(1, 80), (2, 60)] {
            let build = with_share(model.clone(), threads, percent);
            let (with, without) = (build(true), build(false));
            for (i, sampler) in samplers().into_iter().enumerate() {
                let what = format!("{model:?}, {threads} threads, {percent}%, sampler {i}");
                // Nothing in it repeats itself.
                let prompt = (0..23).map(|t| 20 + (t * (t + 3 + i as u32)) % 211);
                let request = Request::tokens(prompt.collect::<Vec<_>>()).max_tokens(40);
                let request = request.ignore_eog(true).log_probabilities(2);
                let done = compare(&with, &without, &request.sampler(sampler), &what);
                assert!(done.drafts.by_model <= done.drafts.drafted, "{what}");
                said += done.drafts.by_model;
                accepted += done.drafts.accepted;
            }
        }
        (said, accepted)
    });
    for (model, (said, accepted)) in models.iter().zip(&done) {
        eprintln!("{model:?} said {said} tokens; {accepted} drafted ones were accepted");
    }
    // How often that pays depends on how busy the machine is.
    let said: usize = done.iter().map(|(said, _)| said).sum();
    assert!(said > 0, "no model said anything");
}

#[test]
fn recurrent_models_draft_nothing() {
    for name in RECURRENT {
        let build = with_share(support::tiny(name), 2, 100);
        let (with, without) = (build(true), build(false));
        assert_eq!(with.plan().drafts, 0);
        let done = compare(&with, &without, &request(), name);
        assert_eq!(done.drafts.drafted, 0);
    }
}

/// An engine with drafts and one without, and a text that both repeat for ever, with a sliding window that is shorter
/// than what is repeated.
struct Loop {
    with: Engine,
    without: Engine,
    text: Vec<u32>,
}

/// What the model repeats.
const REPEATED: usize = 16;

impl Loop {
    fn new(change: impl Fn(EngineBuilder) -> EngineBuilder) -> Self {
        let model = support::tiny("starcoder2_window_f16");
        let [with, without] =
            [true, false].map(|drafts| build(change(engine(Some(&model)).drafts(drafts))));
        let request = Request::text("abcdabcdabcdabcd").max_tokens(60);
        let text = generate(&without, request.ignore_eog(true)).tokens;
        let (before, last) = text.split_at(text.len() - REPEATED);
        assert!(before.ends_with(last), "{text:?}");
        Self {
            with,
            without,
            text,
        }
    }

    fn request(&self) -> Request {
        Request::tokens(self.text.clone()).ignore_eog(true)
    }
}

/// The request that each of these makes is answered equally, and tokens are accepted in all of them together.
fn compare_all(of: &Loop, requests: impl IntoIterator<Item = Request>) -> Vec<Statistics> {
    let requests = requests.into_iter().enumerate();
    let compared = requests.map(|(i, request)| {
        let what = format!("request {i}: {request:?}");
        compare(&of.with, &of.without, &request, &what)
    });
    let done: Vec<Statistics> = compared.collect();
    let accepted: usize = done.iter().map(|done| done.drafts.accepted).sum();
    assert!(accepted > 0, "drafts were never right");
    done
}

#[test]
fn a_text_that_repeats_itself_takes_few_steps() {
    let of = Loop::new(|builder| builder);
    // Other tests use the same cores, so single steps may seem slow.
    let done = compare_all(&of, [1, 2, 3, 4, 5].map(|_| of.request().max_tokens(100)));
    let steps: Vec<usize> = done.iter().map(|done| done.drafts.steps).collect();
    assert!(steps.iter().any(|&steps| steps < 30), "{steps:?}");
}

#[test]
fn generations_end_within_drafts() {
    let of = Loop::new(|builder| builder);
    let limited = (1..40).map(|n| of.request().max_tokens(n));
    for (n, done) in (1..40).zip(compare_all(&of, limited)) {
        assert_eq!(
            (done.tokens.len(), done.finish_reason),
            (n, FinishReason::MaxTokens)
        );
    }
    let text = generate(&of.without, of.request().max_tokens(60));
    let stopped = (2..60).map(|i| of.request().max_tokens(60).stop_tokens([text.tokens[i]]));
    let done = compare_all(&of, stopped);
    for done in &done {
        assert_eq!(done.finish_reason, FinishReason::EndOfGeneration);
    }
    // The text goes on as it was drafted, so what was not accepted came after the end.
    let beyond = |done: &Statistics| done.drafts.drafted > done.drafts.accepted;
    assert!(done.iter().any(beyond), "none of them ended within a draft");
    let starts: Vec<usize> = text.text.char_indices().map(|(at, _)| at).collect();
    let stopped = starts.iter().skip(2).map(|&at| {
        let stop: String = text.text[at..].chars().take(3).collect();
        of.request().max_tokens(60).stop([stop])
    });
    let stopped: Vec<Request> = stopped.collect();
    let done = compare_all(&of, stopped);
    let ended = |done: &&Statistics| done.finish_reason == FinishReason::Stop;
    assert!(done.iter().filter(ended).count() > done.len() / 2);
    assert!(done.iter().any(beyond), "none of them ended within a draft");
}

#[test]
fn the_context_ends_within_a_draft() {
    let text = Loop::new(|builder| builder).text;
    for room in [1, 2, 3, 5, 8, 13, 21, 34] {
        let of = Loop {
            text: text.clone(),
            ..Loop::new(|builder| builder.context(text.len() + room))
        };
        let what = format!("{room} positions to the end of the context");
        let done = compare(&of.with, &of.without, &of.request(), &what);
        assert_eq!(done.tokens.len(), room);
        assert_eq!(done.finish_reason, FinishReason::ContextFull);
    }
}

/// What was run ahead in vain is not in the KV cache: the next turn reads the same tokens and says the same.
#[test]
fn the_next_turn_finds_what_was_accepted() {
    let of = Loop::new(|builder| builder);
    let mut accepted = 0;
    for n in 3..30 {
        let turns = [&of.with, &of.without].map(|engine| {
            let mut session = engine.session();
            let first = read(&mut session, of.request().max_tokens(n)).1;
            let history = session.history();
            let next = Request::tokens([33, 44]).max_tokens(8).ignore_eog(true);
            let (tokens, second) = read(&mut session, next);
            let reread = (second.prompt.reused_tokens, second.prefill.tokens);
            (history, tokens, second.logits_hash, reread, first.drafts)
        });
        let [ours, theirs] = turns;
        assert_eq!((&ours.0, &ours.1), (&theirs.0, &theirs.1), "{n} tokens");
        assert_eq!((ours.2, ours.3), (theirs.2, theirs.3), "{n} tokens");
        accepted += ours.4.accepted;
    }
    assert!(accepted > 0, "drafts were never right");
}

/// Sessions that take turns, and a reader that is so slow that others run meanwhile.
#[test]
fn paused_generations_go_on_as_they_were() {
    let of = Loop::new(|builder| builder);
    let long = of.request().max_tokens(100);
    let expected = generate(&of.without, long.clone());
    let mut session = of.with.session();
    let unread = session.generate(long.clone()).expect("a good request");
    let other = generate(&of.with, request());
    assert_eq!(
        other.logits_hash,
        generate(&of.without, request()).logits_hash
    );
    let late = unread.finish().expect("no fault").1;
    assert_eq!(
        (late.tokens, late.logits_hash),
        (expected.tokens, expected.logits_hash)
    );
    assert!(late.drafts.accepted > 0, "{:?}", late.drafts);
}

#[test]
fn drafts_are_in_the_budget() {
    let item = |engine: &Engine| {
        let budget = engine.budget();
        let items = budget.items().iter();
        items
            .filter(|i| i.name == "drafts")
            .map(|i| i.bytes)
            .sum::<u64>()
    };
    let with = build(engine(None));
    let row = 4 * with.network().vocab_size as u64;
    assert_eq!(item(&with), with.plan().drafts as u64 * row);
    assert!(with.plan().drafts > 8);
    assert_eq!(item(&build(engine(None).drafts(false))), 0);
    // Rows for scoring serve for drafts as well.
    let scoring = build(engine(None).max_logits(4));
    assert_eq!(item(&scoring), (scoring.plan().drafts as u64 - 3) * row);
}

/// Each with a model of the same tokens that drafts for it: itself, which is often right, and another, which is not.
const DRAFTED: [(&str, &str); 4] = [
    ("llama_k", "llama_k"),
    ("llama_k", "qwen2_tied_bf16"),
    ("olmoe_bf16_gguf", "llama_k"),
    ("phi3_longrope_bf16", "phi3_longrope_bf16"),
];

#[test]
fn nothing_depends_on_a_model_that_drafts() {
    let mut wrong = 0;
    for (name, drafting) in DRAFTED {
        let (model, drafting) = (support::tiny(name), support::tiny(drafting));
        let whole = build(engine(Some(&model))).weight_bytes();
        for threads in [1, 2] {
            // What drafts is in memory, and pays where the other model is not.
            let builder = |bytes| engine(Some(&model)).threads(threads).weight_memory(bytes);
            let with = |bytes| builder(bytes).draft_model(&drafting);
            let with = support::build_within(with, whole / 4);
            let without = support::build_within(|b| builder(b).drafts(false), whole / 4);
            let mut accepted = 0;
            for (i, sampler) in samplers().into_iter().enumerate() {
                let what = format!("{name}, {threads} threads, sampler {i}");
                let done = compare(&with, &without, &request().sampler(sampler), &what);
                accepted += done.drafts.accepted;
                wrong += done.drafts.drafted - done.drafts.accepted;
            }
            assert!(accepted > 0, "{name}: no draft was ever right");
        }
    }
    assert!(wrong > 0, "no draft was ever wrong");
}

#[test]
fn a_model_that_cannot_draft_is_refused() {
    let tiny = |name| Some(support::tiny(name));
    let refused = |model: Option<PathBuf>, drafting: Option<PathBuf>, drafts| {
        let builder = engine(model.as_deref()).drafts(drafts);
        let drafting = drafting.expect("a path");
        let refused = builder.draft_model(drafting).build();
        refused.expect_err("a refusal").to_string()
    };
    let cases = [
        (
            refused(tiny("llama_k"), tiny("llama_k"), false),
            "switched off",
        ),
        (
            refused(tiny("lfm2_bf16"), tiny("llama_k"), true),
            "the model has recurrent",
        ),
        (
            refused(tiny("llama_k"), tiny("lfm2_bf16"), true),
            "this model has recurrent",
        ),
        (refused(None, tiny("llama_k"), true), "of the same family"),
        (
            refused(tiny("llama_k"), Some("absent.gguf".into()), true),
            "absent.gguf",
        ),
    ];
    for (refusal, part) in cases {
        assert!(refusal.contains(part), "{refusal}");
    }
}

#[test]
fn a_model_that_drafts_is_in_the_budget() {
    let model = support::tiny("llama_k");
    let item = |engine: &Engine| {
        let budget = engine.budget();
        let of = |name: &str| {
            budget
                .items()
                .iter()
                .find(|i| i.name == name)
                .map(|i| i.bytes)
        };
        (of("draft_model"), budget.total_bytes() >= budget.claimed())
    };
    let (none, fits) = item(&build(engine(Some(&model))));
    assert!(none.is_none() && fits);
    let with = build(engine(Some(&model)).draft_model(&model));
    let (bytes, fits) = item(&with);
    assert!(bytes.expect("an item") > with.weight_bytes() && fits);
    let little = engine(Some(&model))
        .draft_model(&model)
        .memory(bytes.unwrap_or(0));
    let refusal = little.build().expect_err("a refusal").to_string();
    assert!(refusal.contains("draft_model"), "{refusal}");
}

/// Its table of embeddings is on flash, and damaged. The other model has none of that.
#[test]
fn a_model_that_cannot_be_read_drafts_no_longer() {
    let model = support::plain_model();
    let drafting = support::TemporaryFile::new("drafting.fbay");
    let pack = ["pack", model.to_str().expect("a path"), "-q", "-o"];
    let packed = support::program().args(pack).arg(&drafting.0).status();
    assert!(packed.expect("the program starts").success());
    let mut bytes = std::fs::read(&drafting.0).expect("readable");
    let bundle = Bundle::open(&drafting.0).expect("a model");
    let clusters = bundle.clusters.iter();
    let tables = clusters.filter(|cluster| matches!(cluster.content, Content::Table(_)));
    tables.for_each(|table| bytes[table.offset as usize] ^= 1);
    std::fs::write(&drafting.0, bytes).expect("writable");
    let whole = build(engine(Some(&model))).weight_bytes();
    let builder = || engine(Some(&model)).weight_memory(whole / 3);
    let with = build(builder().draft_model(&drafting.0));
    let without = build(builder().drafts(false));
    // Nothing that repeats itself, so that the model is asked.
    let request = Request::tokens((20..60).collect::<Vec<_>>()).max_tokens(NEW_TOKENS);
    let request = request.ignore_eog(true).sampler(samplers().remove(2));
    let done = compare(&with, &without, &request, "a damaged table");
    assert_eq!(done.drafts.by_model, 0);
}
