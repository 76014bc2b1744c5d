//! Experts that cannot be read, or are not what was packed: an error, and nothing of them stays in the expert cache.

use std::time::Duration;

use forebay::{DriverChoice, Loading, Sparsity};
use forebay_models::bundle::{Bundle, DirectoryEntry};
use forebay_models::network::Content;

use crate::stage::{Mode, Patient, continuation, packed};
use crate::watchdog::within;

const LIMIT: Duration = Duration::from_secs(60);

fn is_expert(cluster: &&DirectoryEntry) -> bool {
    matches!(cluster.content, Content::Experts(_))
}

/// Where a cluster has what comes after its Gates.
fn pairs_of(bundle: &Bundle, e: &DirectoryEntry) -> DirectoryEntry {
    let g = bundle.meta.geometry(e.content).expect("their storage");
    let gates = g.gates_bytes(e.count as usize);
    DirectoryEntry {
        offset: e.offset + gates as u64,
        len: e.len - gates as u32,
        ..*e
    }
}

fn recovers(name: &str, driver: DriverChoice, loading: Loading) {
    let mode = |weight_memory| Mode {
        sparsity: Sparsity::Exact,
        weight_memory,
        driver,
    };
    let bytes = packed(&format!("tests/golden/tiny/{name}"));
    let healthy = Patient::of(bytes.clone().into(), mode(1 << 30));
    let whole = healthy.engine.weight_bytes();
    let patient = Patient::loading(bytes.into(), mode(whole * 2 / 3), loading);
    assert!(patient.engine.plan().expert_cache.cells > 0, "{name}");
    let engine = &patient.engine;
    let text: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 200).collect();
    let expected = continuation(&healthy.engine, &text).expect("a sound file");
    let experts = patient.bundle.clusters.iter().filter(is_expert);
    let experts: Vec<_> = match loading {
        Loading::Split => experts.map(|e| pairs_of(&patient.bundle, e)).collect(),
        _ => experts.copied().collect(),
    };

    let first_of_them = experts.iter().map(|e| e.offset).min();
    patient.truncate(first_of_them.expect("experts"));
    for _ in 0..2 {
        continuation(engine, &text).expect_err("reads past the end");
    }
    patient.restore();
    let found = continuation(engine, &text).expect("a whole file");
    assert_eq!(found.0, expected.0, "{name}");

    // What is in memory is right; what has to be read is not.
    let long: Vec<u32> = (0..90).map(|i| 3 + i * 11 % 200).collect();
    experts.iter().for_each(|e| patient.damage(e));
    let mut failed = 0;
    for _ in 0..2 {
        if let Err(error) = continuation(engine, &long) {
            let message = error.to_string();
            assert!(
                message.contains("checksum does not match"),
                "{name}: {message}"
            );
            failed += 1;
        }
    }
    assert!(failed > 0, "{name}: no expert had to be read");
    experts.iter().for_each(|e| patient.repair(e));
    let expected = continuation(&healthy.engine, &long).expect("a sound file");
    for _ in 0..2 {
        assert_eq!(
            continuation(engine, &long).expect("a repaired file").0,
            expected.0,
            "{name}"
        );
    }
}

#[test]
fn experts_that_cannot_be_read_are_an_error_and_the_engine_recovers() {
    for name in ["qwen3_moe_bf16", "smallthinker_bf16", "qwen2_moe_bf16"] {
        for driver in [DriverChoice::Auto, DriverChoice::Pread] {
            within(LIMIT, move || recovers(name, driver, Loading::Bundle));
        }
    }
}

/// Gates are sound and read before the rest, which is not.
#[test]
fn so_it_does_where_the_parts_of_experts_cannot_be_read() {
    for name in ["smallthinker_bf16", "smallthinker_plain_bf16"] {
        within(LIMIT, move || {
            recovers(name, DriverChoice::Auto, Loading::Split);
        });
    }
}
