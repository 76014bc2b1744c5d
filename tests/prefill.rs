//! Prompts: whatever their length, the batch, the budget and the way their weights come, the logits are those of
//! one token at a time, bit for bit, and so is what follows.

mod support;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay::{Engine, EngineBuilder, Prompt, Request, Statistics, StreamItem};
use forebay_models::bundle::{Bundle, PackOptions, pack};
use forebay_models::network::Content;
use forebay_models::synth::{Form, Shape, SynthOptions, SynthSource};
use support::{TemporaryFile, build, engine, generate};

/// Lengths around one batch and around powers of two.
const LENGTHS: [usize; 9] = [1, 2, 31, 32, 33, 128, 511, 512, 1000];
/// Tokens generated behind the prompt.
const FOLLOWING: usize = 6;

fn prompt(n: usize, vocabulary: usize) -> Prompt {
    let ids = (0..n).map(|i| ((i * i * 31 + i * 7 + 11) % (vocabulary - 8) + 4) as u32);
    Prompt::Tokens(ids.collect())
}

fn run(engine: &Engine, prompt: Prompt) -> Statistics {
    let mut request = Request::text("").max_tokens(FOLLOWING);
    request.prompt = prompt;
    request.ignore_eog = true;
    generate(engine, request)
}

fn long(model: &Path) -> EngineBuilder {
    engine(Some(model)).context(1024)
}

/// A sparse model with predictors: 2 layers of the tiny shape.
fn sparse() -> PathBuf {
    // Once: a model that is replaced while another test loads it is refused.
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let path = support::scratch().join("prefill-sparse.fbay");
        let options = SynthOptions {
            form: Form::Sparse,
            ..SynthOptions::new(Shape::named("tiny-sparse").expect("a shape"))
        };
        let source = SynthSource::new(&options).expect("a model");
        pack(&source, &path, &PackOptions::default(), &mut |_| {}).expect("packed");
        path
    };
    MODEL.get_or_init(make).clone()
}

/// All lengths in one engine after another, beside one token at a time in memory.
fn same_at_all_lengths(model: &Path, preloads: bool) {
    let plain = build(long(model).max_batch(1));
    let (whole, vocabulary) = (plain.weight_bytes(), plain.network().vocab_size);
    let expected = LENGTHS.map(|n| run(&plain, prompt(n, vocabulary)));
    drop(plain);
    for percent in [100, 80, 50, 25] {
        let weights = whole * percent / 100;
        let engine = match long(model).weight_memory(weights).build() {
            Ok(engine) => engine,
            Err(refusal) => {
                // The tiniest models need more than that for two clusters per core.
                assert!(percent < 50, "{refusal}");
                continue;
            }
        };
        let cached = engine.plan().neuron_cache.slots > 0;
        for (n, expected) in LENGTHS.iter().zip(&expected) {
            let what = format!("{n} tokens at {percent} %");
            let found = run(&engine, prompt(*n, vocabulary));
            assert_eq!(found.logits_hash, expected.logits_hash, "{what}");
            assert_eq!(found.tokens, expected.tokens, "{what}");
            assert_eq!(
                found.prompt.reused_tokens + found.prefill.tokens,
                *n,
                "{what}"
            );
            // Long prompts take whole clusters, each once per batch, and an embedding row per token.
            if preloads && cached && found.prefill.tokens >= 64 {
                let batches = found.prefill.tokens.div_ceil(128) as u64;
                let clusters = found.plan.clusters.by_neuron as u64;
                let most = batches * clusters + found.prefill.tokens as u64;
                assert!(
                    found.prompt.reads <= most,
                    "{what}: {} reads",
                    found.prompt.reads
                );
                assert!(found.prompt.bytes > clusters * (32 << 10), "{what}");
            }
        }
    }
}

#[test]
fn a_sparse_model_with_predictors() {
    same_at_all_lengths(&sparse(), true);
}

#[test]
fn the_demo_computed_exactly() {
    // Its context ends at 512 tokens.
    let demo = build(engine(None).context(512).max_batch(1));
    let vocabulary = demo.network().vocab_size;
    let whole = demo.weight_bytes();
    for n in [1, 2, 31, 32, 33, 128, 500] {
        let expected = run(&demo, prompt(n, vocabulary));
        for percent in [100, 70, 40] {
            let budget = whole * percent / 100;
            let engine = build(engine(None).context(512).weight_memory(budget));
            let found = run(&engine, prompt(n, vocabulary));
            assert_eq!(
                found.logits_hash, expected.logits_hash,
                "{n} at {percent} %"
            );
        }
    }
}

