//! A read fails in a step that runs tokens ahead: nothing of the step is kept, neither said nor in the KV cache.

use std::time::Duration;

use forebay::{DriverChoice, Engine, Error, Request, Session, Sparsity, Statistics, StreamItem};
use forebay_models::bundle::DirectoryEntry;
use forebay_plans::residency::{Residency, least_weight_bytes};

use crate::stage::{Mode, Patient, packed, threads};
use crate::watchdog::within;

const LIMIT: Duration = Duration::from_secs(60);
const PROMPT: [u32; 9] = [0, 66, 67, 68, 69, 66, 67, 68, 69];
/// Many more than an unread stream holds, as far as the tests' context allows.
const TOKENS: usize = 119;
/// An engine that has done nothing for so long waits for its reader.
const QUIET: Duration = Duration::from_millis(100);

/// A model that repeats 16 tokens for ever, with a sliding window of 8.
fn patient(weight_memory: u64) -> Patient {
    let mode = Mode {
        sparsity: Sparsity::Dense,
        weight_memory,
        driver: DriverChoice::Pread,
    };
    let bytes = packed("tests/golden/tiny/starcoder2_window_f16");
    Patient::of(bytes.into(), mode)
}

fn generate(session: &mut Session, prompt: &[u32], n: usize) -> Result<Statistics, Error> {
    let request = Request::tokens(prompt).max_tokens(n).ignore_eog(true);
    Ok(session.generate(request)?.finish()?.1)
}

fn sound(engine: &Engine, prompt: &[u32], n: usize) -> Statistics {
    generate(&mut engine.session(), prompt, n).expect("a sound file")
}

/// Tokens of a generation during which `cluster` is damaged, and the session.
fn interrupted(patient: &Patient, cluster: &DirectoryEntry) -> (Vec<u32>, Session) {
    let mut session = patient.engine.session();
    let request = Request::tokens(PROMPT).max_tokens(TOKENS).ignore_eog(true);
    let stream = session.generate(request).expect("a prompt");
    let mut before = 0;
    while before == 0 || session.history().len() > before {
        before = session.history().len();
        std::thread::sleep(QUIET);
    }
    patient.damage(cluster);
    let (mut ids, mut failed) = (Vec::new(), false);
    for item in stream.blocking() {
        match item {
            Ok(StreamItem::Token(token)) => ids.push(token.id),
            Ok(_) => {}
            Err(_) => failed = true,
        }
    }
    assert!(failed, "{} tokens in spite of the damage", ids.len());
    (ids, session)
}

#[test]
fn nothing_of_a_failed_step_is_kept() {
    within(LIMIT, || {
        let healthy = patient(1 << 30);
        let right = sound(&healthy.engine, &PROMPT, TOKENS);
        assert!(right.drafts.accepted > 0, "{:?}", right.drafts);
        let least = least_weight_bytes(&healthy.bundle, threads(), Sparsity::Dense);
        let patient = patient(least);
        let clusters = patient.bundle.clusters.iter().zip(&patient.residency);
        let mut of_layers =
            clusters.filter(|(c, r)| c.layer().is_some() && **r == Residency::Streamed);
        let cluster = *of_layers.next_back().expect("a streamed cluster").0;
        for _ in 0..3 {
            let (ids, mut session) = interrupted(&patient, &cluster);
            assert_eq!(ids, right.tokens[..ids.len()]);
            let said = [&PROMPT[..], &ids].concat();
            assert_eq!(session.history(), said);
            patient.repair(&cluster);
            // The conversation goes on from what the KV cache has of it.
            let next = generate(&mut session, &[33], 8).expect("a repaired file");
            let expected = sound(&healthy.engine, &[&said[..], &[33]].concat(), 8);
            assert_eq!(next.tokens, expected.tokens);
            assert_eq!(next.logits_hash, expected.logits_hash);
            let again = sound(&patient.engine, &PROMPT, TOKENS);
            assert_eq!(again.logits_hash, right.logits_hash);
            assert!(again.drafts.accepted > 0, "{:?}", again.drafts);
        }
    });
}
