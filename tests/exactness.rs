//! The engine's central promise: tokens and logits do not depend, bit for bit, on the memory budget, the
//! number of threads, the I/O driver, the batch size of the prompt, the instruction set, or on whether
//! dead neurons are skipped.
//!
//! Each run also shows by its plan and its statistics that it took the path it was meant to take: whole
//! clusters streamed, neurons cached and missed, or nothing read at all.

#[path = "beside/mod.rs"]
mod beside;
mod support;

use std::collections::BTreeSet;
use std::path::Path;

use forebay::{DriverChoice, Engine, EngineBuilder, Isa, Prompt, Request, Sparsity, Statistics};
use support::{build, engine, generate, least_of};

/// 20 tokens for the demo, BOS included: batches of 7, the last of them not full.
const PROMPT: &str = "Once upon a time, there was a little girl named Lily. She had a big red";
const NEW_TOKENS: usize = 24;
/// Budgets as shares of the model's weights; the first holds everything.
const PERCENTS: [u64; 5] = [100, 60, 45, 30, 10];
const BATCHES: [usize; 3] = [1, 7, 128];
const DRIVERS: [DriverChoice; 2] = [DriverChoice::Uring, DriverChoice::Pread];

/// A configuration that must not make a difference.
#[derive(Clone, Copy, Debug)]
struct Setting {
    percent: u64,
    threads: usize,
    driver: DriverChoice,
    sparsity: Sparsity,
    batch: usize,
    isa: Isa,
}

impl Setting {
    fn builder(&self, model: Option<&Path>, weights: u64) -> EngineBuilder {
        let builder = engine(model).weight_memory(weights).threads(self.threads);
        let builder = builder.driver(self.driver).sparsity(self.sparsity);
        // With drafts, the number of steps would depend on their times.
        let builder = builder.drafts(false);
        builder.max_batch(self.batch).isa(self.isa)
    }

    /// An engine with this share of `whole` bytes; with the minimum weight memory, as the engine's own message names
    /// it, if that is more. Returns the bytes as well.
    fn build(&self, model: Option<&Path>, whole: u64) -> (Engine, u64) {
        let weights = if self.percent == 100 {
            u64::MAX
        } else {
            whole * self.percent / 100
        };
        match self.builder(model, weights).build() {
            Ok(engine) => (engine, weights),
            Err(refusal) => {
                let least = least_of(&refusal.to_string());
                assert!(weights < least, "{refusal}");
                let engine = build(self.builder(model, least));
                assert!(
                    self.builder(model, least - 1).build().is_err(),
                    "{least} is not the minimum"
                );
                (engine, least)
            }
        }
    }
}

/// What a run's plan and statistics say about the path that its weights took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WeightPath {
    InMemory,
    Streamed,
    Cached,
    CachedAndStreamed,
}

fn path_of(setting: &Setting, engine: &Engine, run: &Statistics) -> WeightPath {
    let clusters = run.plan.clusters;
    let (gates, streamed) = (clusters.gate_pinned as u64, clusters.streamed as u64);
    let prompt_steps = run.prefill.tokens.div_ceil(setting.batch) as u64;
    let steps = prompt_steps + run.decode.tokens as u64;
    if streamed > 0 {
        // Once per step; the head's clusters may be left out where no logits are wanted, and a window's
        // worth may have been read ahead before the generation began.
        let buffers = run.plan.stream_window.buffers_per_core;
        let window = (buffers * setting.threads) as u64;
        let least = (streamed * (run.decode.tokens as u64 + 1)).saturating_sub(window);
        assert!(
            least > streamed,
            "the window hides what is streamed: {setting:?}"
        );
        assert!(
            run.io.reads >= least,
            "{} reads of {streamed} clusters: {setting:?}",
            run.io.reads
        );
        assert!(run.io.bytes >= 4096 * least, "{setting:?}");
        assert!(run.io.seconds_busy > 0.0);
    }
    if gates > 0 {
        assert_eq!(setting.sparsity, Sparsity::Exact);
        assert!(
            run.cache.misses > 0 && run.cache.hits > 0,
            "{:?}: {setting:?}",
            run.cache
        );
    }
    let neurons = run.cache.hits + run.cache.misses;
    let all = steps * engine.network().n_neurons() as u64;
    match setting.sparsity {
        Sparsity::Dense => assert_eq!(neurons, all, "{setting:?}"),
        // A batch computes a neuron that is alive for one of its tokens.
        Sparsity::Exact if engine.network().is_sparse() => {
            assert!(
                neurons > 0 && neurons < all,
                "{neurons} of {all}: {setting:?}"
            );
        }
        Sparsity::Exact => assert_eq!(neurons, all, "{setting:?}"),
        other => panic!("{other:?} is tested in sparse.rs"),
    }
    match (gates > 0, streamed > 0) {
        (false, false) => {
            assert_eq!(run.cache.misses, 0, "{setting:?}");
            WeightPath::InMemory
        }
        (false, true) => WeightPath::Streamed,
        (true, false) => WeightPath::Cached,
        (true, true) => WeightPath::CachedAndStreamed,
    }
}

