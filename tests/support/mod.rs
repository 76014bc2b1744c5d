//! What the tests of the engine share: where models are, how engines are started on them, and how
//! results are compared.
#![allow(
    dead_code,
    reason = "each test binary uses its own part of this module"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use forebay::packed::Preparation;
use forebay::{BlockType, Engine, EngineBuilder, PackOptions, Request, Statistics, StreamItem};
use forebay_models::bundle::pack;
use forebay_models::sorted::{SortedNeurons, hot_first};
use forebay_models::source::TensorSource;
use forebay_models::synth::{Shape, SynthOptions, SynthSource};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Environment variable that names the folder of real models.
pub const MODELS: &str = "FOREBAY_MODELS";

/// Positions that are enough for every test prompt and small enough for every tiny model.
pub const CONTEXT: usize = 256;

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(100);

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The source of `tests/golden/tiny/<name>`: a GGUF file where there is one, otherwise a folder.
pub fn tiny(name: &str) -> PathBuf {
    let folder = tiny_folder(name);
    let gguf = folder.join("model.gguf");
    if gguf.exists() { gguf } else { folder }
}

/// The folder of a tiny model, with its golden.
pub fn tiny_folder(name: &str) -> PathBuf {
    root().join("tests/golden/tiny").join(name)
}

/// A made-up dense model in Q8_0, most of which are FFNs of several clusters in panels.
pub fn plain_model() -> PathBuf {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    let make = || synthesized("plain.gguf", &["--quant", "q8_0"]);
    MODEL.get_or_init(make).clone()
}

/// A made-up sparse model with predictors, packed.
pub fn sparse_model() -> PathBuf {
    static MODEL: OnceLock<PathBuf> = OnceLock::new();
    MODEL
        .get_or_init(|| synthesized("sparse.fbay", &[]))
        .clone()
}

/// A model of the smallest sparse shape.
fn synthesized(name: &str, options: &[&str]) -> PathBuf {
    let path = scratch().join(name);
    let mut synth = program();
    synth.args([
        "synth",
        "--shape",
        "tiny-sparse",
        "--measure",
        "0",
        "--quiet",
    ]);
    let done = synth.args(options).arg("-o").arg(&path).output();
    let done = done.expect("the program starts");
    assert!(done.status.success(), "{done:?}");
    path
}

/// A real model, if the environment says where such models are. Says so where it is skipped.
pub fn real_model(file: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os(MODELS) else {
        eprintln!("SKIPPED: {file}: set {MODELS} to the folder that holds it");
        return None;
    };
    let path = PathBuf::from(folder).join(file);
    if !path.exists() {
        eprintln!("SKIPPED: {} does not exist", path.display());
        return None;
    }
    Some(path)
}

/// Folder for files that tests make. It stays while the test program is the same, so that models are
/// packed once; a program that was built again packs again, since its packer may have changed.
pub fn scratch() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| fresh_scratch().unwrap_or_else(|e| panic!("scratch folder: {e}")))
}

