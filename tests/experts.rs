//! Options that use fewer experts than the model does: off, or where there is nothing to leave out, they change no bit;
//! a limit on the number is what the oracle does with it; the others read less, and what they change is measured.

mod program;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use forebay::quality::{AllExperts, ExpertsDivergence};
use forebay::{Engine, FewerExperts, Observer, Request, Sparsity, Statistics};
use forebay_models::bundle::hot_set_path;
use forebay_models::network::Content;
use forebay_models::oracle::Oracle;
use forebay_models::source;
use program::{Answer, answer, forebay};
use support::{TemporaryFile, build, build_within, engine, generate, logits, max_difference, tiny};

/// Largest difference of a logit from the oracle's with the engine's precision, as in `golden.rs`.
const FROM_ORACLE: f32 = 4e-3;
/// Positions at which two experts are so nearly equal that the order of sums decides. One in `smallthinker`: two
/// sigmoids of its fourth layer are 1 there, as far as f32 tells.
const TIES: usize = 1;
/// Tiny models whose routers differ: softmax, groups and biases, before the layer, shared experts, softmax of the
/// chosen.
const ROUTERS: [&str; 5] = [
    "qwen3_moe_bf16",
    "deepseek_v3_bf16",
    "smallthinker_bf16",
    "qwen2_moe_bf16",
    "granite_moe_bf16",
];

fn text(n: u32) -> Vec<u32> {
    (0..n).map(|i| 3 + i * 7 % 200).collect()
}

fn limit(n: usize) -> FewerExperts {
    FewerExperts {
        per_token: Some(n),
        ..FewerExperts::default()
    }
}

fn dropping(share: f32) -> FewerExperts {
    FewerExperts {
        drop_cold: share,
        ..FewerExperts::default()
    }
}

fn preferring(strength: f32) -> FewerExperts {
    FewerExperts {
        prefer_cached: strength,
        ..FewerExperts::default()
    }
}

/// A made-up model whose experts are most of it.
fn synthetic() -> &'static Path {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL.get_or_init(|| {
        let path = support::scratch().join("tiny-experts.fbay");
        if !path.exists() {
            let mut synth = support::program();
            synth.args(["synth", "--shape", "tiny-experts", "--layers", "8"]);
            synth.args(["--quant", "f16", "--measure", "0", "--quiet", "-o"]);
            let done = synth.arg(&path).output().expect("the program starts");
            assert!(done.status.success(), "{done:?}");
        }
        path
    })
}

/// An engine with room for this percentage of the weights, or for the least.
fn within(model: &Path, percent: u64, threads: usize, fewer: FewerExperts) -> Engine {
    let make = || engine(Some(model)).threads(threads).fewer_experts(fewer);
    if percent == 100 {
        return build(make());
    }
    let whole = build(engine(Some(model))).weight_bytes();
    let engine = build_within(|bytes| make().weight_memory(bytes), whole * percent / 100);
    assert!(engine.plan().expert_cache.cells > 0, "nothing is cached");
    engine
}

fn run(engine: &Engine, prompt: u32) -> Statistics {
    let mut request = Request::tokens(text(prompt)).max_tokens(24);
    request.ignore_eog = true;
    generate(engine, request)
}

/// Rows of the positions from `first` on, run one by one, and clusters that were left out.
fn decoded(engine: &Engine, tokens: &[u32], first: usize) -> (Vec<Vec<f32>>, u64) {
    let mut rows = Vec::new();
    let done = engine.decoded_logits(tokens, first, |_, row| rows.push(row.to_vec()));
    let done = done.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(done.tokens, rows.len());
    (rows, done.left_out_clusters)
}

#[test]
fn a_limit_is_what_the_oracle_does_with_it() {
    let tokens = text(24);
    for name in ROUTERS {
        let model = tiny(name);
        let sparse = |builder: forebay::EngineBuilder| builder.sparsity(Sparsity::Dense);
        let own = build(sparse(engine(Some(&model))));
        let most = own.network().most_used_experts();
        assert!(most > 1, "{name} uses {most}");
        let all = logits(&own, &tokens, 0);
        for n in 1..=most {
            let ours = build(sparse(engine(Some(&model))).fewer_experts(limit(n)));
            assert_eq!(ours.plan().fewer_experts.is_off(), n == most);
            let ours = logits(&ours, &tokens, 0);
            let source = source::open(&model).unwrap_or_else(|e| panic!("{e}"));
            let oracle = Oracle::new(source.as_ref()).unwrap_or_else(|e| panic!("{e}"));
            let mut oracle = oracle.with_experts(n).with_engine_precision();
            let theirs: Vec<_> = tokens.iter().map(|t| oracle.forward(*t)).collect();
            let pairs = || ours.iter().zip(&theirs);
            let apart = pairs().map(|(a, b)| max_difference(a, b));
            let far: Vec<f32> = apart.filter(|apart| *apart > FROM_ORACLE).collect();
            assert!(far.len() <= TIES, "{name}: {far:?} with {n} of {most}");
            assert_eq!(ours == all, n == most, "{name} with {n} of {most}");
        }
    }
}