/// All settings; instruction sets other than the best with one batch size and driver only, and with each budget on one
/// number of threads.
///
/// Of budgets, threads, drivers and batches, every pair occurs, and every budget with both drivers and numbers of
/// threads.
fn settings(sparsities: &[Sparsity]) -> Vec<Setting> {
    let mut settings = Vec::new();
    for isa in Isa::available() {
        for &sparsity in sparsities {
            for (i, percent) in PERCENTS.into_iter().enumerate() {
                for threads in [1, 2] {
                    for (j, driver) in DRIVERS.into_iter().enumerate() {
                        for (k, batch) in BATCHES.into_iter().enumerate() {
                            if isa == Isa::detect() && (i + threads + j) % BATCHES.len() != k {
                                continue;
                            }
                            settings.push(Setting {
                                percent,
                                threads,
                                driver,
                                sparsity,
                                batch,
                                isa,
                            });
                        }
                    }
                }
            }
        }
    }
    let single = |s: &Setting| {
        let turn = PERCENTS.iter().position(|&p| p == s.percent);
        s.batch == 7
            && s.driver == DriverChoice::Uring
            && turn.is_some_and(|i| i % 2 + 1 == s.threads)
    };
    settings.retain(|s| s.isa == Isa::detect() || single(s));
    settings
}

/// Runs all settings and returns the paths that were seen.
fn check(name: &str, model: Option<&Path>, sparsities: &[Sparsity]) -> BTreeSet<WeightPath> {
    let whole = build(engine(model)).weight_bytes();
    let settings = settings(sparsities);
    let runs = support::several_at_once(&settings, |setting| {
        let (engine, weights) = setting.build(model, whole);
        let mut request = Request::text("").max_tokens(NEW_TOKENS);
        request.prompt = Prompt::Text(PROMPT.into());
        request.ignore_eog = true;
        let run = generate(&engine, request);
        assert_eq!(run.tokens.len(), NEW_TOKENS);
        (path_of(setting, &engine, &run), weights, run)
    });
    let (mut paths, mut least) = (BTreeSet::new(), BTreeSet::new());
    let (_, _, first) = &runs[0];
    for (setting, (path, weights, run)) in settings.iter().zip(&runs) {
        if *weights != u64::MAX && *weights > whole * setting.percent / 100 {
            least.insert((setting.percent, setting.threads, weights));
        }
        paths.insert(*path);
        assert_eq!(
            first.tokens, run.tokens,
            "{name}: tokens differ under {setting:?}"
        );
        assert_eq!(
            first.logits_hash, run.logits_hash,
            "{name}: logits differ under {setting:?}"
        );
    }
    for (percent, threads, bytes) in &least {
        eprintln!(
            "{name}: {percent}% of {whole} bytes is below the minimum on {threads} cores, \
             which was used instead: {bytes} bytes"
        );
    }
    eprintln!(
        "{name}: {} settings gave the same logits; paths: {paths:?}",
        settings.len()
    );
    paths
}

const BOTH: [Sparsity; 2] = [Sparsity::Exact, Sparsity::Dense];

/// A ReLU model in the neuron layout; dead neurons add exactly nothing, so dense is the same as exact.
#[test]
fn demo_exact_and_dense() {
    use WeightPath::{Cached, CachedAndStreamed, InMemory, Streamed};
    let paths = check("demo", None, &BOTH);
    assert_eq!(
        paths,
        [InMemory, Streamed, Cached, CachedAndStreamed].into()
    );
}

/// SwiGLU in K-quants, stored as clusters.
#[test]
fn k_quants() {
    let paths = check(
        "llama_k",
        Some(&support::tiny("llama_k")),
        &[Sparsity::Dense],
    );
    assert_eq!(paths, [WeightPath::InMemory, WeightPath::Streamed].into());
}

/// A PowerInfer file: dReLU, Down stored transposed, Q4_0, Q8_0 and F16.
#[test]
fn powerinfer() {
    let paths = check(
        "bamboo_powerinfer",
        Some(&support::tiny("bamboo_powerinfer")),
        &BOTH,
    );
    assert!(
        paths.is_superset(&[WeightPath::InMemory, WeightPath::Streamed].into()),
        "{paths:?}"
    );
}

/// Heads, values and windows that differ by layer, and a prompt that is longer than the window.
#[test]
fn values_from_keys() {
    let model = support::tiny("gemma4_bf16");
    let paths = check("gemma4_bf16", Some(&model), &[Sparsity::Dense]);
    assert_eq!(paths, [WeightPath::InMemory, WeightPath::Streamed].into());
}

