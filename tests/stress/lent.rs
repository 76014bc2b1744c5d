//! The KV cache's memory, which weights have until positions are written.

use forebay::{Engine, Request, Sparsity, Statistics};

use crate::measured::MIB;
use crate::resize::{COUNTED, ask, resident, rest, take};
use crate::role;
use crate::subject::sparse_model;
use crate::support::{build, engine};

/// Its keys and values are 4 MiB, an eighth of the model's weights.
const CONTEXT: usize = 512;
/// How much less there is than would be used.
const LESS: u64 = 5 * MIB;

fn start(sparsity: Sparsity, memory: u64) -> Engine {
    let builder = engine(Some(sparse_model())).sparsity(sparsity);
    build(builder.context(CONTEXT).max_batch(64).memory(memory))
}

fn item(engine: &Engine, name: &str) -> u64 {
    let budget = engine.budget();
    let item = budget.items().iter().find(|item| item.name == name);
    item.map_or(0, |item| item.bytes)
}

/// A short text, a long one that fills most of the context, and another short one.
fn texts() -> [Request; 3] {
    [(0, 20), (1, 450), (2, 30)].map(|(first, n)| {
        let tokens = (0..n).map(|i| first + i * 31 % 500).collect::<Vec<u32>>();
        let mut request = Request::tokens(tokens).max_tokens(20);
        request.ignore_eog = true;
        request
    })
}

fn same(seen: &Statistics, reference: &Statistics) {
    assert_eq!(seen.tokens, reference.tokens);
    assert_eq!(seen.logits_hash, reference.logits_hash);
}

/// The item `weights` has memory that the KV cache takes back as positions are written.
fn comes_back(sparsity: Sparsity, weights: &str) {
    let (references, most) = {
        let engine = start(sparsity, 1 << 30);
        let references = texts().map(|text| rest(ask(&engine, text)));
        (references, engine.budget().claimed())
    };
    let budget = most - LESS;
    let engine = start(sparsity, budget);
    let mut seen = Vec::new();
    for (text, reference) in texts().into_iter().zip(&references) {
        let mut stream = ask(&engine, text);
        take(&mut stream, 10);
        let now = resident();
        let has = (item(&engine, "kv_cache"), item(&engine, weights));
        eprintln!(
            "{sparsity:?}: keys and values {} KiB, {weights} {} KiB, {} MiB of {} resident",
            has.0 >> 10,
            has.1 >> 10,
            now / MIB,
            budget / MIB
        );
        seen.push(has);
        assert!(now <= budget + COUNTED, "{now} resident of {budget}");
        assert!(engine.budget().claimed() <= budget);
        same(&rest(stream), reference);
    }
    let [short, long, again] = seen[..] else {
        panic!("three texts");
    };
    assert!(
        long.0 >= 3 * short.0 && long.1 + 2 * MIB <= short.1,
        "{seen:?}"
    );
    assert_eq!(short, again, "an empty cache lends again");
    assert!(engine.least_budget() <= budget);
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn of_neurons() {
    comes_back(Sparsity::Predicted, "neuron_cache");
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn of_pinned_clusters() {
    comes_back(Sparsity::Dense, "resident_weights");
}

#[test]
fn memory_that_weights_have_until_positions_are_written_comes_back() {
    role::run("lent::of_neurons", &[]);
    role::run("lent::of_pinned_clusters", &[]);
}
