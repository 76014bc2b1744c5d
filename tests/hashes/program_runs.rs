//! Runs of the program. Its flags stay when everything behind them changes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use serde_json::Value;

use crate::cases::{Group, NEW_TOKENS, Setting};
use crate::models::PreparedModel;
use crate::program::{Answer, answer};
use crate::support::{self, TemporaryFile, json, number};
use crate::table::Comparison;

/// Environment variable that names another program to test.
const PROGRAM: &str = "FOREBAY_PROGRAM";
/// The process itself takes this much more or less from run to run.
const SLACK: u64 = 512 << 10;
/// A budget that is always refused.
const TOO_LITTLE: &str = "1MiB";
/// A budget that holds any of the models.
const PLENTY: &str = "80%";
/// Tokens of the text for `calibrate`.
const CALIBRATION_TOKENS: usize = 512;

/// Whether the program is the one that was built with this test.
pub fn is_this_build() -> bool {
    other_program().is_none()
}

fn other_program() -> Option<PathBuf> {
    let name = std::env::var_os(PROGRAM).filter(|name| !name.is_empty());
    name.map(PathBuf::from)
}

/// The folder for packed models. Another program packs them itself, in a folder of its own.
fn cache() -> PathBuf {
    let Some(program) = other_program() else {
        return support::scratch().to_path_buf();
    };
    let built = std::fs::metadata(&program).and_then(|m| m.modified());
    let built = built.unwrap_or_else(|e| panic!("{PROGRAM}={}: {e}", program.display()));
    let age = built.duration_since(SystemTime::UNIX_EPOCH);
    let name = format!("program-{}", age.unwrap_or_default().as_nanos());
    let folder = support::scratch().join(name);
    std::fs::create_dir_all(&folder).expect("a writable build folder");
    folder
}

fn forebay(arguments: &[&str]) -> Command {
    let mut command = match other_program() {
        Some(program) => Command::new(program),
        None => support::program(),
    };
    command.env("FOREBAY_CACHE", cache()).args(arguments);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs to the end without a time limit: packing takes long.
fn finish(command: &mut Command) {
    let output = command.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}

/// Makes the synthetic model of this name with these options, unless an earlier test did.
pub fn synthesize(name: &str, options: &[&str]) -> PathBuf {
    let path = cache().join(format!("{name}.fbay"));
    if !path.exists() {
        // More layers than the shape has, so that the weights exceed what a process varies by.
        let arguments = ["synth", "--quiet", "--measure", "0", "--layers", "8"];
        finish(
            forebay(&arguments)
                .args(options)
                .args(["--shape", "tiny-sparse", "-o"])
                .arg(&path),
        );
    }
    path
}

/// Measures the model's gates, which `--sparsity threshold` needs. The result depends on the text alone.
pub fn calibrate(prepared: &PreparedModel) {
    let text = text_file(prepared, "calibration", CALIBRATION_TOKENS);
    let tokens = CALIBRATION_TOKENS.to_string();
    let mut command = forebay(&["calibrate", "--json", "--ctx", "64", "--tokens", &tokens]);
    finish(
        command
            .args(prepared.path.as_deref())
            .arg("-f")
            .arg(&text.0),
    );
}

fn text_file(prepared: &PreparedModel, purpose: &str, tokens: usize) -> TemporaryFile {
    let model = prepared.model;
    let file = TemporaryFile::new(&format!("{}-{purpose}-{tokens}.txt", model.name));
    std::fs::write(&file.0, model.style.text(tokens)).expect("a writable build folder");
    file
}

/// Runs a group with all its settings.
pub fn run(prepared: &PreparedModel, group: &Group, comparison: &mut Comparison) {
    let prompts = group.prompts.iter();
    let prompts: Vec<(usize, TemporaryFile)> = prompts
        .map(|&n| (n, text_file(prepared, "prompt", n)))
        .collect();
    for threads in [1, 2] {
        let settings = group.program_settings.iter();
        let settings: Vec<&Setting> = settings.filter(|s| s.threads == threads).collect();
        if settings.is_empty() {
            continue;
        }
        let runner = Runner {
            prepared,
            group,
            threads,
            prompts: &prompts,
        };
        let budgets = runner.budgets(comparison);
        for setting in settings {
            let memory = budgets.at(setting.percent).to_string();
            let how = format!("{} %, --memory {memory}", setting.percent);
            let mut read = Vec::new();
            for (prompt, file) in &prompts {
                let statistics = runner.statistics(&file.0, &memory);
                read.push(runner.compare(*prompt, &statistics, &how, comparison));
            }
            // All of a tiny model fits into what a process varies by.
            assert!(
                group.model.is_tiny() || setting.percent > 50 || read[0] > budgets.read,
                "{group}, {how}: reads no more than with everything in memory: {read:?}"
            );
        }
    }
}

/// Checks that all tokens were run. Returns the bytes that were read.
fn checked_bytes(group: &Group, prompt: usize, statistics: &Value) -> f64 {
    let tokens = number(statistics, "/prefill/tokens");
    assert_eq!(tokens, prompt as f64, "{group}: tokens of the prompt");
    let generated = statistics["tokens"].as_array().map(Vec::len);
    assert_eq!(generated, Some(NEW_TOKENS), "{group}: generated tokens");
    number(statistics, "/io/bytes")
}

/// Runs a group with a number of threads.
struct Runner<'a> {
    prepared: &'a PreparedModel,
    group: &'a Group,
    threads: usize,
    /// Prompts by their number of tokens, in files.
    prompts: &'a [(usize, TemporaryFile)],
}

