//! A step that fails leaves the states of recurrent mixers half changed: they are never gone on from.

use std::time::Duration;

use forebay::{DriverChoice, Sparsity};
use forebay_plans::residency::Residency;

use crate::stage::{CONTINUED, Mode, Patient, continuation, packed};
use crate::watchdog::within;

const LIMIT: Duration = Duration::from_secs(60);
fn recovers(name: &str) {
    let mode = |weight_memory| Mode {
        sparsity: Sparsity::Dense,
        weight_memory,
        driver: DriverChoice::Pread,
    };
    let bytes = packed(&format!("tests/golden/tiny/{name}"));
    let healthy = Patient::of(bytes.clone().into(), mode(1 << 30));
    let streamed = healthy.engine.weight_bytes() * 2 / 3;
    let patient = Patient::of(bytes.into(), mode(streamed));
    let (engine, right) = (&patient.engine, &healthy.engine);
    let text: Vec<u32> = (0..90).map(|i| 3 + i * 7 % 200).collect();
    let first = continuation(engine, &text[..40]).expect("a sound file");
    assert_eq!(
        first,
        continuation(right, &text[..40]).expect("a sound file")
    );
    let history = [&text[..40], &first.0, &text[40..]].concat();
    // Behind the first mixers, and not in the table of embeddings, which is looked at before a step.
    let streamed = patient.bundle.clusters.iter().zip(&patient.residency);
    let mut of_layers = streamed.filter(|(c, r)| c.layer().is_some() && **r == Residency::Streamed);
    let cluster = *of_layers.next_back().expect("a streamed cluster").0;
    patient.damage(&cluster);
    for _ in 0..2 {
        continuation(engine, &history).expect_err("damage that was read");
    }
    patient.repair(&cluster);
    // Not from where the failed steps have stopped: they had given up the only snapshot.
    let (tokens, reused) = continuation(engine, &history).expect("a repaired file");
    let (expected, all) = continuation(right, &history).expect("a sound file");
    assert_eq!((reused, all), (0, 40 + CONTINUED - 1), "{name}");
    assert_eq!(tokens, expected, "{name}");
}

#[test]
fn a_failed_step_leaves_no_half_changed_state() {
    for name in ["lfm2_bf16", "qwen3_5_bf16"] {
        within(LIMIT, move || recovers(name));
    }
}
