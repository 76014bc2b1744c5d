//! Where neurons are cached, no pinned cluster gives way: prompts would take it for pinned. Real plans lose nothing by
//! that, since they never have both; those of the simulation do.

use forebay_models::bundle::Bundle;
use forebay_models::network::Content;
use forebay_plans::giving_way::GivingWay;
use forebay_plans::residency::{
    Pipeline, Residency, ResidencyPlan, ResidencyRequest, STREAM_WINDOW, all_pinned_bytes, decide,
    least_weight_bytes,
};

use crate::case::Case;
use crate::models;
use crate::models::HEADS;
use crate::random::Random;

/// Weight memories of each model and mode, from the least to all of it.
const SIZES: u64 = 24;
/// How much longer clusters are taken to be: all of a tiny model takes less than the read buffers of a neuron cache.
const TIMES: u32 = 100;

/// Whether whole FFN clusters are pinned and single neurons are cached.
fn has_both(bundle: &Bundle, plan: &ResidencyPlan) -> bool {
    let mut entries = bundle.clusters.iter().zip(&plan.residency);
    let is_pinned = |content| matches!(content, Content::Neurons(_));
    plan.neuron_cache.slots > 0
        && entries.any(|(e, kept)| *kept == Residency::Pinned && is_pinned(e.content))
}

#[test]
fn nothing_gives_way_beside_cached_neurons() {
    let (mut both, mut give_way) = (0, 0);
    for seed in 0..2000 {
        let case = Case::draw(&mut Random::new(seed), models());
        let bundle = models()[case.model].bundle();
        let given = GivingWay::new(&bundle, &case.plan).clusters;
        if case.plan.neuron_cache.slots > 0 {
            assert!(given.is_empty(), "seed {seed}: {given:?} of {case:#?}");
        }
        both += usize::from(has_both(&bundle, &case.plan));
        give_way += usize::from(!given.is_empty());
    }
    assert!(both > 20, "only {both} plans have both");
    assert!(
        give_way > 200,
        "in only {give_way} plans anything gives way"
    );
}

#[test]
fn the_planner_never_pins_ffn_clusters_beside_cached_neurons() {
    let mut cached = 0;
    for model in models() {
        let mut bundle = model.bundle();
        for entry in &mut bundle.clusters {
            entry.len *= TIMES;
        }
        for sparsity in model.sparsities() {
            for threads in 1..=HEADS.min(model.network.most_cores()) {
                let least = least_weight_bytes(&bundle, threads, sparsity);
                let most = all_pinned_bytes(&bundle, sparsity).max(least);
                for size in 0..=SIZES {
                    for pipeline in [Pipeline::Cluster, Pipeline::Matrix] {
                        let weight_bytes = least + (most - least) * size / SIZES;
                        let request = ResidencyRequest {
                            weight_bytes,
                            threads,
                            sparsity,
                            pipeline,
                            stream_window: STREAM_WINDOW,
                            neuron_cache: weight_bytes / 4,
                        };
                        let plan = decide(&bundle, &request).expect("at least the least");
                        assert!(!has_both(&bundle, &plan), "{request:?}: {plan:#?}");
                        cached += usize::from(plan.neuron_cache.slots > 0);
                    }
                }
            }
        }
    }
    assert!(cached > 100, "only {cached} plans cache neurons");
}