/// Budgets of the process in bytes.
struct Budgets {
    /// The least that is accepted.
    least: u64,
    /// What holds all weights.
    whole: u64,
    /// What the first prompt's run reads then.
    read: f64,
}

impl Budgets {
    /// A tiny model's `whole` can be below `least`, which allows for a process that takes more the next time.
    fn at(&self, percent: u64) -> u64 {
        self.least + self.whole.saturating_sub(self.least) * percent / 100 + SLACK
    }
}

impl Runner<'_> {
    fn command(&self, text: &Path, memory: &str, stats: &Path) -> Command {
        let (model, group) = (self.prepared.model, self.group);
        let mut command = forebay(&["run", "--quiet", "--greedy", "--ignore-eog", "--cold"]);
        command.args(self.prepared.path.as_deref());
        let values: [(&str, OsString); 8] = [
            ("-n", NEW_TOKENS.to_string().into()),
            ("-f", text.into()),
            ("--ctx", model.context.to_string().into()),
            ("--memory", memory.into()),
            ("--threads", self.threads.to_string().into()),
            ("--sparsity", group.sparsity.into()),
            ("--kv", group.kv.into()),
            ("--stats", stats.into()),
        ];
        for (flag, value) in values {
            command.arg(flag).arg(value);
        }
        if group.sparsity == "threshold" {
            command.args(["--density", &model.density.to_string()]);
        }
        command
    }

    /// Asks the program: its refusal of a tiny budget names the least, and the statistics of a run with plenty say how
    /// much it takes. Such a run has a hash as all others have.
    fn budgets(&self, comparison: &mut Comparison) -> Budgets {
        let text = &self.prompts[0].1.0;
        let unwritten = self.file("refused");
        // The first run of a model packs it, which takes long.
        let refused = self.command(text, TOO_LITTLE, &unwritten.0).output();
        let refused = refused.expect("the program starts");
        let message = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{TOO_LITTLE} is enough");
        let least = message
            .rsplit_once("give --memory ")
            .and_then(|(_, n)| n.split_once("MiB"));
        let least: Option<u64> = least.and_then(|(n, _)| n.parse().ok());
        let (mut whole, mut read) = self.run_first(PLENTY, comparison);
        if self.buffers_count() {
            let enough = (whole + SLACK).to_string();
            (whole, read) = self.run_first(&enough, comparison);
        }
        Budgets {
            least: least.expect(&message) << 20,
            whole,
            read,
        }
    }

    /// Whether it makes a difference that batches and their buffers are larger where there is plenty of memory than
    /// where there is just enough: beside the weights of a real model they are little, and a tiny model is run with all
    /// weights in memory only.
    fn buffers_count(&self) -> bool {
        let percents = self.group.program_settings.iter().map(|s| s.percent);
        self.group.model.is_small() && percents.min() < Some(100)
    }

    /// Runs the first prompt with this much memory; the sum of what the budget's items take, and the bytes that were
    /// read.
    fn run_first(&self, memory: &str, comparison: &mut Comparison) -> (u64, f64) {
        let (prompt, file) = &self.prompts[0];
        let statistics = self.statistics(&file.0, memory);
        let how = format!("--memory {memory}");
        let read = self.compare(*prompt, &statistics, &how, comparison);
        (itemized(&statistics), read)
    }

    /// Compares the hash of a run of the program, which was of all tokens. Returns the bytes that were read.
    fn compare(
        &self,
        prompt: usize,
        statistics: &Value,
        how: &str,
        comparison: &mut Comparison,
    ) -> f64 {
        let hash = statistics["logits_hash"].as_str().expect("a hash");
        let how = format!("program, {} threads, {how}", self.threads);
        comparison.add(&self.group.key(prompt), &how, hash);
        checked_bytes(self.group, prompt, statistics)
    }

    /// The statistics of one run.
    fn statistics(&self, text: &Path, memory: &str) -> Value {
        let stats = self.file("run");
        let Answer { status, stderr, .. } = answer(self.command(text, memory, &stats.0));
        let group = self.group;
        assert!(status.success(), "{group}, --memory {memory}: {stderr}");
        json(&stats.0)
    }

    fn file(&self, purpose: &str) -> TemporaryFile {
        TemporaryFile::new(&format!("{}-{purpose}.json", self.prepared.model.name))
    }
}

/// The sum of all items of the budget, bytes.
fn itemized(statistics: &Value) -> u64 {
    let items = statistics["memory"]["items"].as_object();
    let bytes = items.expect("items of the budget").values();
    bytes.filter_map(Value::as_u64).sum()
}
