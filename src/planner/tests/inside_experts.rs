//! Whether the Gates of experts are read first: where few of large neurons are alive, and that is known.

use std::collections::BTreeMap;

use forebay_models::block::BlockType;
use forebay_models::bundle::{Bundle, PackOptions, outline};
use forebay_models::synth::{Shape, SynthOptions, SynthSource};
use forebay_plans::residency::{Loading, Sparsity};

use super::shapes::{SERVER, machine_for, profile};
use super::{part_of, request, shapes};
use crate::planner::{Decision, Fixed, Outlook, fastest};
use crate::profiles::{ExpertProfile, Profile};

/// A published shape with matrices in Q4_0, those of Down by column.
fn shaped(name: &str) -> Bundle {
    let options = SynthOptions {
        format: BlockType::F16,
        layers: Some(4),
        ..SynthOptions::new(Shape::named(name).unwrap())
    };
    let source = SynthSource::new(&options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let packing = PackOptions {
        quant: Some(BlockType::Q4_0),
        ..PackOptions::default()
    };
    outline(&source, &folder.path().join("out.fbay"), &packing).unwrap()
}

/// What is decided within a part of the model's bytes, if a part of its experts' neurons is alive, or if that is not
/// known.
fn decided(bundle: &Bundle, percent: u64, alive: Option<f64>, fixed: Fixed) -> Decision {
    let sparsity = Sparsity::Exact;
    let (machine, disk) = machine_for(bundle, sparsity, &SERVER);
    let profile = alive.map(|alive| Profile {
        sparsity,
        experts: Some(ExpertProfile {
            alive: Some(alive),
            distinct: BTreeMap::from([(2, 3.5), (8, 7.2)]),
            ..ExpertProfile::default()
        }),
        ..profile(&shapes::QWEN)
    });
    let request = request(part_of(bundle, percent) << 20, SERVER.cores, sparsity);
    let outlook = Outlook::new(bundle, (&machine, &disk), profile.as_ref(), request);
    fastest(&outlook, fixed).unwrap()
}

fn loading(bundle: &Bundle, percent: u64, alive: Option<f64>) -> Loading {
    let decision = decided(bundle, percent, alive, Fixed::default());
    decision.seen.choices.loading
}

#[test]
fn gates_come_first_where_few_large_neurons_are_alive() {
    let mixtral = shaped("mixtral-8x7b");
    for percent in [40, 60] {
        let best = decided(&mixtral, percent, Some(0.1), Fixed::default());
        assert_eq!(best.seen.choices.loading, Loading::Split, "{percent}%");
        let reason = best.reasons.iter().find(|r| r.choice == "loading");
        let reason = reason.expect("it says what that beat");
        assert_eq!(
            (&*reason.taken, &*reason.others[0].value),
            ("split", "bundle")
        );
        let fixed = Fixed {
            loading: Some(Loading::Bundle),
            ..Fixed::default()
        };
        let whole = decided(&mixtral, percent, Some(0.1), fixed).seen.expected;
        let best = best.seen.expected;
        assert!(best.bytes_per_token < whole.bytes_per_token);
        assert!(best.reads_per_token > whole.reads_per_token);
        assert!(best.decode_tokens_per_second > 1.1 * whole.decode_tokens_per_second);
    }
    // If half of them are alive, as is assumed of what has not been profiled, hardly any pair can be left out.
    for alive in [Some(0.5), None] {
        assert_eq!(loading(&mixtral, 40, alive), Loading::Bundle);
    }
    assert_eq!(
        loading(&mixtral, 200, Some(0.1)),
        Loading::Bundle,
        "nothing is read"
    );
}

#[test]
fn small_neurons_of_which_many_are_alive_are_read_as_a_whole() {
    let smallthinker = shaped("smallthinker-21b");
    for percent in [40, 60] {
        assert_eq!(loading(&smallthinker, percent, Some(0.4)), Loading::Bundle);
    }
}