#[test]
fn a_limit_gives_the_same_for_every_budget_and_number_of_threads() {
    let model = synthetic();
    let own = run(&within(model, 100, 2, FewerExperts::default()), 20);
    let first = run(&within(model, 100, 2, limit(1)), 20);
    assert_ne!(own.logits_hash, first.logits_hash);
    for (percent, threads) in [(100, 1), (40, 1), (40, 2), (10, 2)] {
        let other = run(&within(model, percent, threads, limit(1)), 20);
        assert_eq!(
            first.logits_hash, other.logits_hash,
            "{percent}% on {threads}"
        );
        assert_eq!(first.tokens, other.tokens);
    }
}

#[test]
fn without_anything_to_leave_out_no_bit_changes() {
    let model = synthetic();
    let off = run(&within(model, 100, 2, FewerExperts::default()), 20);
    for (percent, fewer) in [
        (40, dropping(0.0)),
        (40, preferring(0.0)),
        (100, dropping(1.0)),
        (100, preferring(1.0)),
    ] {
        let ours = run(&within(model, percent, 2, fewer), 20);
        assert_eq!(off.logits_hash, ours.logits_hash, "{percent}% {fewer:?}");
        assert_eq!(ours.cache.left_out_clusters, 0);
    }
}

#[test]
fn guesses_are_read_ahead_and_change_no_bit() {
    let model = synthetic();
    let whole = build(engine(Some(model)).guess_layers(2));
    assert_eq!(whole.plan().guessed_layers, 0, "nothing has to be read");
    let all = run(&whole, 20);
    assert_eq!(all.cache.guessed_clusters, 0);
    for (percent, threads, n) in [(40, 2, 0), (40, 2, 1), (40, 1, 3), (10, 2, 2)] {
        let make = || engine(Some(model)).threads(threads).guess_layers(n);
        let bytes = whole.weight_bytes() * percent / 100;
        let guessing = build_within(|bytes| make().weight_memory(bytes), bytes);
        assert_eq!(guessing.plan().guessed_layers, n);
        let ours = run(&guessing, 20);
        assert_eq!(all.logits_hash, ours.logits_hash, "{percent}%, {n} layers");
        let (read, wanted) = (
            ours.cache.guessed_clusters,
            ours.cache.guessed_clusters_wanted,
        );
        assert_eq!(read > 0, n > 0, "{percent}%: {read} clusters of {n} layers");
        // The routing of these models can be foreseen.
        assert!(2 * wanted >= read, "{wanted} of {read} were wanted");
    }
}

#[test]
fn prompts_are_read_with_all_experts() {
    let tokens = text(50);
    let own = logits(&build(engine(Some(synthetic()))), &tokens, 40);
    for fewer in [dropping(1.0), preferring(1.0)] {
        for batch in [1, 128] {
            let builder = |bytes| {
                let builder = engine(Some(synthetic())).fewer_experts(fewer);
                builder.weight_memory(bytes).max_batch(batch)
            };
            let engine = build_within(builder, 0);
            assert!(own == logits(&engine, &tokens, 40), "{fewer:?} {batch}");
            let (first, _) = decoded(&engine, &tokens, 49);
            assert_eq!(first.len(), 1);
        }
    }
}

#[test]
fn cold_experts_of_low_weight_are_left_out_and_not_read() {
    let model = synthetic();
    for threads in [1, 2] {
        let all = run(&within(model, 25, threads, FewerExperts::default()), 40);
        assert_eq!(all.cache.left_out_clusters, 0);
        let fewer = run(&within(model, 25, threads, dropping(1.0)), 40);
        assert!(fewer.cache.left_out_clusters > 0, "{:?}", fewer.cache);
        assert!(fewer.io.reads < all.io.reads, "{:?} {:?}", fewer.io, all.io);
        let some = run(&within(model, 25, threads, dropping(0.5)), 40);
        assert!(some.cache.left_out_clusters > 0);
        assert_ne!(fewer.logits_hash, all.logits_hash);
    }
}

