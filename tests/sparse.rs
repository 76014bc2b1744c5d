//! Predicted sparsity: the masks are those of an independent masked oracle, and neither the budget, nor the
//! cache policy, nor the way of loading, nor what overlaps changes a bit.

mod support;

use std::path::{Path, PathBuf};

use forebay::{
    Engine, EngineBuilder, Error, Loading, NeuronOptions, PackOptions, Pipeline, PolicyKind,
    Prompt, Request, Sparsity, Statistics,
};
use forebay_models::bundle::pack;
use forebay_models::network::HOT_GRANULE;
use forebay_models::oracle::Oracle;
use forebay_models::sorted::SortedNeurons;
use forebay_models::source;
use forebay_models::source::TensorSource;
use serde::Deserialize;
use support::{
    argmax, build, build_within, correlation, engine, generate, json, logits, max_difference,
};

/// The demo with its predictors, which are not part of the program.
fn demo() -> PathBuf {
    support::root().join("models/demo/hf")
}

fn predicted(model: &Path) -> EngineBuilder {
    engine(Some(model)).sparsity(Sparsity::Predicted)
}

fn run(engine: &Engine, prompt: Prompt, n: usize) -> Statistics {
    let mut request = Request::text("").max_tokens(n);
    request.prompt = prompt;
    request.ignore_eog = true;
    generate(engine, request)
}

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<GoldenPrompt>,
}

#[derive(Deserialize)]
struct GoldenPrompt {
    prompt: String,
    greedy_ids: Vec<u32>,
}

/// The ids were computed in f32 with numpy, and PowerInfer's own program gave the same text.
#[test]
fn the_demo_generates_what_powerinfer_does() {
    let golden: Golden = json(&support::root().join("models/demo/golden_predicted.json"));
    let engine = build(predicted(&demo()));
    assert!(golden.prompts.len() >= 5);
    for p in golden.prompts {
        let ids = run(&engine, Prompt::Text(p.prompt.clone()), p.greedy_ids.len()).tokens;
        assert_eq!(ids, p.greedy_ids, "{}", p.prompt);
    }
}

#[test]
fn predictors_are_used_by_default_where_there_are_any() {
    let model = demo();
    let (by_default, asked) = (build(engine(Some(&model))), build(predicted(&model)));
    assert_eq!(by_default.plan().sparsity, Sparsity::Predicted);
    let prompt = || Prompt::Text("One day".into());
    let hashes = [&by_default, &asked].map(|e| run(e, prompt(), 12).logits_hash);
    assert_eq!(hashes[0], hashes[1]);
    let embedded = build(engine(None));
    assert_eq!(embedded.plan().sparsity, Sparsity::Exact);
}

/// The engine's logits beside those of the oracle that computes only the neurons its predictors name.
fn compare_with_masked_oracle(model: &Path, tokens: &[u32], check: impl Fn(&[f32], &[f32], usize)) {
    let source = source::open(model).unwrap_or_else(|e| panic!("{e}"));
    let oracle = Oracle::new(source.as_ref()).unwrap_or_else(|e| panic!("{e}"));
    let oracle = oracle.with_predictors().unwrap_or_else(|e| panic!("{e}"));
    let mut oracle = oracle.with_engine_precision();
    let engine = build(predicted(model).max_logits(16));
    for (position, row) in logits(&engine, tokens, 0).iter().enumerate() {
        check(row, &oracle.forward(tokens[position]), position);
    }
}

#[test]
fn the_demo_agrees_with_the_masked_oracle() {
    let golden: Golden = json(&support::root().join("models/demo/golden_predicted.json"));
    let tokens = &golden.prompts[0].greedy_ids;
    compare_with_masked_oracle(&demo(), tokens, |row, theirs, position| {
        let apart = max_difference(row, theirs);
        // A neuron whose score is next to the threshold may be on the other side of it.
        assert!(apart < 0.3, "position {position}: {apart}");
        assert!(correlation(row, theirs) > 0.999, "position {position}");
        assert_eq!(argmax(row), argmax(theirs), "position {position}");
    });
}