/// Layers that attend over the keys and values of others, and inputs of tokens that come from a table on flash.
#[test]
fn shared_keys_and_inputs_of_tokens() {
    let model = support::tiny("gemma4_inputs_bf16_gguf");
    let paths = check("gemma4_inputs_bf16", Some(&model), &[Sparsity::Dense]);
    assert_eq!(paths, [WeightPath::InMemory, WeightPath::Streamed].into());
}

/// Codes that are places in a table, in clusters and neuron by neuron.
#[test]
fn tables() {
    for (name, sparsities) in [
        ("llama_iq4_xs", &[Sparsity::Dense][..]),
        ("bamboo_powerinfer_tables", &BOTH),
    ] {
        let paths = check(name, Some(&support::tiny(name)), sparsities);
        assert!(
            paths.is_superset(&[WeightPath::InMemory, WeightPath::Streamed].into()),
            "{paths:?}"
        );
    }
}

/// Short convolutions and delta nets, whose states go from step to step.
#[test]
fn recurrent() {
    for name in ["lfm2_bf16", "qwen3_5_bf16"] {
        let model = support::tiny(name);
        let paths = check(name, Some(&model), &[Sparsity::Dense]);
        let both = [WeightPath::InMemory, WeightPath::Streamed].into();
        assert!(paths.is_superset(&both), "{name}: {paths:?}");
    }
}

/// Experts in few cells, in many, and all in memory: a router that looks past attention, one with groups, experts
/// beside neurons that all tokens use, biases and sinks, old files with one tensor per expert.
#[test]
fn experts() {
    let mut cells = BTreeSet::new();
    for name in [
        "glm4_moe_bf16",
        "gpt_oss_bf16_gguf",
        "granite_moe_bf16_gguf",
        "mixtral_f16",
        "olmoe_bf16_gguf",
        "qwen2_moe_bf16",
        "qwen3_5_moe_bf16",
        "qwen3_moe_bf16",
        "smallthinker_bf16",
    ] {
        let model = support::tiny(name);
        let whole = build(engine(Some(&model))).weight_bytes();
        let mut settings = Vec::new();
        // Every pair occurs.
        for (i, percent) in [100, 50, 25].into_iter().enumerate() {
            for threads in [1, 2] {
                for (j, batch) in BATCHES.into_iter().enumerate() {
                    if (i + threads + j) % 2 == 0 {
                        continue;
                    }
                    settings.push(Setting {
                        percent,
                        threads,
                        driver: DriverChoice::Uring,
                        sparsity: Sparsity::Exact,
                        batch,
                        isa: Isa::detect(),
                    });
                }
            }
        }
        let runs = support::several_at_once(&settings, |setting| {
            let (engine, _) = setting.build(Some(&model), whole);
            let mut request = Request::text("").max_tokens(NEW_TOKENS);
            request.prompt = Prompt::Tokens((3..36).collect());
            request.ignore_eog = true;
            (generate(&engine, request), engine.plan().expert_cache.cells)
        });
        let (first, _) = &runs[0];
        for (setting, (run, n)) in settings.iter().zip(&runs) {
            assert_eq!(first.logits_hash, run.logits_hash, "{name}: {setting:?}");
            assert_eq!(*n > 0, setting.percent < 100, "{name}: {setting:?}");
            // Rows of the embedding are read in any case.
            let reads = run.io.reads > first.io.reads;
            assert_eq!(reads, setting.percent < 100, "{name}: {setting:?}");
            cells.insert(*n);
        }
    }
    assert!(cells.len() > 4, "cells of a core: {cells:?}");
}

/// The logits of a text read at once are those of its tokens generated one by one.
#[test]
fn scoring_gives_the_logits_of_generating() {
    let engine = build(engine(None).max_logits(128));
    let mut request = Request::text(PROMPT).max_tokens(NEW_TOKENS);
    request.ignore_eog = true;
    let run = generate(&engine, request);
    let options = forebay_models::tokenizer::EncodeOptions {
        add_bos: engine.tokenizer().adds_bos(),
        parse_special: true,
    };
    let prompt = engine
        .tokenizer()
        .encode(PROMPT, options)
        .expect("a prompt");
    let fed = [&prompt[..], &run.tokens[..NEW_TOKENS - 1]].concat();
    let rows = support::logits(&engine, &fed, prompt.len() - 1);
    let best: Vec<u32> = rows.iter().map(|row| support::argmax(row)).collect();
    assert_eq!(best, run.tokens);
    let hash = rows.iter().fold(0, |seed, row| {
        row.chunks(1024).fold(seed, |seed, chunk| {
            let bytes: Vec<u8> = chunk
                .iter()
                .flat_map(|l| l.to_bits().to_le_bytes())
                .collect();
            twox_hash::XxHash3_64::oneshot_with_seed(seed, &bytes)
        })
    });
    assert_eq!(format!("{hash:016x}"), run.logits_hash);
}