fn fresh_scratch() -> std::io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let built = std::fs::metadata(&program)?.modified()?;
    let built = built
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    let name = program
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    // Cargo names test programs `<test>-<hash>`.
    let test = name.rsplit_once('-').map_or(&*name, |(test, _)| test);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(test)
        .join(built.to_string());
    for other in std::fs::read_dir(folder.parent().unwrap_or(&folder))
        .into_iter()
        .flatten()
        .flatten()
    {
        if other.path() != folder {
            // Another process of this test may be removing it as well.
            let _ = std::fs::remove_dir_all(other.path());
        }
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Does `work` for each of `items`, several at a time, since a run with little memory mostly waits for the disk.
/// Results come in the order of the items.
pub fn several_at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    const AT_ONCE: usize = 4;
    let next = AtomicUsize::new(0);
    let mut done = std::thread::scope(|scope| {
        let worker = || {
            let mut done = Vec::new();
            loop {
                let i = next.fetch_add(1, Relaxed);
                let Some(item) = items.get(i) else {
                    return done;
                };
                done.push((i, work(item)));
            }
        };
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        let done = workers.into_iter().flat_map(|w| match w.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        done.collect::<Vec<_>>()
    });
    done.sort_by_key(|&(i, _)| i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A file of this test process, removed when dropped.
#[derive(Debug)]
pub struct TemporaryFile(pub PathBuf);

impl TemporaryFile {
    /// Names a file as no other is named; nothing is created.
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Relaxed));
        Self(scratch().join(format!("{process}-{number}-{name}")))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // A test that failed before the file was made has none.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A synthetic model by neuron with predictors, which may see the stream before attention, in which so many neurons of
/// each layer are hot; packed.
pub fn hot_model(name: &str, before_attention: bool, hot: usize) -> TemporaryFile {
    let shape = Shape::named("tiny-sparse").expect("a shape");
    let options = SynthOptions {
        format: BlockType::Q8_0,
        before_attention,
        ..SynthOptions::new(shape)
    };
    let source = SynthSource::new(&options).expect("a model");
    let widths = source.network().layers.iter().map(|l| l.ffn.body.d_ff);
    // As if every third neuron were wanted most.
    let counts = |d_ff: usize| (0..d_ff as u32).map(|i| i * 3 % d_ff as u32).collect();
    let counts: Vec<Vec<u32>> = widths.map(counts).collect();
    let hot = vec![hot; counts.len()];
    let sorted = SortedNeurons::new(Box::new(source), hot_first(&counts, &hot), &hot);
    let file = TemporaryFile::new(name);
    let packed = pack(
        &sorted.expect("an order"),
        &file.0,
        &PackOptions::default(),
        &mut |_| {},
    );
    packed.expect("packed");
    file
}

/// The number in "the minimum on 2 cores is 98304 bytes".
pub fn least_of(refusal: &str) -> u64 {
    let (_, number) = refusal.rsplit_once(" is ").expect(refusal);
    let number = number.strip_suffix(" bytes").expect(refusal);
    number.parse().expect(refusal)
}

/// An engine with this weight memory, or with the minimum if that is more, as the engine's own message names it.
pub fn build_within(builder: impl Fn(u64) -> EngineBuilder, wanted: u64) -> Engine {
    builder(wanted).build().unwrap_or_else(|refusal| {
        let refusal = refusal.to_string();
        let least = least_of(&refusal);
        assert!(wanted < least, "{refusal}");
        build(builder(least))
    })
}

/// Reads a JSON file.
pub fn json<T: DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// An engine on `model` (`None`: the demo) with two threads and the tests' own cache folder.
pub fn engine(model: Option<&Path>) -> EngineBuilder {
    let builder = Engine::builder()
        .cache_folder(scratch())
        .context(CONTEXT)
        .hot_set(false)
        .threads(2);
    match model {
        Some(path) => builder.model(path),
        None => builder,
    }
}

/// Builds, or fails the test with the engine's own message.
pub fn build(builder: EngineBuilder) -> Engine {
    builder.build().unwrap_or_else(|e| panic!("{e}"))
}

/// The same, and the bytes that were read for that: what is reported grows, and ends at its total.
pub fn build_and_watch(builder: EngineBuilder) -> (Engine, u64) {
    let (tell, loaded) = std::sync::mpsc::channel();
    let engine = build(builder.on_preparation(move |at| {
        if let Preparation::Loading { done, total } = at {
            let _ = tell.send((done, total));
        }
    }));
    let loaded: Vec<(u64, u64)> = loaded.try_iter().collect();
    assert!(loaded.is_sorted(), "{loaded:?}");
    let &(done, total) = loaded.last().expect("weights are loaded");
    assert_eq!(done, total);
    (engine, total)
}

/// One generation to its end.
pub fn generate(engine: &Engine, request: Request) -> Statistics {
    let mut stream = engine
        .session()
        .generate(request)
        .unwrap_or_else(|e| panic!("{e}"));
    let to_end = async {
        while let Some(item) = stream.next().await {
            if let StreamItem::Done(statistics) = item.unwrap_or_else(|e| panic!("{e}")) {
                return *statistics;
            }
        }
        panic!("the stream ended without statistics");
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let end = runtime
        .expect("a runtime")
        .block_on(async { tokio::time::timeout(PATIENCE, to_end).await });
    end.unwrap_or_else(|_| {
        // Threads that hang cannot be joined: a panic would hang as well.
        eprintln!("the engine hangs under this plan: {:#?}", engine.plan());
        std::process::exit(101)
    })
}

/// Changes an engine's budget and waits until it is in force.
pub fn change_budget(engine: &Engine, bytes: u64) {
    engine.set_budget(bytes).unwrap_or_else(|e| panic!("{e}"));
    let start = Instant::now();
    while engine.budget().total_bytes() != bytes {
        assert!(start.elapsed() < PATIENCE, "{bytes} is never in force");
        std::thread::sleep(Duration::from_millis(1));
    }
    let budget = engine.budget();
    assert!(budget.claimed() <= bytes, "{budget}");
}

/// All rows of logits from position `first` on, `[tokens.len() - first][vocab_size]`.
pub fn logits(engine: &Engine, tokens: &[u32], first: usize) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let done = engine.logits(tokens, first, |position, row| {
        assert_eq!(position, first + rows.len(), "rows come in order");
        rows.push(row.to_vec());
    });
    done.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(rows.len(), tokens.len() - first);
    rows
}

/// Index of the largest value, the lowest among equals.
pub fn argmax(row: &[f32]) -> u32 {
    let best = (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best });
    best.expect("a vocabulary") as u32
}

/// The largest difference of two rows.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "rows of one vocabulary");
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

/// Pearson's correlation of two rows.
pub fn correlation(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "rows of one vocabulary");
    let mean = |x: &[f32]| x.iter().map(|&v| f64::from(v)).sum::<f64>() / x.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (&a, &b) in a.iter().zip(b) {
        let (a, b) = (f64::from(a) - mean_a, f64::from(b) - mean_b);
        ab += a * b;
        aa += a * a;
        bb += b * b;
    }
    ab / (aa * bb).sqrt()
}

/// The program under test, with the tests' own cache folder.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.env("FOREBAY_CACHE", scratch());
    command
}

/// A number somewhere inside a JSON document, by pointer (`/memory/peak_rss_bytes`).
pub fn number(document: &Value, pointer: &str) -> f64 {
    let value = document.pointer(pointer).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("{pointer} is not a number in {document:#}"))
}