/// A PowerInfer file with dReLU, a threshold above 0 and predictors in F16.
#[test]
fn a_powerinfer_file_agrees_with_the_masked_oracle() {
    let model = support::tiny("bamboo_powerinfer");
    let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 200).collect();
    let mut exact = Vec::new();
    let unmasked = build(
        engine(Some(&model))
            .sparsity(Sparsity::Exact)
            .max_logits(16),
    );
    exact.extend(logits(&unmasked, &tokens, 0));
    let mut masked = 0;
    compare_with_masked_oracle(&model, &tokens, |row, theirs, position| {
        let c = correlation(row, theirs);
        assert!(c > 0.999, "position {position}: correlation {c}");
    });
    let engine = build(predicted(&model).max_logits(16));
    for (row, exact) in logits(&engine, &tokens, 0).iter().zip(&exact) {
        masked += usize::from(row != exact);
    }
    assert!(
        masked > tokens.len() / 2,
        "the mask changes something: {masked}"
    );
}

/// The tiny PowerInfer model with another threshold.
fn with_threshold(threshold: f32) -> support::TemporaryFile {
    const KEY: &[u8] = b"powerinfer.sparse_threshold";
    let mut bytes = std::fs::read(support::tiny("bamboo_powerinfer")).expect("the tiny model");
    let key = bytes
        .windows(KEY.len())
        .position(|w| w == KEY)
        .expect("the key");
    let value = key + KEY.len() + size_of::<u32>();
    bytes[value..value + 4].copy_from_slice(&threshold.to_le_bytes());
    let file = support::TemporaryFile::new(&format!("threshold{threshold:e}.gguf"));
    std::fs::write(&file.0, bytes).expect("a writable folder");
    file
}

#[test]
fn with_the_lowest_threshold_every_neuron_is_named() {
    let file = with_threshold(f32::MIN);
    let prompt = || Prompt::Tokens((0..30).map(|i| (i * 53 + 7) % 200).collect());
    let exact = build(engine(Some(&file.0)).sparsity(Sparsity::Exact));
    let all = build(predicted(&file.0));
    let runs = [exact, all].map(|e| run(&e, prompt(), 16));
    assert_eq!(runs[0].tokens, runs[1].tokens);
    assert_eq!(runs[0].logits_hash, runs[1].logits_hash);
}

#[test]
fn with_the_highest_threshold_no_neuron_is() {
    let file = with_threshold(f32::MAX);
    let engine = build(predicted(&file.0));
    let run = run(&engine, Prompt::Tokens(vec![3, 5, 8]), 4);
    assert_eq!(run.cache.hits + run.cache.misses, 0);
}

#[test]
fn models_without_predictors_say_so() {
    let error = engine(Some(&support::tiny("llama_relu_f16")))
        .sparsity(Sparsity::Predicted)
        .build()
        .expect_err("it has none");
    assert!(matches!(error, Error::NoPredictors { .. }), "{error}");
}

/// What must not make a difference.
#[derive(Clone, Copy, Debug)]
struct Setting {
    percent: u64,
    threads: usize,
    batch: usize,
    neurons: NeuronOptions,
}

fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for percent in [100, 75, 55, 10] {
        for threads in [1, 2] {
            for (i, loading) in [Loading::Bundle, Loading::Split, Loading::Rows]
                .into_iter()
                .enumerate()
            {
                for pipeline in [Pipeline::Cluster, Pipeline::Matrix, Pipeline::None] {
                    // Where nothing is cached, few differences meet each other.
                    let plain = loading == Loading::Bundle || pipeline == Pipeline::Cluster;
                    if [100, 10].contains(&percent) && !plain {
                        continue;
                    }
                    // Each policy meets each of the others somewhere.
                    let policy = PolicyKind::ALL[settings.len() % PolicyKind::ALL.len()];
                    settings.push(Setting {
                        percent,
                        threads,
                        batch: [1, 7, 128][i],
                        neurons: NeuronOptions {
                            policy,
                            loading,
                            pipeline,
                            guesses: 0,
                        },
                    });
                }
            }
        }
    }
    settings
}