/// Which experts' clusters the last step computed, by layer.
#[derive(Debug, Default)]
struct Seen {
    experts: Mutex<BTreeMap<usize, Vec<usize>>>,
    d_ff: usize,
}

impl Observer for Seen {
    /// Once per step, before the layer's experts are chosen.
    fn residual(&self, layer: usize, _: usize, _: &[f32]) {
        self.experts
            .lock()
            .expect("no panic")
            .insert(layer, Vec::new());
    }

    fn hidden(&self, content: Content, (first, _): (usize, usize), _: &[f32]) {
        if let Content::Experts(layer) = content {
            let mut experts = self.experts.lock().expect("no panic");
            experts.entry(layer).or_default().push(first / self.d_ff);
        }
    }
}

#[test]
fn experts_in_memory_are_preferred_and_all_cores_choose_the_same() {
    let model = synthetic();
    let all = build(engine(Some(model)));
    let (d_ff, used) = all
        .network()
        .experts(0)
        .map_or((0, 0), |e| (e.d_ff, e.used));
    let own = decoded(&all, &text(80), 40).0;
    for strength in [0.05, 1.0] {
        let experts = Mutex::default();
        let seen = Arc::new(Seen { experts, d_ff });
        let builder = engine(Some(model)).fewer_experts(preferring(strength));
        let ours = build(
            builder
                .weight_memory(all.weight_bytes() / 4)
                .observer(seen.clone()),
        );
        assert_eq!(ours.threads(), 2, "two cores have to agree");
        for n in (42..80).step_by(4) {
            let (rows, left_out) = decoded(&ours, &text(n), 40);
            assert_eq!((rows.len(), left_out), (n as usize - 40, 0));
            for (layer, experts) in seen.experts.lock().expect("no panic").iter() {
                let different: BTreeSet<_> = experts.iter().collect();
                // Each with all of its clusters, which belong to different cores.
                let clusters = experts.len() / used;
                assert_eq!(
                    (different.len(), experts.len()),
                    (used, clusters * used),
                    "{layer}: {experts:?}"
                );
            }
        }
        let rows = decoded(&ours, &text(80), 40).0;
        assert!(rows != own, "{strength} changes nothing");
    }
}

#[test]
fn what_is_preferred_is_read_less_often() {
    let model = synthetic();
    let reads = |fewer| {
        let engine = within(model, 25, 2, fewer);
        let done = engine.decoded_logits(&text(150), 60, |_, _| {});
        done.unwrap_or_else(|e| panic!("{e}")).reads
    };
    let (all, some, most) = (
        reads(FewerExperts::default()),
        reads(preferring(0.1)),
        reads(preferring(1.0)),
    );
    assert!(most < some && some < all, "{most}, {some}, {all}");
}

#[test]
fn the_divergence_is_measured_and_kept() {
    // Of its own, or an earlier run's would be found.
    let folder = tempfile::tempdir_in(support::scratch()).expect("writable");
    let (model, tokens) = (&folder.path().join("packed.fbay"), text(120));
    let mut pack = support::program();
    pack.args(["pack", "--quiet", "-o"]).arg(model);
    let packed = pack.arg(tiny("qwen3_moe_bf16")).output();
    assert!(packed.expect("the program starts").status.success());
    let mut before = 0.0;
    for fewer in [dropping(0.5), preferring(0.5), limit(1)] {
        let engine = within(model, 25, 2, FewerExperts::default());
        let all = AllExperts::run(&engine, fewer, (&tokens, 60), None, |_, _| {});
        let all = all.unwrap_or_else(|e| panic!("{e}"));
        drop(engine);
        let engine = within(model, 25, 2, fewer);
        assert!(ExpertsDivergence::load(&engine).is_none());
        let measured = all.compare(&engine, |_, _| {});
        let measured = measured.unwrap_or_else(|e| panic!("{e}"));
        let d = &measured.divergence;
        assert_eq!(d.tokens, 2 * 29);
        assert!(d.mean > 1e-2 && d.p99 >= d.median, "{fewer:?}: {d:?}");
        assert!(measured.fewer.reads < measured.all.reads, "{measured:?}");
        before = d.mean;
        measured.save(&engine).unwrap_or_else(|e| panic!("{e}"));
        let kept = ExpertsDivergence::load(&engine).expect("it was kept");
        assert_eq!(kept.divergence.mean, before);
    }
    // Of a limit, the budget does not matter; other options were not measured.
    let other = within(model, 100, 2, limit(1));
    let kept = ExpertsDivergence::load(&other).expect("the same options");
    assert_eq!(kept.divergence.mean, before);
    assert!(ExpertsDivergence::load(&within(model, 25, 2, dropping(0.25))).is_none());
}

