//! What is learned about a model: predictors fitted by the tool, thresholds, and the hot set between runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use forebay::learn::Profile;
use forebay::{Engine, Prompt, Request, Sparsity};
use forebay_models::bundle::{Bundle, hot_set_path, load_hot_set};
use forebay_models::network::Content;
use serde_json::Value;

use crate::support::{self, TemporaryFile, build, generate};

/// The demo, packed for this test alone: what is learned is written into it.
fn packed_demo(name: &str) -> TemporaryFile {
    let file = TemporaryFile::new(&format!("{name}.fbay"));
    run(support::program()
        .arg("pack")
        .arg(support::root().join("models/demo/hf"))
        .arg("-o")
        .arg(&file.0)
        .arg("--quiet"));
    file
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Stories that the demo tells, of at least 4000 tokens. They are told once for all tests.
fn stories() -> TemporaryFile {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| {
        let engine = build(support::engine(None).context(512));
        let mut text = String::new();
        for seed in 0.. {
            let mut request = Request::text("Once upon a time").max_tokens(400);
            request.sampler.temperature = 1.0;
            request.sampler.seed = seed;
            text += &generate(&engine, request).text;
            text.push('\n');
            if text.len() > 4 * 4000 {
                break;
            }
        }
        text
    });
    let file = TemporaryFile::new("stories.txt");
    std::fs::write(&file.0, text).expect("a writable folder");
    file
}

fn number(value: &Value, field: &str) -> f64 {
    value[field]
        .as_f64()
        .unwrap_or_else(|| panic!("{field} in {value:#}"))
}

/// Fits predictors to the packed demo; returns the report.
fn fit(model: &Path, text: &Path, flags: &[&str]) -> Value {
    let report = run(support::program()
        .args(["fit-predictor", "--json", "--ctx", "128", "--recall", "0.9"])
        .args(flags)
        .arg(model)
        .arg("-f")
        .arg(text));
    serde_json::from_str(&report).expect("JSON")
}

#[test]
fn a_predictor_is_fitted_stored_and_used() {
    let (model, other) = (packed_demo("fit"), packed_demo("fit-before"));
    let text = stories();
    let rank_64 = "--tokens 4000 --test-pieces 4 --rank 64 --steps 100";
    let rank_64: Vec<&str> = rank_64.split(' ').collect();
    // Fitting takes one core.
    let (report, before) = std::thread::scope(|scope| {
        let before = scope.spawn(|| {
            let rank_8 = "--tokens 1000 --test-pieces 2 --rank 8 --steps 0";
            let rank_8: Vec<&str> = rank_8.split(' ').collect();
            fit(&other.0, &text.0, &rank_8);
            fit(
                &other.0,
                &text.0,
                &[&rank_64[..], &["--before-attention"]].concat(),
            )
        });
        let report = fit(&model.0, &text.0, &rank_64);
        (report, before.join().expect("fitted, too"))
    });
    // A layer keeps what training makes of it only if that is better.
    let layers = report["layers"].as_array().expect("a list of layers");
    let trained = layers.iter().filter(|l| l["result"] != l["untrained"]);
    assert!(trained.count() >= 2, "{report:#}");
    let (recall, predicted) = (
        number(&report, "recall"),
        number(&report, "predicted_density"),
    );
    let density = number(&report, "density");
    assert!(recall > 0.85, "{report:#}");
    // Naming all neurons would have perfect recall, too.
    assert!(predicted < 0.5 && predicted > density, "{report:#}");
    let cost = number(&report, "predicted_perplexity") / number(&report, "exact_perplexity");
    assert!(cost > 0.95 && cost < 1.2, "{report:#}");
    let bundle = Bundle::open(&model.0).expect("a sound file");
    let predictors = bundle.meta.predictors.as_ref().expect("they are stored");
    assert!(predictors.len() == 6 && predictors.iter().all(|p| p.rank == 64));
    // The weights are what they were, and predictors are what is used now.
    let builder = |sparsity| support::engine(Some(&model.0)).sparsity(sparsity);
    let prompt = || Request::text("One day").max_tokens(16);
    let exact = generate(&build(builder(Sparsity::Exact)), prompt());
    let embedded = generate(&build(support::engine(None)), prompt());
    assert_eq!(exact.logits_hash, embedded.logits_hash);
    let by_default = build(support::engine(Some(&model.0)));
    assert_eq!(by_default.plan().sparsity, Sparsity::Predicted);
    // Those that see the layer's input have taken the place of others, and are used as they were fitted.
    let bundle = Bundle::open(&other.0).expect("a sound file");
    let mut layers = bundle.meta.network.layers.iter();
    assert!(layers.all(|layer| layer.ffn.body.predictor_before_layer));
    assert_eq!(density, number(&before, "density"), "the same neurons");
    assert!(number(&before, "recall") > 0.85, "{before:#}");
    // They know less, so they name more to find as many.
    let named = number(&before, "predicted_density");
    assert!(named < 0.6 && named > predicted, "{before:#}");
    let cost = number(&before, "predicted_perplexity") / number(&before, "exact_perplexity");
    assert!(cost > 0.95 && cost < 1.2, "{before:#}");
}

