//! Several sequences in one step, each at a position of its own: every one of them gets the bits it gets alone.

use std::sync::Arc;

use forebay_actors::step::{Step, StepTokens};
use forebay_models::kv_type::KvType;
use forebay_models::source;
use forebay_stages::sequences::{SequenceId, TokenPlace};

use crate::case::Case;
use crate::generation::step_to_end;
use crate::models::{CONTEXT, Model};
use crate::random::Random;
use crate::world::World;

const SEQUENCES: usize = 8;
const SEEDS: u64 = 64;

/// Some of one sequence's tokens.
#[derive(Clone, Copy)]
struct Run {
    /// Which of the sequences: each reads the model's inputs from another place on.
    text: usize,
    id: SequenceId,
    position: usize,
    n: usize,
}

/// Feeds the runs in one step; returns the bits of each run's last logits.
fn feed(world: &mut World, model: &Model, runs: &[Run]) -> Vec<Vec<u32>> {
    let vocab = model.network.vocab_size;
    let mut tokens = StepTokens::default();
    for run in runs {
        let room = world.sequences.extend(run.id, run.n, &mut tokens.copies);
        room.expect("room for all sequences");
        for position in run.position..run.position + run.n {
            let row = (run.text * 5 + position) % CONTEXT;
            model.show(world, tokens.places.len(), row..row + 1);
            tokens.places.push(TokenPlace {
                sequence: run.id,
                position: position as u32,
            });
        }
        tokens.wanted.push(tokens.places.len() as u32 - 1);
    }
    tokens.take_tables(&world.sequences);
    let step = Step {
        tokens: Arc::new(tokens),
        ..Step::default()
    };
    step_to_end(world, step).unwrap_or_else(|ended| panic!("{ended:?}"));
    let logits = |i: usize| {
        let mut logits = vec![0.0f32; vocab];
        world
            .steps
            .shared()
            .boards
            .logits
            .read(i * vocab, &mut logits);
        logits.into_iter().map(f32::to_bits).collect()
    };
    (0..runs.len()).map(logits).collect()
}

/// Each text's tokens before the common step: none, two, four, …, so that all positions differ, and some are beyond
/// sliding windows.
fn begin(world: &mut World, model: &Model, text: usize) -> Run {
    let id = world.sequences.open();
    for position in 0..2 * text {
        let n = 1;
        feed(
            world,
            model,
            &[Run {
                text,
                id,
                position,
                n,
            }],
        );
    }
    let (position, n) = (2 * text, 1);
    Run {
        text,
        id,
        position,
        n,
    }
}

fn compare(seed: u64, all: &[Model]) {
    let mut random = Random::new(seed);
    let mut case = Case::draw(&mut random, all);
    let model = &all[case.model];
    (case.max_batch, case.max_logits) = (case.max_batch.max(SEQUENCES), SEQUENCES);
    // The world has a sequence of its own.
    case.sequences = SEQUENCES + 1;
    let mut world = World::new(&case, model, &mut random);
    let runs: Vec<Run> = (0..SEQUENCES)
        .map(|text| begin(&mut world, model, text))
        .collect();
    let together = feed(&mut world, model, &runs);
    for (text, expected) in together.iter().enumerate() {
        let mut world = World::new(&case, model, &mut random);
        let run = begin(&mut world, model, text);
        let alone = feed(&mut world, model, &[run]);
        assert_eq!(
            alone[0], *expected,
            "seed {seed}, sequence {text} of {case:#?}"
        );
    }
}

#[test]
fn recurrent_states_are_kept_apart() {
    let folder = tempfile::tempdir().expect("a folder for a tiny model");
    let all = [Model::recurrent(folder.path())];
    (0..SEEDS / 4).for_each(|seed| compare(seed, &all));
}

/// The tiny models of every architecture, as checkpoints and as GGUF files.
#[test]
fn sequences_of_every_architecture_get_the_bits_they_get_alone() {
    let goldens = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tiny");
    let entries = std::fs::read_dir(goldens).expect("tests/golden/tiny");
    let mut paths: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() > 80, "{} models", paths.len());
    for (mut path, seed) in paths.into_iter().zip(0..) {
        if path.join("model.gguf").exists() {
            path.push("model.gguf");
        }
        let source = source::open(&path).expect("a tiny model");
        let folder = tempfile::tempdir().expect("a folder for a tiny model");
        let all = [Model::packed(
            source.as_ref(),
            KvType::F16,
            seed,
            folder.path(),
        )];
        compare(seed, &all);
    }
}

#[test]
fn eight_sequences_in_one_step_get_the_bits_they_get_alone() {
    let all = crate::models();
    (0..SEEDS).for_each(|seed| compare(seed, all));
}
