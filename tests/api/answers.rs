//! How answers end, what stays in the conversation, and who waits for whom.

use std::time::{Duration, Instant};

use forebay::{Engine, FinishReason, Request, SamplerConfig, StreamItem};
use forebay_models::tokenizer::EncodeOptions;

use crate::support::{build, engine, generate, root};
use crate::{PROMPT, demo, greedy, ids, read, sampled};

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

/// The reason, and how many tokens there were.
fn end(engine: &Engine, request: Request) -> (FinishReason, usize) {
    let done = generate(engine, request);
    (done.finish_reason, done.tokens.len())
}

#[test]
fn every_end_has_its_reason() {
    let engine = build(engine(None).context(512));
    let (reason, n) = end(&engine, Request::text(PROMPT));
    assert_eq!(reason, FinishReason::EndOfGeneration);
    assert!(n < 450);
    assert_eq!(
        end(&engine, greedy(PROMPT, 3)),
        (FinishReason::MaxTokens, 3)
    );
    assert_eq!(
        end(&engine, greedy(PROMPT, 0)),
        (FinishReason::MaxTokens, 0)
    );
    let full = Request::tokens(vec![5; 500]).ignore_eog(true);
    assert_eq!(end(&engine, full), (FinishReason::ContextFull, 12));
    let done = generate(&engine, greedy(PROMPT, 3));
    assert_eq!(done.seed, None, "nothing was drawn");
    assert_eq!(generate(&engine, sampled(11)).seed, Some(11));
}

#[test]
fn the_end_of_an_answer_belongs_to_the_conversation_but_not_to_its_text() {
    let engine = build(engine(None).context(512));
    let mut session = engine.session();
    let (first, done) = read(&mut session, Request::text(PROMPT));
    assert_eq!(done.finish_reason, FinishReason::EndOfGeneration);
    let history = session.history();
    let (&last, said) = history.split_last().expect("a conversation");
    assert!(engine.tokenizer().is_eog(last));
    assert!(said.ends_with(&ids(&first)));
    assert!(!done.tokens.contains(&last));
    // The next turn reads it.
    let (_, next) = read(&mut session, Request::tokens([7, 8]).max_tokens(2));
    assert_eq!(next.prefill.tokens, 3);
    let mut long = history.clone();
    long.extend([7, 8]);
    let alone = generate(&engine, Request::tokens(long).max_tokens(2));
    assert_eq!(alone.logits_hash, next.logits_hash);
}

#[test]
fn stop_strings_end_the_text_wherever_they_are_cut_into_tokens() {
    let engine = demo();
    let whole = generate(&engine, greedy(PROMPT, 60));
    let text = whole.text;
    // Every beginning of the text ends where a piece out of its middle is found first.
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for &at in starts.iter().skip(20).step_by(17) {
        let stop: String = text[at..].chars().take(7).collect();
        let request = greedy(PROMPT, 60).stop(["never said".to_string(), stop.clone()]);
        let (tokens, done) = read(&mut engine.session(), request);
        let found = text.find(&stop).expect("it is there");
        assert_eq!(done.text, text[..found], "{stop:?}");
        assert_eq!(done.finish_reason, FinishReason::Stop);
        assert_eq!(ids(&tokens), whole.tokens[..tokens.len()]);
    }
    let request = greedy(PROMPT, 60).stop(["never said"]);
    let done = generate(&engine, request);
    assert_eq!(
        (done.text, done.finish_reason),
        (text, FinishReason::MaxTokens)
    );
    let empty = greedy(PROMPT, 60).stop([""]);
    assert!(engine.session().generate(empty).is_err());
}

#[test]
fn a_cancelled_stream_ends_with_its_statistics() {
    let engine = build(engine(None).context(512));
    let mut session = engine.session();
    let stream = session.generate(greedy(PROMPT, 400));
    let mut stream = stream.expect("a good request").blocking();
    for _ in 0..3 {
        assert!(matches!(stream.next(), Some(Ok(StreamItem::Token(_)))));
    }
    stream.cancel();
    let done = stream.finish().expect("no fault").1;
    assert_eq!(done.finish_reason, FinishReason::Cancelled);
    assert!(
        (3..200).contains(&done.tokens.len()),
        "{}",
        done.tokens.len()
    );
    assert!(session.history().ends_with(&done.tokens));
    // At once, perhaps before anything was read.
    let mut other = engine.session();
    let stream = other.generate(greedy(PROMPT, 400)).expect("a good request");
    let later = engine
        .session()
        .generate(greedy(PROMPT, 4))
        .expect("a good request");
    stream.cancel();
    let done = stream.finish().expect("no fault").1;
    assert_eq!(done.finish_reason, FinishReason::Cancelled);
    assert_eq!(later.finish().expect("no fault").1.tokens.len(), 4);
}

#[test]
fn a_fork_goes_its_own_way() {
    let engine = demo();
    let mut session = engine.session();
    read(&mut session, greedy(PROMPT, 8));
    let mut fork = session.fork();
    assert_eq!(fork.history(), session.history());
    let (one, _) = read(&mut session, greedy(" Then", 8));
    let before = session.history();
    let (other, _) = read(&mut fork, greedy(" But", 8));
    assert_eq!(session.history(), before, "nothing of the fork is in it");
    assert_ne!(ids(&one), ids(&other));
    let (again, _) = read(&mut fork.fork(), greedy("!", 2));
    assert_eq!(again.len(), 2);
}

