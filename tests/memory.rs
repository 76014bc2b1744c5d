//! The memory budget as the kernel sees it: the resident set of the process stays below `--memory`, and
//! a control group hardly larger than that does not kill it, with models larger than the budget.

mod support;

#[path = "support/group.rs"]
mod group;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use group::Group;
use serde_json::Value;
use support::{TemporaryFile, number, program};

const MIB: u64 = 1 << 20;
const QWEN: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";

/// A finished run of the program.
struct Run {
    statistics: Value,
    /// The highest resident set seen from outside, bytes.
    peak_seen: u64,
}

impl Run {
    fn peak(&self) -> u64 {
        number(&self.statistics, "/memory/peak_rss_bytes") as u64
    }

    fn result(&self) -> (&Value, &Value) {
        (&self.statistics["tokens"], &self.statistics["logits_hash"])
    }
}

/// `forebay run` on a model (`None`: the demo) for some tokens.
fn command(model: Option<&Path>, n: usize, memory: Option<u64>, stats: &Path) -> Command {
    let mut command = program();
    command
        .arg("run")
        .args(model)
        .args(["--greedy", "--quiet", "--ignore-eog", "-t", "2"]);
    command.args(["-p", "Once upon a time, there was", "-n", &n.to_string()]);
    command.arg("--stats").arg(stats);
    if let Some(bytes) = memory {
        command.args(["--memory", &bytes.to_string()]);
    }
    command
}

/// `VmHWM` of a running process: the kernel's own high-water mark.
fn high_water(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn run(model: Option<&Path>, n: usize, memory: Option<u64>, group: Option<&Group>) -> Run {
    let name = format!("{}-{memory:?}-{}.json", n, group.is_some());
    let stats = TemporaryFile::new(&name);
    let mut command = command(model, n, memory, &stats.0);
    if let Some(group) = group {
        command = group.run(&command);
    }
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("spawn");
    let mut peak_seen = 0;
    let status = loop {
        peak_seen = peak_seen.max(high_water(&child).unwrap_or(0));
        if let Some(status) = child.try_wait().expect("wait") {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut errors = String::new();
    let stderr = child.stderr.as_mut().expect("piped");
    std::io::Read::read_to_string(stderr, &mut errors).expect("UTF-8");
    assert!(status.success(), "{memory:?}: {status}: {errors}");
    Run {
        statistics: support::json(&stats.0),
        peak_seen,
    }
}

/// The budget that the program itself names as the least possible.
fn least_budget(model: Option<&Path>, n: usize) -> u64 {
    let stats = TemporaryFile::new("never-written.json");
    let output = command(model, n, Some(MIB), &stats.0)
        .output()
        .expect("run");
    assert!(!output.status.success() && output.stdout.is_empty());
    let message = String::from_utf8_lossy(&output.stderr);
    let (_, rest) = message.rsplit_once("give --memory ").expect(&message);
    let (mib, _) = rest.split_once("MiB").expect(&message);
    mib.parse::<u64>().expect(&message) * MIB
}

/// Runs under each budget and compares with `reference`; returns the peaks in MiB for the report.
fn check_budgets(model: Option<&Path>, n: usize, budgets: &[u64], reference: &Run) {
    for &budget in budgets {
        let run = run(model, n, Some(budget), None);
        let (peak, seen) = (run.peak(), run.peak_seen);
        eprintln!(
            "--memory {} MiB: peak {} MiB by its own account, {} MiB from outside",
            budget / MIB,
            peak / MIB,
            seen / MIB
        );
        assert_eq!(
            number(&run.statistics, "/memory/budget_bytes") as u64,
            budget
        );
        assert!(peak <= budget, "peak {peak} over the budget {budget}");
        assert!(seen <= budget, "seen {seen} over the budget {budget}");
        // What it reports is what the kernel says, up to what came after the last look.
        assert!(
            seen > MIB && seen <= peak + MIB,
            "seen {seen}, reported {peak}"
        );
        assert_eq!(
            run.result(),
            reference.result(),
            "the budget changed the result"
        );
    }
}

/// Runs under `budget` in a control group of `limit`, both below the model's size.
fn check_group(model: Option<&Path>, n: usize, budget: u64, limit: u64, reference: &Run) {
    let Some(group) = Group::new(limit) else {
        return;
    };
    let run = run(model, n, Some(budget), Some(&group));
    eprintln!(
        "--memory {} MiB in a group of {} MiB: peak {} MiB, at the limit {} times",
        budget / MIB,
        limit / MIB,
        run.peak() / MIB,
        group.times_at_limit()
    );
    assert!(run.peak() <= budget);
    assert!(run.peak_seen <= budget);
    assert_eq!(run.result(), reference.result());
    assert!(
        number(&run.statistics, "/io/bytes") > 0.0,
        "nothing was read: the limit did not matter"
    );
}

#[test]
fn demo_stays_within_its_budgets() {
    let unlimited = run(None, 48, None, None);
    let least = least_budget(None, 48);
    eprintln!("least budget of the demo: {} MiB", least / MIB);
    check_budgets(
        None,
        48,
        &[least, least + 2 * MIB, least + 4 * MIB, least + 64 * MIB],
        &unlimited,
    );
    check_group(None, 48, least + MIB, least + 16 * MIB, &unlimited);
}

#[test]
fn a_model_larger_than_its_budget_stays_within_it() {
    let Some(model) = support::real_model(QWEN) else {
        return;
    };
    let model = Some(&*model);
    let n = 6;
    let unlimited = run(model, n, None, None);
    let least = least_budget(model, n);
    eprintln!("least budget of {QWEN}: {} MiB", least / MIB);
    check_budgets(
        model,
        n,
        &[least, 200 * MIB, 300 * MIB, 450 * MIB],
        &unlimited,
    );
    check_group(model, n, 300 * MIB, 320 * MIB, &unlimited);
}