#[test]
fn swiglu_models_are_told_to_calibrate() {
    let text = TemporaryFile::new("text.txt");
    std::fs::write(&text.0, "one two three ".repeat(200)).expect("a writable folder");
    let output = support::program()
        .args(["fit-predictor", "--ctx", "32", "--test-pieces", "1"])
        .arg(support::tiny("llama_k"))
        .arg("-f")
        .arg(&text.0)
        .output()
        .expect("the program starts");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("calibrate"),
        "{error}"
    );
}

#[test]
fn thresholds_leave_the_part_that_is_asked_for() {
    // A copy, which no earlier run of this test has calibrated: what is packed stays while the test program is the
    // same.
    let model = TemporaryFile::new("thresholds.gguf");
    std::fs::copy(support::tiny("llama_k"), &model.0).expect("a writable folder");
    let text = TemporaryFile::new("calibration.txt");
    std::fs::write(&text.0, "one two three, four five six. ".repeat(100)).expect("writable");
    let uncalibrated = support::engine(Some(&model.0))
        .sparsity(Sparsity::Threshold)
        .build()
        .expect_err("nothing was measured yet");
    assert!(
        uncalibrated.to_string().contains("calibrate"),
        "{uncalibrated}"
    );
    run(support::program()
        .args(["calibrate", "--ctx", "64", "--tokens", "512", "--json"])
        .arg(&model.0)
        .arg("-f")
        .arg(&text.0));
    let live = |density: f64| {
        let builder = support::engine(Some(&model.0)).sparsity(Sparsity::Threshold);
        let engine: Engine = build(builder.density(density).max_batch(1));
        let mut request = Request::text("").max_tokens(24);
        request.prompt = Prompt::Tokens((5..30).collect());
        request.ignore_eog = true;
        let run = generate(&engine, request);
        let tokens = (run.prefill.tokens + run.decode.tokens) * engine.network().n_layers();
        (run.cache.hits + run.cache.misses) as f64 / (tokens * engine.network().ffn(0).d_ff) as f64
    };
    let measured = [1.0, 0.6, 0.3].map(live);
    assert!(measured[0] > 0.99, "{measured:?}");
    assert!((measured[1] - 0.6).abs() < 0.15, "{measured:?}");
    assert!((measured[2] - 0.3).abs() < 0.15, "{measured:?}");
}