/// Where a tokenizer puts a space in front of texts, a text that goes on gets none.
#[test]
fn what_continues_a_conversation_may_go_on_within_a_word() {
    let folder = tempfile::tempdir().expect("a folder");
    let demo = root().join("models/demo/hf");
    for file in std::fs::read_dir(demo).expect("readable") {
        let file = file.expect("an entry");
        std::fs::copy(file.path(), folder.path().join(file.file_name())).expect("copied");
    }
    let path = folder.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&path).expect("readable");
    let spaced = text.replace("\"add_prefix_space\": false", "\"add_prefix_space\": true");
    std::fs::write(&path, spaced).expect("writable");
    let engine = build(engine(Some(folder.path())));
    let mut session = engine.session();
    read(&mut session, greedy("Once", 2));
    let before = session.history();
    read(&mut session, greedy("ly", 1));
    let after = session.history();
    let text = |ids: &[u32]| {
        let tokens = ids
            .iter()
            .filter_map(|&id| engine.tokenizer().token_bytes(id));
        String::from_utf8_lossy(&tokens.collect::<Vec<_>>().concat()).into_owned()
    };
    assert!(text(&before[1..]).starts_with(" Once"));
    assert!(text(&after[before.len()..]).starts_with("ly"));
}

/// Longer than a queue of items, so that the engine has to wait for the reader.
const LONG: usize = 150;

#[test]
fn an_unread_stream_blocks_nobody_and_loses_nothing() {
    let engine = build(engine(None).context(512).weight_memory(4 << 20));
    let expected = generate(&engine, greedy(PROMPT, LONG));
    let drawn = generate(&engine, sampled(5).max_tokens(LONG));
    let mut first = engine.session();
    let unread = first
        .generate(greedy(PROMPT, LONG))
        .expect("a good request");
    let mut second = engine.session();
    let also_unread = second
        .generate(sampled(5).max_tokens(LONG))
        .expect("a good request");
    // A request of the same session waits for its turn.
    let next = first.generate(greedy(" More", 4)).expect("a good request");
    let start = Instant::now();
    let other = generate(&engine, greedy("The dog", 20));
    assert_eq!(other.tokens.len(), 20);
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
    let late = also_unread.finish().expect("no fault").1;
    assert_eq!(
        (late.tokens, late.logits_hash),
        (drawn.tokens, drawn.logits_hash)
    );
    let late = unread.finish().expect("no fault").1;
    assert_eq!(
        (late.tokens, late.logits_hash),
        (expected.tokens, expected.logits_hash)
    );
    assert_eq!(next.finish().expect("no fault").1.tokens.len(), 4);
}

#[test]
fn log_probabilities_are_those_of_the_logits() {
    let engine = demo();
    let items = |request: Request| read(&mut engine.session(), request).0;
    let told = items(greedy(PROMPT, 5).log_probabilities(3));
    let options = EncodeOptions {
        add_bos: true,
        parse_special: false,
    };
    let encoded = engine.tokenizer().encode(PROMPT, options);
    let mut history = encoded.expect("tokens");
    for token in &told {
        let found = token
            .log_probabilities
            .as_deref()
            .expect("they were asked for");
        assert_eq!(found.most_likely.len(), 3);
        assert_eq!(
            (found.chosen.id, found.chosen),
            (token.id, found.most_likely[0])
        );
        let mut expected = f64::NAN;
        let last = history.len() - 1;
        let row = |_: usize, logits: &[f32]| {
            let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
            expected = f64::from(logits[token.id as usize]) - sum.ln();
        };
        engine.logits(&history, last, row).expect("no fault");
        let error = f64::from(found.chosen.log_probability) - expected;
        assert!(error.abs() < 1e-5, "{found:?}: {expected}");
        history.push(token.id);
    }
    let untold = items(greedy(PROMPT, 5));
    assert!(untold.iter().all(|t| t.log_probabilities.is_none()));

    // The most likely token is excluded, so the second takes its place; what the model finds likely stays.
    let mut sampler = SamplerConfig::greedy();
    sampler.logit_bias = vec![(told[0].id, f32::NEG_INFINITY)];
    let others = items(greedy(PROMPT, 1).sampler(sampler).log_probabilities(3));
    let (first, second) = (&told[0].log_probabilities, &others[0].log_probabilities);
    let (first, second) = (
        first.as_deref().expect("told"),
        second.as_deref().expect("told"),
    );
    assert_eq!(others[0].id, first.most_likely[1].id);
    assert_eq!(second.most_likely, first.most_likely);
}

#[test]
fn bad_biases_and_too_many_alternatives_are_refused() {
    let engine = demo();
    let refused = |request: Request| {
        let error = engine
            .session()
            .generate(request)
            .expect_err("a bad request");
        error.to_string()
    };
    let mut sampler = SamplerConfig::greedy();
    sampler.logit_bias = vec![(1 << 30, 1.0)];
    let message = refused(greedy(PROMPT, 1).sampler(sampler));
    assert!(message.contains("logit_bias"), "{message}");
    let message = refused(greedy(PROMPT, 1).log_probabilities(65));
    assert!(message.contains("log_probabilities"), "{message}");
}
