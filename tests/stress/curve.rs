//! Real dense models whose budget is taken away step by step while they generate, and given back.

use std::path::PathBuf;
use std::time::Instant;

use forebay::{Request, Statistics};
use forebay_plans::process::rss_now;

use crate::measured::MIB;
use crate::resize::take;
use crate::role;
use crate::subject::{Subject, length};
use crate::support::{build, change_budget, engine};

const MODEL: &str = "FOREBAY_STRESS_MODEL";
/// Budgets from all weights in memory to the minimum.
const STEPS: u64 = 6;
/// Tokens under each.
const TOKENS: usize = 4;

/// Generates while the budget shrinks and grows again, and prints how fast that is.
#[test]
#[ignore = "a process of its own, started by another test"]
fn shrinks_step_by_step() {
    let model = PathBuf::from(std::env::var_os(MODEL).expect("a model"));
    let engine = build(engine(Some(&model)));
    let (least, most) = (engine.least_budget(), engine.budget().claimed());
    let per_step = TOKENS * length();
    let down = (0..STEPS).map(|i| most - (most - least) * i / (STEPS - 1));
    let budgets: Vec<u64> = down.chain([most]).collect();
    let ask = || {
        let request = Request::text("Once upon a time, there was");
        let mut request = request.max_tokens(per_step * (budgets.len() + 1));
        request.ignore_eog = true;
        let stream = engine.session().generate(request).expect("a request");
        stream.blocking()
    };
    let finished = |stream: forebay::BlockingTokens| -> Statistics {
        stream.finish().unwrap_or_else(|e| panic!("{e}")).1
    };
    let reference = finished(ask());
    eprintln!(
        "{}, while it generates: MiB, and tokens per second\n{:>8} {:>6} {:>9} {:>9}",
        model.file_stem().unwrap_or_default().display(),
        "budget",
        "share",
        "resident",
        "tok/s"
    );
    let mut stream = ask();
    for &budget in &budgets {
        change_budget(&engine, budget);
        // What was computed before the change may still be on its way.
        let resident = rss_now().expect("a size");
        let start = Instant::now();
        take(&mut stream, per_step);
        let rate = per_step as f64 / start.elapsed().as_secs_f64();
        let later = rss_now().expect("a size");
        eprintln!(
            "{:>8} {:>5.0}% {:>9} {rate:>9.2}",
            budget / MIB,
            budget as f64 / most as f64 * 100.0,
            later / MIB,
        );
        assert!(
            resident <= budget && later <= budget,
            "{resident}, {later} of {budget}"
        );
    }
    let done = finished(stream);
    assert_eq!(done.tokens, reference.tokens);
    assert_eq!(done.logits_hash, reference.logits_hash);
    assert_eq!(done.memory.budget_bytes, most);
}

#[test]
fn a_dense_model_gives_way_step_by_step() {
    for subject in Subject::dense() {
        let path = subject.model.expect("a real model");
        let model = (MODEL, path.display().to_string());
        role::run("curve::shrinks_step_by_step", &[model]);
    }
}
