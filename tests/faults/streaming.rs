//! The file is damaged while tokens are generated: the stream reports it, never returns wrong tokens as a success, and
//! the same engine works again once the file is whole.

use std::time::Duration;

use forebay::{Error, Request, Sparsity, StreamItem};
use forebay_plans::residency::Residency;

use crate::stage::{Mode, PROMPT, Patient, long_text, modes, right_tokens};
use crate::watchdog::within;

const LIMIT: Duration = Duration::from_secs(30);

/// Runs `body` with a fresh engine in every mode.
fn in_every_mode(body: fn(Mode, &Patient)) {
    for mode in modes() {
        within(LIMIT, move || {
            eprintln!("{mode:?}");
            body(mode, &Patient::new(mode));
        });
    }
}

fn message_of(result: Result<Vec<u32>, Error>, patient: &Patient) -> String {
    let message = result.expect_err("damage that was read").to_string();
    let path = patient.path.display().to_string();
    assert!(message.contains(&path), "{message} does not name {path}");
    message
}

#[test]
fn every_mode_reads_while_tokens_flow_and_gives_the_same_tokens() {
    in_every_mode(|mode, patient| {
        let count = |r| patient.residency.iter().filter(|&&x| x == r).count();
        let (streamed, gates) = (count(Residency::Streamed), count(Residency::GatePinned));
        let planned = &patient.engine.plan().clusters;
        assert_eq!(
            planned.streamed, streamed,
            "the test sees the engine's plan"
        );
        assert_eq!(planned.gate_pinned, gates);
        let by_neuron = mode.sparsity == Sparsity::Exact && mode.weight_memory > 4 << 20;
        assert_eq!(by_neuron, gates > 0);
        assert_eq!(by_neuron, streamed == 0);
        assert_eq!(patient.tokens().expect("a sound file"), right_tokens());
    });
}

#[test]
fn flipped_bits_are_an_error_and_the_engine_recovers() {
    in_every_mode(|mode, patient| {
        let cluster = patient.last_read();
        patient.damage(&cluster);
        for _ in 0..2 {
            let message = message_of(patient.tokens(), patient);
            assert!(
                message.contains("checksum does not match"),
                "{mode:?}: {message}"
            );
            assert!(message.contains("pack again"), "{mode:?}: {message}");
        }
        patient.repair(&cluster);
        for _ in 0..2 {
            assert_eq!(
                patient.tokens().expect("a repaired file"),
                right_tokens(),
                "{mode:?}"
            );
        }
    });
}

#[test]
fn damage_everywhere_is_forgotten_once_it_is_repaired() {
    // Clusters that were read ahead while the file was bad must not be used afterwards.
    in_every_mode(|mode, patient| {
        let read = |i: &usize| {
            matches!(
                patient.residency[*i],
                Residency::Streamed | Residency::GatePinned
            )
        };
        let all: Vec<_> = (0..patient.residency.len()).filter(read).collect();
        all.iter()
            .for_each(|&i| patient.damage(&patient.bundle.clusters[i]));
        message_of(patient.tokens(), patient);
        all.iter()
            .for_each(|&i| patient.repair(&patient.bundle.clusters[i]));
        for _ in 0..2 {
            assert_eq!(
                patient.tokens().expect("a repaired file"),
                right_tokens(),
                "{mode:?}"
            );
        }
    });
}