#[test]
fn what_is_impossible_is_refused() {
    let refusal = |model: Option<&Path>, fewer| {
        let built = engine(model).fewer_experts(fewer).build();
        built.expect_err("it is impossible").to_string()
    };
    for (fewer, name) in [
        (limit(1), "experts"),
        (dropping(0.5), "drop_cold_experts"),
        (preferring(0.5), "prefer_cached_experts"),
    ] {
        let dense = refusal(None, fewer);
        assert!(
            dense.contains(name) && dense.contains("no experts"),
            "{dense}"
        );
    }
    let model = tiny("qwen3_moe_bf16");
    for (fewer, name) in [
        (limit(0), "experts"),
        (limit(1000), "experts"),
        (dropping(1.5), "drop_cold_experts"),
        (dropping(f32::NAN), "drop_cold_experts"),
        (preferring(-0.1), "prefer_cached_experts"),
    ] {
        let message = refusal(Some(&model), fewer);
        assert!(
            message.contains(name) && message.contains("give"),
            "{message}"
        );
    }
    let own = build(engine(Some(&model)));
    let all = AllExperts::run(&own, dropping(0.0), (&text(60), 60), None, |_, _| {});
    assert!(all.is_err(), "nothing to compare");
}

#[test]
fn the_program_measures_and_tells() {
    // Nothing has been measured in a new folder.
    let cache = tempfile::tempdir_in(support::scratch()).expect("writable");
    let said = |arguments: &[&str]| -> Answer { answer(forebay(cache.path(), arguments)) };
    let model = tiny("olmoe_bf16");
    let model = model.to_str().expect("text");
    let letters = TemporaryFile::new("letters.txt");
    std::fs::write(&letters.0, "a b c d e f g h i j k l m n o p ".repeat(40)).expect("room");
    let letters = letters.0.to_str().expect("text");
    let run = || {
        let usual = ["run", model, "-p", "a b c", "-n", "4", "--greedy"];
        said(&[&usual[..], &["--experts", "1", "--stats", "-"]].concat())
    };
    let before = run();
    let asks = "`forebay eval experts";
    assert!(
        before.status.success() && before.stderr.contains(asks),
        "{before:?}"
    );
    assert!(before.stdout.contains("\"per_token\": 1"), "{before:?}");

    let usual = [
        "eval", "experts", model, "-f", letters, "--ctx", "64", "--chunks", "2",
    ];
    let measured = said(&[&usual[..], &["--experts", "1", "--json"]].concat());
    assert!(measured.status.success(), "{measured:?}");
    let json: serde_json::Value = serde_json::from_str(&measured.stdout).expect("one object");
    assert!(support::number(&json, "/divergence/mean") > 0.0, "{json}");
    assert_eq!(support::number(&json, "/divergence/tokens"), 62.0);
    assert_eq!(support::number(&json, "/fewer/tokens"), 64.0);
    let after = run();
    let told = after.stderr.contains("mean KL divergence") && !after.stderr.contains(asks);
    assert!(told, "{after:?}");

    let plain = said(&[&usual[..], &["--experts", "1"]].concat());
    assert!(plain.stdout.contains("mean KL divergence"), "{plain:?}");
    for wrong in [&[][..], &["--experts", "0"], &["--drop-cold-experts", "2"]] {
        let refused = said(&[&usual[..], wrong].concat());
        assert!(
            !refused.status.success() && refused.stderr.contains("experts"),
            "{refused:?}"
        );
    }
}

#[test]
fn the_experts_of_a_run_are_there_when_the_next_one_begins() {
    let model = TemporaryFile::new("warm-experts.fbay");
    std::fs::copy(synthetic(), &model.0).expect("writable");
    let whole = build(engine(Some(&model.0))).weight_bytes();
    let begin = || {
        let builder = engine(Some(&model.0)).weight_memory(whole * 6 / 10);
        let (engine, total) = support::build_and_watch(builder.hot_set(true));
        assert!(engine.plan().expert_cache.cells > 0);
        (run(&engine, 4), total)
    };
    let (cold, resident) = begin();
    let (warm, with_hot) = begin();
    assert!(with_hot > resident, "the hot set is read as well");
    assert_eq!(cold.logits_hash, warm.logits_hash);
    assert!(
        warm.cache.misses * 2 < cold.cache.misses,
        "{:?} and {:?}",
        cold.cache,
        warm.cache
    );
    std::fs::remove_file(hot_set_path(&model.0)).expect("it was kept");
}