#[test]
fn a_perplexity_decides_how_many_neurons_are_computed() {
    let model: PathBuf = support::tiny("llama_k");
    let copy = TemporaryFile::new("rise.gguf");
    std::fs::copy(&model, &copy.0).expect("a writable folder");
    let text = TemporaryFile::new("rise.txt");
    std::fs::write(&text.0, "one two three, four five six. ".repeat(100)).expect("writable");
    let fitted = |rise: &str| {
        let report = run(support::program()
            .args(["calibrate", "--ctx", "64", "--tokens", "512", "--json"])
            .args(["--perplexity-rise", rise, "--test-pieces", "2"])
            .arg(&copy.0)
            .arg("-f")
            .arg(&text.0));
        let report: Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(
            report["tokens"], 384,
            "two pieces of eight are for the test"
        );
        report["fitted"].clone()
    };
    let [tight, loose] = ["0.1%", "400%"].map(fitted);
    let (few, many) = (number(&loose, "density"), number(&tight, "density"));
    assert!(few < many, "{tight} {loose}");
    for (fitted, rise) in [(&tight, 0.001), (&loose, 4.0)] {
        let limit = number(fitted, "dense_perplexity") * (1.0 + rise);
        assert!(number(fitted, "perplexity") <= limit, "{fitted}");
    }
    // What was found last is what is used where nothing else is asked for.
    let hash = |density: Option<f64>| {
        let mut builder = support::engine(Some(&copy.0)).sparsity(Sparsity::Threshold);
        if let Some(density) = density {
            builder = builder.density(density);
        }
        let mut request = Request::text("").max_tokens(8);
        request.prompt = Prompt::Tokens((5..30).collect());
        request.ignore_eog = true;
        generate(&build(builder), request).logits_hash
    };
    assert_eq!(hash(None), hash(Some(few)));
    assert_ne!(hash(None), hash(Some(1.0)));
}

#[test]
fn the_hot_set_makes_the_next_run_warm() {
    let model = packed_demo("hot");
    let whole = build(support::engine(Some(&model.0))).weight_bytes();
    let run = |kept: bool| {
        let builder = support::engine(Some(&model.0)).hot_set(kept);
        let (engine, total) = support::build_and_watch(
            builder
                .weight_memory(whole * 7 / 10)
                .sparsity(Sparsity::Exact),
        );
        assert!(engine.plan().clusters.gate_pinned > 0);
        let request = Request::text("Once upon a time").max_tokens(32);
        (generate(&engine, request), total)
    };
    let (cold, resident) = run(true);
    let bundle = Bundle::open(&model.0).expect("a sound file");
    let hot = load_hot_set(&bundle);
    assert!(!hot.is_empty());
    let (warm, with_hot) = run(true);
    assert!(with_hot > resident, "the hot set is read as well");
    assert_eq!(cold.logits_hash, warm.logits_hash);
    assert!(
        warm.cache.misses * 10 < cold.cache.misses * 9,
        "{:?} and {:?}",
        cold.cache,
        warm.cache
    );
    let (asked_not_to, again) = run(false);
    assert_eq!(again, resident);
    assert!(asked_not_to.cache.misses > warm.cache.misses);
    // A damaged hot set is none.
    let path = hot_set_path(&model.0);
    let mut bytes = std::fs::read(&path).expect("it was written");
    bytes[20] ^= 1;
    std::fs::write(&path, bytes).expect("writable");
    assert!(load_hot_set(&bundle).is_empty());
    std::fs::remove_file(&path).expect("removable");
}

