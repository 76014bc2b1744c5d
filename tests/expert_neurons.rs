//! Experts with ReLU that are stored neuron by neuron: neither how many of their neurons are computed, nor which of
//! them are read, nor when, changes a bit; and what is dead is not read where it is far from what is alive.

mod support;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay::learn::{ProfileText, profile};
use forebay::{Engine, EngineBuilder, Loading, PolicyKind, Request, Sparsity, Statistics};
use support::{build, build_within, engine, generate, several_at_once, tiny};

/// Tokens of the prompt, and generated ones.
const PROMPT: u32 = 33;
const GENERATED: usize = 16;

/// A made-up model of which tokens want few neurons, but of all parts of an expert.
fn sparse(format: &str, suffix: &str) -> PathBuf {
    let path = support::scratch().join(format!("sparse-experts-{format}.{suffix}"));
    if !path.exists() {
        let mut synth = support::program();
        synth.args(["synth", "--shape", "tiny-sparse-experts", "--quant", format]);
        let done = synth.args(["--measure", "0", "--quiet", "-o"]).arg(&path);
        let done = done.output().expect("the program starts");
        assert!(done.status.success(), "{done:?}");
    }
    path
}

/// Its neurons are pairs of 2 KiB.
fn floats() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| sparse("f16", "fbay"))
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    percent: u64,
    threads: usize,
    batch: usize,
    loading: Loading,
}

impl Setting {
    /// An engine with room for this part of the weights, or for the least.
    fn engine(self, make: &(dyn Fn() -> EngineBuilder + Sync), whole: u64) -> Engine {
        let make = || {
            let builder = make().threads(self.threads).max_batch(self.batch);
            builder.loading(self.loading)
        };
        match self.percent {
            100 => build(make()),
            percent => build_within(|bytes| make().weight_memory(bytes), whole * percent / 100),
        }
    }
}

fn run(engine: &Engine) -> Statistics {
    let tokens = (0..PROMPT).map(|i| 3 + i * 7 % 200).collect::<Vec<_>>();
    let mut request = Request::tokens(tokens).max_tokens(GENERATED);
    request.ignore_eog = true;
    generate(engine, request)
}

fn settings() -> Vec<Setting> {
    let mut all = Vec::new();
    for percent in [100, 50, 25] {
        for (threads, batch) in [(1, 1), (2, 1), (1, 8), (2, 64)] {
            for loading in [Loading::Bundle, Loading::Split] {
                all.push(Setting {
                    percent,
                    threads,
                    batch,
                    loading,
                });
            }
        }
    }
    all
}

fn check(name: &str, make: &(dyn Fn() -> EngineBuilder + Sync)) {
    let all = build(make().sparsity(Sparsity::Dense).max_batch(1));
    let (all, whole) = (run(&all), all.weight_bytes());
    let exact = || make().sparsity(Sparsity::Exact);
    let settings = settings();
    let runs = several_at_once(&settings, |setting| {
        let engine = setting.engine(&exact, whole);
        let caches = engine.plan().expert_cache.cells > 0;
        assert_eq!(caches, setting.percent < 100, "{name}: {setting:?}");
        run(&engine)
    });
    let mut live = Vec::new();
    for (setting, run) in settings.iter().zip(&runs) {
        assert_eq!(all.logits_hash, run.logits_hash, "{name}: {setting:?}");
        assert_eq!(all.tokens, run.tokens);
        // Of tokens that come one by one: what is alive for any of several is computed for all of them.
        if setting.batch == 1 {
            let computed = run.cache.hits + run.cache.misses;
            live.push(computed);
            let (all, first) = (all.cache.hits + all.cache.misses, live[0]);
            assert!(10 * computed < 7 * all, "{name}: {computed} of {all}");
            assert_eq!(computed, first, "{name}: {setting:?}");
        }
    }
}

#[test]
fn smallthinkers_experts() {
    let model = tiny("smallthinker_bf16");
    check("smallthinker", &|| engine(Some(&model)));
}

#[test]
fn mixtrals_experts() {
    let model = tiny("turbosparse_mixtral_bf16");
    check("mixtral", &|| engine(Some(&model)));
}

#[test]
fn experts_of_few_live_neurons() {
    check("floats", &|| engine(Some(floats())));
}

/// Down is quantised again, by columns.
#[test]
fn experts_of_quantised_columns() {
    let model = sparse("q4_0", "gguf");
    check("columns", &|| engine(Some(&model)).by_neuron());
}

#[test]
fn dead_neurons_are_not_read_and_what_was_read_stays() {
    let whole = build(engine(Some(floats()))).weight_bytes();
    let make = || engine(Some(floats())).sparsity(Sparsity::Exact);
    for (percent, threads) in [(25, 2), (60, 2), (60, 1)] {
        let read = |loading| {
            let setting = Setting {
                percent,
                threads,
                batch: 1,
                loading,
            };
            let engine = setting.engine(&make, whole);
            let (first, second) = (run(&engine), run(&engine));
            assert_eq!(first.logits_hash, second.logits_hash);
            (first, second)
        };
        let (bundles, again) = read(Loading::Bundle);
        let (gates, more) = read(Loading::Split);
        assert_eq!(bundles.logits_hash, gates.logits_hash);
        let (all, part) = (bundles.io.bytes, gates.io.bytes);
        eprintln!(
            "{percent}%: {all} or {part} bytes, then {} or {}",
            again.io.bytes, more.io.bytes
        );
        assert!(part * 10 < all * 8, "{percent}%: {part} of {all} bytes");
        // What a cell has in part is found again, and added to.
        assert!(
            more.io.bytes <= part,
            "{percent}%: {} after {part}",
            more.io.bytes
        );
        assert!(
            more.cache.hits > 0 && more.cache.misses > 0,
            "{:?}",
            more.cache
        );
    }
}

#[test]
fn a_profile_says_how_many_neurons_of_an_expert_are_alive() {
    let tokens: Vec<u32> = (0..64).map(|i| 3 + i * 7 % 200).collect();
    let text = ProfileText::Given {
        tokens: &tokens,
        ctx: 32,
    };
    let make = |sparsity| move || Ok(engine(Some(floats())).sparsity(sparsity));
    let alive = |sparsity| {
        let make = make(sparsity);
        let profile = profile(&make, text, PolicyKind::default(), &mut |_| {});
        let experts = profile.unwrap_or_else(|e| panic!("{e}")).experts;
        experts.and_then(|experts| experts.alive)
    };
    // As planted: 4%, of which the Gates that are alive are somewhat more.
    let exact = alive(Sparsity::Exact).expect("it is counted");
    assert!((0.02..0.15).contains(&exact), "{exact}");
    assert_eq!(alive(Sparsity::Dense), Some(1.0));
}
