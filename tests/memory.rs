//! The memory budget as the kernel sees it: the resident set of the process stays below `--memory`, and
//! a control group hardly larger than that does not kill it, with models larger than the budget.

mod support;

#[path = "support/group.rs"]
mod group;

#[path = "support/measured.rs"]
mod measured;

use std::path::Path;

use group::Group;
use measured::{MIB, Run, least_budget, run};
use support::number;

const QWEN: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";

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

/// The kernel would kill the program without a word.
#[test]
fn a_budget_above_the_groups_limit_is_warned_of() {
    let Some(group) = Group::new(256 * MIB) else {
        return;
    };
    let stats = support::TemporaryFile::new("warned.json");
    let told = |memory: u64| {
        let command = measured::command(None, 4, Some(memory), &stats.0);
        let output = group.run(&command).output().expect("the program starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(told(128 * MIB), "");
    let warning = told(512 * MIB);
    for part in [
        "warning: --memory 512 MiB",
        "256 MiB",
        "control group",
        "give --memory",
    ] {
        assert!(warning.contains(part), "{warning}");
    }
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