/// The model with its hot neurons first says what it said before, and its own profile says that they come first.
fn sorted_by_the_profile(model: &Path) {
    let mut profile = model.to_path_buf().into_os_string();
    profile.push(".profile");
    let sorted = TemporaryFile::new("sorted.fbay");
    run(support::program()
        .args(["pack", "--quiet", "--profile"])
        .arg(&profile)
        .arg(support::root().join("models/demo/hf"))
        .arg("-o")
        .arg(&sorted.0));
    let said = |model: &Path| {
        let engine = build(support::engine(Some(model)).sparsity(Sparsity::Predicted));
        generate(&engine, Request::text("Once upon a time").max_tokens(24)).tokens
    };
    assert_eq!(said(&sorted.0), said(model));
    let network = Bundle::open(model).expect("a sound file").meta.network;
    let counts = Profile::read(Path::new(&profile), &network)
        .expect("kept")
        .counts;
    let text = TemporaryFile::new("sorted.txt");
    std::fs::write(
        &text.0,
        "Once upon a time there was a little dog. ".repeat(60),
    )
    .expect("writable");
    let again = run(support::program()
        .args([
            "profile",
            "--json",
            "--sparsity",
            "predicted",
            "--ctx",
            "128",
            "--tokens",
            "256",
        ])
        .arg(&sorted.0)
        .arg("-f")
        .arg(&text.0));
    let again: Profile = serde_json::from_str(&again).expect("JSON");
    for (layer, (before, after)) in counts.iter().zip(&again.counts).enumerate() {
        let share = |counts: &[u32]| {
            let half: u32 = counts[..counts.len() / 2].iter().sum();
            f64::from(half) / f64::from(counts.iter().sum::<u32>().max(1))
        };
        let (was, is) = (share(before), share(after));
        assert!(
            is > was + 0.1,
            "layer {layer}: {was} and {is} in the first half"
        );
    }
    let mut path = sorted.0.clone().into_os_string();
    path.push(".profile");
    // Its numbers are not those of the source's neurons.
    let demo = support::root().join("models/demo/hf");
    refuses(Path::new(&path), &demo, "sorted already");
    std::fs::remove_file(&path).expect("it was kept");
    refuses(
        Path::new(&profile),
        &support::tiny("llama_k"),
        "does not fit",
    );
}

/// A model is not sorted by such a profile.
fn refuses(profile: &Path, model: &Path, why: &str) {
    let out = TemporaryFile::new("refused.fbay");
    let mut pack = support::program();
    pack.args(["pack", "--quiet", "--profile"]).arg(profile);
    let said = pack.arg(model).arg("-o").arg(&out.0).output();
    let said = said.expect("the program starts");
    let error = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && error.contains(why), "{error}");
}

/// The model with its hot neurons in panels says what it said before, and its profile is of the others.
fn hot_by_the_profile(model: &Path, text: &Path) {
    let mut profile = model.to_path_buf().into_os_string();
    profile.push(".profile");
    let packed = TemporaryFile::new("hot.fbay");
    let pack = |hot: &str| {
        let mut pack = support::program();
        pack.args(["pack", "--hot", hot, "--profile"]).arg(&profile);
        pack.arg(support::root().join("models/demo/hf"));
        let said = pack.arg("-o").arg(&packed.0).output();
        let said = said.expect("the program starts");
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success(), "{text}");
        text
    };
    let said = pack("auto");
    assert!(
        said.contains("no device") || said.contains("hot neurons"),
        "{said}"
    );
    let said = pack("0.2");
    let bundle = Bundle::open(&packed.0).expect("a sound file");
    let network = &bundle.meta.network;
    let hot: usize = network.layers.iter().map(|l| l.ffn.body.hot).sum();
    let told = format!("{hot} of {} neurons are hot", network.n_neurons());
    assert!(hot > 0 && said.contains(&told), "{said}");
    let said = |model: &Path| {
        let engine = build(support::engine(Some(model)).sparsity(Sparsity::Exact));
        generate(&engine, Request::text("Once upon a time").max_tokens(24)).tokens
    };
    assert_eq!(said(&packed.0), said(model));
    let of_hot = run(support::program()
        .args(["profile", "--json", "--sparsity", "predicted"])
        .args(["--ctx", "128", "--tokens", "1536"])
        .arg(&packed.0)
        .arg("-f")
        .arg(text));
    let of_hot: Profile = serde_json::from_str(&of_hot).expect("JSON");
    for (counts, layer) in of_hot.counts.iter().zip(&network.layers) {
        let (hot, cold) = counts.split_at(layer.ffn.body.hot);
        assert!(hot.iter().all(|&count| count == 0) && cold.iter().any(|&count| count > 0));
    }
    foretells(&packed.0, &of_hot);
    let mut path = packed.0.clone().into_os_string();
    path.push(".profile");
    std::fs::remove_file(&path).expect("it was kept");
}

