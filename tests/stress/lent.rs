//! Memory that weights have until it is needed: the KV cache's until positions are written, and that of a step's
//! buffers until a prompt fills them.

use std::sync::atomic::{AtomicBool, Ordering};

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

fn start(sparsity: Sparsity, batch: usize, memory: u64) -> Engine {
    let builder = engine(Some(sparse_model())).sparsity(sparsity);
    build(builder.context(CONTEXT).max_batch(batch).memory(memory))
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

/// What the texts come to if everything fits, and how much that takes.
fn with_plenty<const N: usize>(
    sparsity: Sparsity,
    batch: usize,
    texts: [Request; N],
) -> ([Statistics; N], u64) {
    let engine = start(sparsity, batch, 1 << 30);
    let references = texts.map(|text| rest(ask(&engine, text)));
    (references, engine.budget().claimed())
}

fn same(seen: &Statistics, reference: &Statistics) {
    assert_eq!(seen.tokens, reference.tokens);
    assert_eq!(seen.logits_hash, reference.logits_hash);
}

/// The item `weights` has memory that the KV cache takes back as positions are written.
fn comes_back(sparsity: Sparsity, weights: &str) {
    let (references, most) = with_plenty(sparsity, 64, texts());
    let budget = most - LESS;
    let engine = start(sparsity, 64, budget);
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

/// Most bytes of buffers, least of `weights`, and most in memory, as seen while `run` runs.
fn watch<T: Send>(engine: &Engine, weights: &str, run: impl FnOnce() -> T + Send) -> (T, [u64; 3]) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = [0, u64::MAX, 0];
            while !over.load(Ordering::Relaxed) {
                let budget = engine.budget();
                assert!(budget.claimed() <= budget.total_bytes());
                seen[0] = seen[0].max(item(engine, "scratch"));
                seen[1] = seen[1].min(item(engine, weights));
                seen[2] = seen[2].max(resident());
            }
            seen
        });
        let result = run();
        over.store(true, Ordering::Relaxed);
        (result, watcher.join().expect("no panic"))
    })
}

/// The item `weights` has memory that a prompt's batches take, and has it again when tokens are generated.
fn prompts_take(sparsity: Sparsity, weights: &str) {
    let asked = || {
        let [short, long, other] = texts();
        [short.clone(), short.clone(), other, long, short]
    };
    let (references, most) = with_plenty(sparsity, CONTEXT, asked());
    let budget = most - 2 * LESS;
    let engine = start(sparsity, CONTEXT, budget);
    let before = item(&engine, "scratch");
    let mut resident_after = Vec::new();
    for (number, (text, reference)) in asked().into_iter().zip(&references).enumerate() {
        let (seen, [scratch, least, most]) = watch(&engine, weights, || rest(ask(&engine, text)));
        same(&seen, reference);
        let after = (item(&engine, "scratch"), item(&engine, weights));
        resident_after.push(resident());
        eprintln!(
            "{sparsity:?}: buffers {} KiB, in a prompt {}; {weights} {} KiB, {}; {} KiB of {} resident",
            after.0 >> 10,
            scratch >> 10,
            after.1 >> 10,
            least >> 10,
            resident() >> 10,
            budget >> 10
        );
        assert_eq!(after.0, before, "weights have it again");
        assert!(most <= budget + COUNTED, "{most} resident of {budget}");
        let taken = scratch - before;
        assert!(number != 3 || taken > 2 * COUNTED && least + MIB <= after.1);
    }
    let [.., before, long, short] = resident_after[..] else {
        panic!("five texts");
    };
    let after = long.max(short);
    assert!(after <= before + COUNTED, "{before} resident, then {after}");
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
#[ignore = "a process of its own, started by another test"]
fn of_neurons_by_prompts() {
    prompts_take(Sparsity::Predicted, "neuron_cache");
}

#[test]
#[ignore = "a process of its own, started by another test"]
fn of_pinned_clusters_by_prompts() {
    prompts_take(Sparsity::Dense, "resident_weights");
}

#[test]
fn memory_that_weights_have_until_a_prompt_needs_it_comes_back() {
    role::run("lent::of_neurons_by_prompts", &[]);
    role::run("lent::of_pinned_clusters_by_prompts", &[]);
}

#[test]
fn memory_that_weights_have_until_positions_are_written_comes_back() {
    role::run("lent::of_neurons", &[]);
    role::run("lent::of_pinned_clusters", &[]);
}
