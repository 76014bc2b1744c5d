//! Budgets from generous down to the minimum, each in a control group of the same size.

use std::fmt::Write;

use crate::group::Group;
use crate::measured::{MIB, Run, least_budget, run};
use crate::subject::{Subject, length};
use crate::support::number;

/// Budgets per model.
const STEPS: u64 = 4;

/// Budgets from one that holds all weights to the minimum, bytes.
fn ladder(subject: &Subject, unlimited: &Run) -> Vec<u64> {
    let items = unlimited.statistics["memory"]["items"].as_object();
    let items = items.expect("an itemised budget").values();
    let most: u64 = items.filter_map(serde_json::Value::as_u64).sum();
    let least = least_budget(subject.model.as_deref(), subject.tokens * length());
    assert!(
        least < most,
        "{}: {least} is as much as {most}",
        subject.name
    );
    let budget = |i| most - (most - least) * i / (STEPS - 1);
    (0..STEPS).map(budget).collect()
}

fn check(subject: &Subject) {
    let (model, tokens) = (subject.model.as_deref(), subject.tokens * length());
    // The first run packs the model, which is not part of a budget.
    let unlimited = run(model, tokens, None, None);
    let mut table = format!(
        "{}: MiB, and tokens per second\n{:>8} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        subject.name, "budget", "share", "peak RSS", "group", "at limit", "read", "tok/s"
    );
    let budgets = ladder(subject, &unlimited);
    let most = budgets[0];
    for budget in budgets {
        let Some(group) = Group::new(budget) else {
            return;
        };
        let run = run(model, tokens, Some(budget), Some(&group));
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        writeln!(
            table,
            "{:>8.1} {:>5.0}% {:>9.1} {:>9.1} {:>9} {:>9.1} {:>9.1}",
            mib(budget),
            budget as f64 / most as f64 * 100.0,
            mib(run.peak()),
            mib(group.peak()),
            group.times_at_limit(),
            mib(number(&run.statistics, "/io/bytes") as u64),
            number(&run.statistics, "/decode/tokens_per_second"),
        )
        .expect("a string");
        let name = subject.name;
        assert!(run.peak() <= budget, "{name}: {} over {budget}", run.peak());
        assert!(run.peak_seen <= budget, "{name}: {} seen", run.peak_seen);
        assert!(group.peak() <= budget, "{name}: {}", group.peak());
        assert_eq!(group.kills(), 0, "{name} under {budget}");
        assert_eq!(run.result(), unlimited.result(), "{name} under {budget}");
    }
    eprint!("{table}");
}

#[test]
fn the_demo_runs_under_every_budget() {
    check(&Subject::demo());
}

#[test]
fn a_model_of_cached_neurons_runs_under_every_budget() {
    check(&Subject::sparse());
}

#[test]
fn experts_run_under_every_budget() {
    check(&Subject::experts());
}

#[test]
fn streamed_models_run_under_every_budget() {
    for subject in Subject::dense() {
        check(&subject);
    }
}