fn check(model: &Path, sparsity: Sparsity) -> [usize; 3] {
    check_under(&settings(), model, sparsity)
}

fn check_under(settings: &[Setting], model: &Path, sparsity: Sparsity) -> [usize; 3] {
    // What OPT's table of positions has room for.
    let engine = |model| engine(model).context(64);
    let whole = build(engine(Some(model))).weight_bytes();
    let runs = support::several_at_once(settings, |setting| {
        let within = |bytes| {
            let builder = engine(Some(model)).sparsity(sparsity);
            let builder = builder.threads(setting.threads).max_batch(setting.batch);
            let builder = builder.neurons(setting.neurons);
            builder.weight_memory(match setting.percent {
                100 => u64::MAX,
                _ => bytes,
            })
        };
        let engine = build_within(within, whole * setting.percent / 100);
        let prompt = Prompt::Tokens((0..20).map(|i| (i * 31 + 3) % 200).collect());
        run(&engine, prompt, 12)
    });
    let [mut by_neuron, mut gates, mut streamed] = [0; 3];
    for (setting, run) in settings.iter().zip(&runs) {
        let clusters = run.plan.clusters;
        by_neuron += usize::from(clusters.by_neuron > 0);
        gates += usize::from(clusters.gate_pinned > 0);
        streamed += usize::from(clusters.streamed > 0);
        if clusters.by_neuron > 0 {
            assert!(run.cache.misses > 0 && run.io.reads > 0, "{setting:?}");
        }
        assert_eq!(
            (&runs[0].tokens, &runs[0].logits_hash),
            (&run.tokens, &run.logits_hash),
            "{:?} and {setting:?}",
            settings[0]
        );
    }
    eprintln!("by neuron {by_neuron}, gates pinned {gates}, streamed {streamed} times");
    [by_neuron, gates, streamed]
}

#[test]
fn predicted_demo_is_the_same_under_every_setting() {
    let [by_neuron, gates, streamed] = check(&demo(), Sparsity::Predicted);
    assert!(by_neuron >= 18 && gates == 0 && streamed > 0);
}

#[test]
fn predicted_powerinfer_file_is_the_same_under_every_setting() {
    check(&support::tiny("bamboo_powerinfer"), Sparsity::Predicted);
}

/// Predictors that see the residual stream before their layer: what they name is read while attention is computed.
#[test]
fn predictors_before_attention_are_the_same_under_every_setting() {
    let model = support::TemporaryFile::new("before-attention.fbay");
    let mut synth = support::program();
    synth.args(["synth", "--shape", "tiny-sparse", "--before-attention"]);
    synth
        .args(["--measure", "0", "--quiet", "-o"])
        .arg(&model.0);
    assert!(synth.status().expect("the program starts").success());
    let [by_neuron, ..] = check(&model.0, Sparsity::Predicted);
    assert!(by_neuron >= 18, "{by_neuron}");
}

/// Hot neurons in panels beside single ones.
#[test]
fn hot_neurons_are_the_same_under_every_setting() {
    let some: Vec<Setting> = settings().into_iter().step_by(4).collect();
    let model = support::hot_model("hot.fbay", true, 64);
    let [by_neuron, ..] = check_under(&some, &model.0, Sparsity::Predicted);
    assert!(by_neuron >= 4, "{by_neuron}");
    let model = support::hot_model("hot-exact.fbay", false, 64);
    let [_, gates, _] = check_under(&some, &model.0, Sparsity::Exact);
    assert!(gates >= 2, "{gates}");
    let prompt = || Prompt::Tokens((0..20).map(|i| (i * 31 + 3) % 200).collect());
    let modes = [Sparsity::Dense, Sparsity::Exact];
    let engines = modes.map(|sparsity| build(engine(Some(&model.0)).sparsity(sparsity)));
    let [dense, exact] = engines.map(|engine| run(&engine, prompt(), 12));
    assert_eq!(dense.logits_hash, exact.logits_hash);
}

