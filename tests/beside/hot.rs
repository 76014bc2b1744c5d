//! Hot neurons on a device beside cold ones on the cores.

use forebay::{DeviceChoice, EngineBuilder, Sparsity};
use forebay_devices::simulated::Behaviour;

use super::device::{Trouble, lost, with_behaviour, with_device};
use super::faults::run;
use crate::support::{TemporaryFile, build, build_within, engine, hot_model, several_at_once};

const HOT: usize = 320;

fn on(
    model: &TemporaryFile,
    (sparsity, threads): (Sparsity, usize),
    weight_bytes: u64,
) -> EngineBuilder {
    let builder = engine(Some(&model.0)).sparsity(sparsity).threads(threads);
    builder.drafts(false).weight_memory(weight_bytes)
}

#[test]
fn a_device_computes_hot_neurons_beside_cold_ones() {
    let model = hot_model("hot-beside.fbay", false, HOT);
    let share = |model: &TemporaryFile| {
        let builder = on(model, (Sparsity::Predicted, 2), u64::MAX);
        let device = run(&build(with_device(builder, 1.0).0)).device;
        device.expect("a device").decode_share
    };
    let without = share(&hot_model("no-hot-beside.fbay", false, 0));
    assert!(share(&model) > without + 0.1, "{without}");
    for sparsity in [Sparsity::Predicted, Sparsity::Exact] {
        let of = |threads| (sparsity, threads);
        let alone = build(on(&model, of(2), u64::MAX).device(DeviceChoice::Cpu));
        let (whole, alone) = (alone.weight_bytes(), run(&alone));
        let mut cases = Vec::new();
        for percent in [100, 70, 40] {
            for threads in [1, 2] {
                for part in [0.3, 1.0] {
                    cases.push((percent, threads, part));
                }
            }
        }
        let runs = several_at_once(&cases, |&(percent, threads, part)| {
            let wanted = match percent {
                100 => u64::MAX,
                _ => whole * percent / 100,
            };
            let behaviour = Behaviour {
                imports: threads == 2,
                ..Behaviour::ideal()
            };
            let beside = |weights| {
                let limits = (usize::MAX, behaviour.clone());
                with_behaviour(on(&model, of(threads), weights), part, limits).0
            };
            run(&build_within(beside, wanted))
        });
        for (case, run) in cases.iter().zip(&runs) {
            assert_eq!(run.logits_hash, alone.logits_hash, "{sparsity:?} {case:?}");
            let device = run.device.as_ref();
            assert!(
                device.is_some_and(|d| d.jobs > 0 && d.faults == 0),
                "{case:?}"
            );
        }
        let missed = runs.iter().filter(|run| run.cache.misses > 0).count();
        assert!(missed > 4, "{missed}");
    }
}

/// Whichever job of a layer fails, of rows or of hot neurons: the cores compute it.
#[test]
fn a_failed_job_of_hot_neurons_is_made_good() {
    let model = hot_model("hot-failed.fbay", false, HOT);
    let setting = (Sparsity::Predicted, 2);
    let expected = run(&build(
        on(&model, setting, u64::MAX).device(DeviceChoice::Cpu),
    ));
    for more in 0..9 {
        for trouble in [Trouble::Ends(lost()), Trouble::NeverEnds] {
            let (builder, hold) = with_device(on(&model, setting, u64::MAX), 1.0);
            let engine = build(builder);
            hold.fail_after(20 + more, trouble);
            let run = run(&engine);
            assert_eq!(run.logits_hash, expected.logits_hash, "{more}");
            assert!(run.device.is_some_and(|device| device.faults > 0));
        }
    }
}