#[test]
fn a_real_model() {
    let Some(model) = support::real_model("SmolLM2-135M-Instruct.Q4_1.gguf") else {
        return;
    };
    let plain = build(long(&model).max_batch(1));
    let (whole, vocabulary) = (plain.weight_bytes(), plain.network().vocab_size);
    let lengths = [1, 33, 512];
    let expected = lengths.map(|n| run(&plain, prompt(n, vocabulary)).logits_hash);
    drop(plain);
    for percent in [100, 50, 25] {
        let engine = build(long(&model).weight_memory(whole * percent / 100));
        for (n, expected) in lengths.iter().zip(&expected) {
            let found = run(&engine, prompt(*n, vocabulary));
            assert_eq!(found.logits_hash, *expected, "{n} tokens at {percent} %");
        }
    }
}

/// A sparse model of which single neurons are cached.
fn cached(model: &Path) -> Engine {
    let whole = build(long(model)).weight_bytes();
    let engine = build(long(model).weight_memory(whole * 8 / 10).max_batch(32));
    assert!(engine.plan().neuron_cache.slots > 0);
    engine
}

#[test]
fn what_the_prompt_leaves_is_decodes_first_hot_set() {
    let model = sparse();
    let engine = cached(&model);
    let vocabulary = engine.network().vocab_size;
    // The same tokens twice: behind a long prompt, and one by one with an empty cache.
    let long_prompt = run(&engine, prompt(200, vocabulary));
    let cold = build(
        long(&model)
            .weight_memory(build(long(&model)).weight_bytes() * 8 / 10)
            .max_batch(1),
    );
    let short = run(&cold, prompt(2, vocabulary));
    let missed = |s: &Statistics| s.cache.misses;
    assert!(missed(&short) > 0);
    // Decode's own misses: the prompt computes at least one neuron of each kind for nothing.
    let decode_bytes = long_prompt.io.bytes - long_prompt.prompt.bytes;
    let short_bytes = short.io.bytes - short.prompt.bytes;
    assert!(
        decode_bytes < short_bytes,
        "{decode_bytes} and {short_bytes}"
    );
}

#[test]
fn a_prompt_that_begins_with_what_is_cached_goes_on_from_there() {
    let model = sparse();
    let engine = cached(&model);
    let vocabulary = engine.network().vocab_size;
    let first = run(&engine, prompt(100, vocabulary));
    assert_eq!(first.prompt.reused_tokens, 0);
    let again = run(&engine, prompt(150, vocabulary));
    assert_eq!(again.prompt.reused_tokens, 100);
    assert_eq!(again.prefill.tokens, 50);
    let fresh = run(&cached(&model), prompt(150, vocabulary));
    assert_eq!(again.logits_hash, fresh.logits_hash);
    // The very same prompt: its last token is run again, since its logits are wanted.
    let same = run(&engine, prompt(150, vocabulary));
    assert_eq!((same.prompt.reused_tokens, same.prefill.tokens), (149, 1));
    assert_eq!(same.logits_hash, fresh.logits_hash);
}

/// Recurrent states are only there for some positions: where the last text ended, and shortly before the end of its
/// prompt.
#[test]
fn recurrent_states_are_read_again_from_the_nearest_snapshot() {
    for name in ["lfm2_bf16", "qwen3_5_bf16"] {
        reads_again_from_the_nearest_snapshot(name);
    }
}

fn reads_again_from_the_nearest_snapshot(name: &str) {
    let model = support::tiny(name);
    let new = || build(engine(Some(&model)).context(256).max_batch(32));
    let engine = new();
    let Prompt::Tokens(ids) = prompt(200, engine.network().vocab_size) else {
        panic!("tokens");
    };
    let told = |ids: &[u32]| run(&engine, Prompt::Tokens(ids.to_vec()));
    let fresh = |ids: &[u32]| run(&new(), Prompt::Tokens(ids.to_vec()));
    let first = told(&ids[..100]);
    assert_eq!(first.prompt.reused_tokens, 0);
    // All that was read and generated, except the last token, which was not fed.
    let history = [&ids[..100], &first.tokens, &ids[100..120]].concat();
    let more = told(&history);
    assert_eq!(more.prompt.reused_tokens, 100 + FOLLOWING - 1);
    assert_eq!(more.logits_hash, fresh(&history).logits_hash);
    // Another end: from the snapshot on.
    let n = history.len();
    let other = [&history[..n - 10], &ids[..30]].concat();
    let changed = told(&other);
    assert_eq!(changed.prompt.reused_tokens, n - 16);
    assert_eq!(changed.logits_hash, fresh(&other).logits_hash);
    // The very same, and one that ends before its snapshot.
    let same = told(&other);
    assert_eq!(same.prompt.reused_tokens, other.len() - 16);
    assert_eq!(same.logits_hash, changed.logits_hash);
    let short = told(&other[..40]);
    assert_eq!(short.prompt.reused_tokens, 0);
    assert_eq!(short.logits_hash, fresh(&other[..40]).logits_hash);
    // Shorter than what is read again.
    let few = told(&other[..5]);
    assert_eq!(few.logits_hash, fresh(&other[..5]).logits_hash);
}