#[test]
fn a_file_cut_off_under_a_running_stream_is_an_error_and_the_engine_recovers() {
    in_every_mode(|mode, patient| {
        let mut session = patient.engine.session();
        let request = Request::text(PROMPT).max_tokens(120);
        let mut failed = None;
        let mut ids = Vec::new();
        for (i, item) in session
            .generate(request)
            .expect("a prompt")
            .blocking()
            .enumerate()
        {
            if i == 2 {
                patient.truncate(8192);
            }
            match item {
                Ok(StreamItem::Token(token)) => ids.push(token.id),
                Ok(StreamItem::Done(_)) => panic!("{mode:?}: read from nowhere"),
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        let n = ids.len().min(right_tokens().len());
        assert_eq!(ids[..n], right_tokens()[..n], "{mode:?}");
        let message = message_of(Err(failed.expect("an error")), patient);
        assert!(message.contains("read"), "{mode:?}: {message}");
        message_of(patient.tokens(), patient);
        patient.restore();
        for _ in 0..2 {
            assert_eq!(
                patient.tokens().expect("a restored file"),
                right_tokens(),
                "{mode:?}"
            );
        }
    });
}

#[test]
fn damage_behind_a_warm_cache_never_gives_wrong_tokens() {
    in_every_mode(|mode, patient| {
        assert_eq!(patient.tokens().expect("a sound file"), right_tokens());
        for i in 0..patient.residency.len() {
            if patient.residency[i] != Residency::Pinned {
                patient.damage(&patient.bundle.clusters[i]);
            }
        }
        for _ in 0..3 {
            if let Ok(tokens) = patient.tokens() {
                assert_eq!(tokens, right_tokens(), "{mode:?}: out of the cache");
            }
        }
        patient.restore();
        assert_eq!(
            patient.tokens().expect("a restored file"),
            right_tokens(),
            "{mode:?}"
        );
    });
}

#[test]
fn a_file_overwritten_while_tokens_flow_never_gives_wrong_tokens() {
    // Ten changes in each of six ways of streaming, of clusters that may have been read before.
    in_every_mode(|mode, patient| {
        let read = |i: &usize| patient.residency[*i] != Residency::Pinned;
        let on_flash: Vec<_> = (0..patient.residency.len()).filter(read).collect();
        let mut failed = 0;
        for round in 0..10 {
            let victims = on_flash.iter().skip(round).step_by(1 + 4 * round);
            let victims: Vec<_> = victims.map(|&i| patient.bundle.clusters[i]).collect();
            let mut session = patient.engine.session();
            let request = Request::text(PROMPT).max_tokens(120);
            let stream = session.generate(request).expect("a prompt");
            let (mut ids, mut error) = (Vec::new(), None);
            for (i, item) in stream.blocking().enumerate() {
                if i == 1 + round {
                    victims.iter().for_each(|entry| patient.damage(entry));
                }
                match item {
                    Ok(StreamItem::Token(token)) => ids.push(token.id),
                    Ok(_) => {}
                    Err(e) => error = Some(e),
                }
            }
            assert_eq!(ids, long_text()[..ids.len()], "{mode:?}, round {round}");
            assert!(error.is_some() || ids.len() == long_text().len());
            failed += usize::from(error.is_some());
            victims.iter().for_each(|entry| patient.repair(entry));
        }
        assert!(failed > 0, "{mode:?}: no damage was ever read");
    });
}

#[test]
fn a_long_prompt_in_many_batches_needs_no_logits_in_between() {
    // The head is streamed too, and all but the last batch skip it.
    for mode in modes() {
        within(LIMIT, move || {
            let patient = Patient::new(mode);
            let text = "Once upon a time there was a little girl. ".repeat(3);
            let prompt = Request::text(text).max_tokens(2);
            let run = |batch: usize| {
                let engine = forebay::Engine::builder()
                    .hot_set(false)
                    .model(&patient.path)
                    .threads(crate::stage::threads())
                    .weight_memory(mode.weight_memory.min(3 << 19))
                    .sparsity(mode.sparsity)
                    .driver(mode.driver)
                    .max_batch(batch)
                    .build()
                    .expect("an engine");
                let stream = engine.session().generate(prompt.clone()).expect("a prompt");
                let statistics = stream.finish().expect("a sound file").1;
                (statistics.tokens, statistics.logits_hash)
            };
            assert_eq!(run(8), run(128), "{mode:?}");
        });
    }
}

#[test]
fn a_damaged_embedding_behind_sound_ones_is_an_error_and_the_engine_recovers() {
    // The head is the embedding, and this little memory leaves it on flash: rows are read one by one.
    let low = Mode {
        weight_memory: 1 << 20,
        ..modes()[0]
    };
    within(LIMIT, move || {
        let patient = Patient::new(low);
        let tables: Vec<_> = patient
            .bundle
            .clusters
            .iter()
            .copied()
            .filter(|e| e.layer().is_none())
            .collect();
        assert!(tables.len() > 2);
        let token = |cluster: usize| tables[cluster].first + 1;
        let prompt = [
            token(0),
            token(0) + 1,
            token(tables.len() - 1),
            token(0) + 2,
        ];
        let request = Request::tokens(prompt).max_tokens(4);
        let run = || {
            let stream = patient.engine.session().generate(request.clone())?;
            Ok::<_, Error>(stream.finish()?.1.logits_hash)
        };
        let damaged = tables[tables.len() - 1];
        patient.damage(&damaged);
        for _ in 0..2 {
            let message = run().expect_err("a damaged row").to_string();
            assert!(message.contains("checksum does not match"), "{message}");
        }
        patient.repair(&damaged);
        let after = run().expect("a repaired file");
        assert_eq!(after, run().expect("a repaired file"));
        // The cluster has been checked, and is damaged afterwards.
        patient.damage(&damaged);
        let message = run().expect_err("a damaged row").to_string();
        assert!(message.contains("checksum does not match"), "{message}");
        patient.repair(&damaged);
        assert_eq!(after, run().expect("a repaired file"));
        let elsewhere = Patient::new(low);
        let stream = elsewhere
            .engine
            .session()
            .generate(request.clone())
            .expect("a prompt");
        assert_eq!(after, stream.finish().expect("a sound file").1.logits_hash);
    });
}
