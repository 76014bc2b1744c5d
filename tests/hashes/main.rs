//! Checks every later program, bit for bit, against the logits of the one that made `table.json`.
//!
//! The table has one hash per model, sparsity, KV cache format and prompt length. The engine promises that this
//! hash does not depend on the memory budget or the number of threads, so each case is run with many budgets and
//! with one and two threads. The hash (`logits_hash` of `--stats`) covers every row of logits that a token was
//! picked from: the one behind the prompt, and one for each generated token but the last. They depend on all keys
//! and values that the prompt left in the cache.
//!
//!     cargo test --test hashes                          # some of the settings, a minute or two
//!     FOREBAY_HASHES=full cargo test --test hashes      # all of them
//!     FOREBAY_HASHES=bless cargo test --test hashes     # all of them, and the table is written again
//!
//! Real models are looked for in the folder named by `FOREBAY_MODELS`. Without it their tests say SKIPPED, and
//! `bless` keeps their lines. `FOREBAY_PROGRAM=FILE` tests that program instead of the one just built, to compare
//! two builds. Who blesses a changed table must say in the commit message why logits may change.
//!
//! Small models run twice. The program runs them with `--memory`, which covers the whole process and is too coarse
//! for a few hundred kilobytes of weights. The library runs them with exact shares of the weights.

#[path = "../program/mod.rs"]
mod program;
#[path = "../support/mod.rs"]
mod support;

mod cases;
mod library_runs;
mod models;
mod program_runs;
mod prompts;
mod table;

use cases::{Extent, extent};
use models::Model;
use table::Comparison;

/// Runs a model's cases and compares their hashes with the table.
fn check(name: &str) {
    let Some(prepared) = models::named(name).prepare() else {
        return;
    };
    let model = prepared.model;
    let of_groups = support::several_at_once(&cases::groups(model), |group| {
        let mut comparison = Comparison::new(model);
        program_runs::run(&prepared, group, &mut comparison);
        if model.is_small() && program_runs::is_this_build() {
            library_runs::run(&prepared, group, &mut comparison);
        }
        comparison
    });
    let mut comparison = Comparison::new(model);
    of_groups
        .into_iter()
        .for_each(|part| comparison.absorb(part));
    comparison.finish();
}

#[test]
fn demo() {
    check("demo");
}

/// The demo with its predictors, which are not part of the program.
#[test]
fn demo_predicted() {
    check("demo_predicted");
}

#[test]
fn tiny_sparse() {
    check("tiny_sparse");
}

/// The same with predictors that see the residual stream before their layer.
#[test]
fn tiny_sparse_before_attention() {
    check("tiny_sparse_before_attention");
}

#[test]
fn smollm2() {
    check("smollm2_q4_1");
}

#[test]
fn qwen() {
    check("qwen_0.5b_q4_k_m");
}

/// All random models in one test: each takes a second or two.
#[test]
fn tiny() {
    for model in models::ALL.iter().filter(|m| m.is_tiny()) {
        check(model.name);
    }
}

/// A case that is not run any more must not stay in the table.
#[test]
fn the_table_has_every_case_and_no_other() {
    if extent() == Extent::Bless {
        eprintln!("SKIPPED: the table is being written");
        return;
    }
    let mut keys: Vec<String> = models::ALL.iter().flat_map(Model::keys).collect();
    keys.sort();
    assert_eq!(table::keys(), keys);
}

/// A dead ReLU neuron adds exactly nothing, and SiLU neurons are never dead. Thresholds and predictors leave
/// living neurons out.
#[test]
fn only_exact_is_the_same_as_dense() {
    if extent() == Extent::Bless {
        eprintln!("SKIPPED: the table is being written");
        return;
    }
    for model in models::ALL
        .iter()
        .filter(|m| m.sparsities.contains(&"dense"))
    {
        for (sparsity, kv, prompt) in model.cases() {
            let key = model.key(sparsity, kv, prompt);
            let dense = table::hash(&model.key("dense", kv, prompt));
            let same = matches!(sparsity, "dense" | "exact");
            assert_eq!(table::hash(&key) == dense, same, "{key}");
        }
    }
}