/// A profile tells how many neurons real caches miss: with other stories than its own, at other sizes.
fn foretells(model: &Path, profile: &Profile) {
    let whole = build(support::engine(Some(model))).weight_bytes();
    let mut compared = 0;
    for percent in [60, 70, 80, 90] {
        let builder = support::engine(Some(model)).weight_memory(whole * percent / 100);
        let engine = build(
            builder
                .context(512)
                .sparsity(Sparsity::Predicted)
                .max_batch(1),
        );
        let slots = engine.plan().neuron_cache.slots;
        if slots == 0 {
            continue;
        }
        let network = engine.network();
        let cold = (0..network.n_layers()).map(|l| network.neurons(Content::Neurons(l)).0.len());
        let cold: Vec<f64> = cold.map(|n| n as f64).collect();
        let cached = 2.0 * slots as f64 / cold.iter().sum::<f64>();
        let mut request = Request::text("One day, a").max_tokens(400);
        request.ignore_eog = true;
        request.sampler.temperature = 1.0;
        request.sampler.seed = 77;
        let run = generate(&engine, request);
        // Hot neurons are hits of no cache.
        let measured = match network.has_hot_neurons() {
            true => {
                let wanted = cold.iter().zip(&profile.wanted).map(|(n, part)| n * part);
                let tokens = (run.prefill.tokens + run.decode.tokens) as f64;
                run.cache.misses as f64 / (wanted.sum::<f64>() * tokens)
            }
            false => 1.0 - run.cache.hit_rate,
        };
        let foretold = profile.miss_rate(cached);
        compared += 1;
        eprintln!("{percent} %: {measured} and {foretold}");
        // What fills the empty cache is in the measured rate alone.
        assert!(
            (measured - foretold).abs() < 0.06,
            "{percent} %: {measured} and {foretold}"
        );
    }
    assert!(compared >= 2, "no budget with a neuron cache");
}

#[test]
fn a_profile_predicts_the_misses() {
    let model = packed_demo("profile");
    let text = stories();
    let profile = run(support::program()
        .args(["profile", "--json", "--sparsity", "predicted"])
        .args(["--ctx", "128", "--tokens", "1536"])
        .arg(&model.0)
        .arg("-f")
        .arg(&text.0));
    let profile: Profile = serde_json::from_str(&profile).expect("JSON");
    assert_eq!(
        (profile.tokens, profile.sparsity),
        (1536, Sparsity::Predicted)
    );
    let bundle = Bundle::open(&model.0).expect("a sound file");
    assert_eq!(Profile::load(&bundle), Some(profile.clone()));
    let rates: Vec<f64> = profile.misses.iter().map(|p| p.miss_rate).collect();
    assert!(
        rates.is_sorted_by(|a, b| a >= b) && rates.last() < Some(&1e-4),
        "{rates:?}"
    );
    foretells(&model.0, &profile);
    sorted_by_the_profile(&model.0);
    hot_by_the_profile(&model.0, &text.0);
    // Other neurons, or damage: no profile.
    let mut path = model.0.clone().into_os_string();
    path.push(".profile");
    std::fs::write(&path, b"{").expect("writable");
    assert_eq!(Profile::load(&bundle), None);
    std::fs::remove_file(&path).expect("removable");
}

/// The usual pieces of 512 tokens are too long for these models, which were trained for 256.
#[test]
fn pieces_are_no_longer_than_a_model_was_trained_for() {
    let text = TemporaryFile::new("words.txt");
    std::fs::write(&text.0, "the quick brown fox ".repeat(600)).expect("a writable folder");
    let learned = |command: &str, model: &str, more: &[&str]| {
        let mut program = support::program();
        program.arg(command).arg(support::tiny(model));
        program.arg("-f").arg(&text.0).arg("--json").args(more);
        let report: Value = serde_json::from_str(&run(&mut program)).expect("JSON");
        number(&report, "tokens")
    };
    let most = ["--tokens", "2100"];
    assert_eq!(learned("calibrate", "llama_gqa_tied_f32", &most), 2048.0);
    assert_eq!(learned("profile", "llama_relu_f16", &most), 2048.0);
    let quick = ["--tokens", "2100", "--rank", "8", "--steps", "2"];
    assert_eq!(learned("fit-predictor", "llama_relu_f16", &quick), 1024.0);
}