/// Every token has the hot neurons, whatever the predictors say, and even if they name none at all.
#[test]
fn hot_neurons_agree_with_the_masked_oracle() {
    // A neuron whose score is next to the threshold may be on the other side of it.
    for (threshold, least) in [(0.5, 0.95), (f32::MAX, 0.999)] {
        let plain = with_threshold(threshold);
        let sorted = || {
            let source = source::open(&plain.0).unwrap_or_else(|e| panic!("{e}"));
            let widths = source.network().layers.iter().map(|l| l.ffn.body.d_ff);
            let order: Vec<Vec<u32>> = widths.map(|n| (0..n as u32).rev().collect()).collect();
            let hot = vec![HOT_GRANULE; order.len()];
            SortedNeurons::new(source, order, &hot).unwrap_or_else(|e| panic!("{e}"))
        };
        let model = support::TemporaryFile::new("hot-oracle.fbay");
        let packed = pack(&sorted(), &model.0, &PackOptions::default(), &mut |_| {});
        packed.unwrap_or_else(|e| panic!("{e}"));
        let engine = build(predicted(&model.0).max_logits(16));
        let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 200).collect();
        let ours = logits(&engine, &tokens, 0);
        let correlations = |source: &dyn TensorSource| {
            let oracle = Oracle::new(source).unwrap_or_else(|e| panic!("{e}"));
            let oracle = oracle.with_predictors().unwrap_or_else(|e| panic!("{e}"));
            let mut oracle = oracle.with_engine_precision();
            let rows = ours.iter().zip(&tokens);
            let correlations = rows.map(|(row, &token)| correlation(row, &oracle.forward(token)));
            correlations.fold(1.0, f64::min)
        };
        let right = correlations(&sorted());
        let without = correlations(source::open(&plain.0).expect("a file").as_ref());
        assert!(
            right > least && without < 0.9,
            "{threshold}: {right}, {without}"
        );
    }
}

#[test]
fn exact_demo_is_the_same_under_every_setting() {
    let [by_neuron, gates, _] = check(&demo(), Sparsity::Exact);
    assert!(by_neuron == 0 && gates > 10);
}

#[test]
fn dense_streaming_is_the_same_whatever_overlaps() {
    let [.., streamed] = check(&support::tiny("llama_k"), Sparsity::Dense);
    assert!(streamed > 10);
}

/// ReLU with biases of Gate and Down (OPT), and beside attention (Falcon-ReLU): what is skipped adds exactly nothing,
/// under every setting.
#[test]
fn exact_sparsity_computes_what_dense_does() {
    let mut kept = [0; 3];
    for name in ["opt_bf16", "falcon_relu_f16"] {
        let model = support::tiny(name);
        for (sum, n) in kept.iter_mut().zip(check(&model, Sparsity::Exact)) {
            *sum += n;
        }
        let prompt = || Prompt::Tokens((0..20).map(|i| (i * 31 + 3) % 200).collect());
        let modes = [Sparsity::Dense, Sparsity::Exact];
        let engines =
            modes.map(|sparsity| build(engine(Some(&model)).context(64).sparsity(sparsity)));
        let [dense, exact] = engines.map(|engine| run(&engine, prompt(), 12));
        assert_eq!(dense.tokens, exact.tokens, "{name}");
        assert_eq!(dense.logits_hash, exact.logits_hash, "{name}");
    }
    // They are too small to be cached by neuron; the simulation's models with biases are not.
    let [_, _, streamed] = kept;
    assert!(streamed > 10, "{kept:?}");
}