#[test]
fn a_prompt_cut_short_harms_nothing() {
    let model = sparse();
    let engine = cached(&model);
    let vocabulary = engine.network().vocab_size;
    let expected = run(&cached(&model), prompt(60, vocabulary)).logits_hash;
    for items in 1..4 {
        let mut request = Request::text("").max_tokens(FOLLOWING);
        request.prompt = prompt(900 - items, vocabulary);
        let mut session = engine.session();
        let mut stream = session.generate(request).expect("there is room").blocking();
        for i in 0..items {
            // Parts of 32 tokens: the window has read ahead for the next one when this one is dropped.
            match stream.next() {
                Some(Ok(StreamItem::Prompt(p))) => {
                    assert_eq!((p.done, p.total > 800), (32 * (i + 1), true))
                }
                other => panic!("{other:?}"),
            }
        }
        drop(stream);
        // One while the last one is being cancelled, decode with reads of the window still in flight.
        let short = run(&engine, prompt(5, vocabulary));
        assert_eq!(short.tokens.len(), FOLLOWING);
        assert_eq!(run(&engine, prompt(60, vocabulary)).logits_hash, expected);
    }
}

#[test]
fn a_damaged_cluster_leaves_nothing_in_the_cache() {
    let model = TemporaryFile::new("damaged.fbay");
    std::fs::copy(sparse(), &model.0).expect("a writable folder");
    let whole = build(long(&model.0)).weight_bytes();
    let engine = build(long(&model.0).weight_memory(whole * 95 / 100));
    // One batch: it is the last one, so its neurons are taken over.
    let vocabulary = engine.network().vocab_size;
    let expected = run(&cached(&sparse()), prompt(30, vocabulary)).logits_hash;
    let bundle = Bundle::open(&model.0).expect("a sound file");
    let mut ffn = bundle
        .clusters
        .iter()
        .filter(|e| matches!(e.content, Content::Neurons(_)));
    // Of the last layer: what it hands over is not pushed out by what follows.
    let entry = ffn.next_back().expect("it has some");
    let layer = entry.layer().expect("an FFN's");
    let stride = bundle.meta.ffns[layer].expect("neurons").bundle_stride() as u64;
    // A bit of every neuron, in the middle of its Up row or thereabouts.
    let flip = || {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&model.0);
        let file = file.expect("it is there");
        for neuron in 0..u64::from(entry.count) {
            let (at, mut byte) = (entry.offset + neuron * stride + stride / 2, [0]);
            file.read_exact_at(&mut byte, at).expect("readable");
            file.write_all_at(&[byte[0] ^ 0x10], at).expect("writable");
        }
        file.sync_all().expect("a disk");
    };
    flip();
    let mut request = Request::text("").max_tokens(FOLLOWING);
    request.prompt = prompt(30, vocabulary);
    request.ignore_eog = true;
    let mut session = engine.session();
    let failed = session.generate(request).expect("there is room").finish();
    let error = failed.map(drop).expect_err("a bit is wrong").to_string();
    assert!(
        error.contains("cluster") || error.contains("neuron"),
        "{error}"
    );
    flip();
    // Repaired: nothing of what was read meanwhile is used.
    assert_eq!(run(&engine, prompt(30, vocabulary)).logits_hash, expected);
}

#[test]
fn impossible_prompts_are_refused() {
    let engine = cached(&sparse());
    let vocabulary = engine.network().vocab_size;
    let refuse = |prompt: Prompt| {
        let mut request = Request::text("").max_tokens(1);
        request.prompt = prompt;
        let refused = engine.session().generate(request);
        refused.map(drop).expect_err("refused").to_string()
    };
    let long = refuse(prompt(1025, vocabulary));
    assert!(long.contains("1024") || long.contains("1025"), "{long}");
    let empty = refuse(Prompt::Tokens(Vec::new()));
    assert!(empty.contains("prompt"), "{empty}");
    let full = run(&engine, prompt(1023, vocabulary));
    assert_eq!(full.tokens.len(), 1, "the context ends there");
}
