//! The choice against a sort, and the lists of tokens against the choice.

use forebay_models::network::{Experts, Groups, Router, Scores};
use proptest::prelude::*;

use super::{Routes, choose};
use crate::random::Random;

fn router(scores: Scores, groups: Option<Groups>) -> Router {
    Router {
        before_layer: false,
        scores,
        bias: false,
        selection_bias: false,
        groups,
        normalised: true,
        scale: 1.0,
    }
}

fn experts(count: usize, used: usize, shared_gate: bool) -> Experts {
    Experts {
        count,
        used,
        d_ff: 32,
        bias: false,
        router: router(Scores::Softmax, None),
        shared_gate,
    }
}

fn chosen(router: &Router, logits: &[f32], biases: &[f32], used: usize) -> Vec<(u32, f32)> {
    let (mut scores, mut ranks) = (logits.to_vec(), vec![0.0; logits.len()]);
    let mut chosen = vec![(0, 0.0); used];
    choose(router, &mut scores, &mut ranks, biases, &mut chosen);
    chosen
}

proptest! {
    /// Those with the highest scores, lower numbers first among equals, and weights that sum up to 1.
    #[test]
    fn the_best_are_chosen(seed: u64, count in 1_usize..40, coarse: bool) {
        let mut random = Random(seed);
        let mut logits = random.numbers(count);
        if coarse {
            // Not below 0 where it is 0.
            logits.iter_mut().for_each(|v| *v = v.round() + 0.0);
        }
        let used = 1 + random.below(count);
        for scores in [Scores::Softmax, Scores::Sigmoid, Scores::SoftmaxOfChosen] {
            let ours = chosen(&router(scores, None), &logits, &[], used);
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            let ids: Vec<usize> = ours.iter().map(|(e, _)| *e as usize).collect();
            prop_assert_eq!(&ids, &order[..used]);
            let sum: f32 = ours.iter().map(|(_, w)| w).sum();
            prop_assert!((sum - 1.0).abs() < 1e-5, "{}", sum);
        }
    }

    /// Each token is listed with each of its experts, in the order of the step.
    #[test]
    fn tokens_are_listed_by_expert(seed: u64, count in 1_usize..20, n_tokens in 0_usize..30) {
        let mut random = Random(seed);
        let experts = experts(count, 1 + random.below(count), random.below(2) == 1);
        let mut routes = Routes::default();
        // The second step replaces the first.
        for _ in 0..2 {
            let logits = random.numbers(n_tokens * experts.router_width());
            routes.route(&experts, &[], &logits);
        }
        let mut pairs = 0;
        for e in 0..count as u16 {
            let (tokens, weights) = routes.of(e);
            prop_assert!(tokens.is_sorted());
            pairs += tokens.len();
            for (&t, &w) in tokens.iter().zip(weights) {
                prop_assert!(routes.chosen(t as usize).contains(&(u32::from(e), w)));
            }
        }
        prop_assert_eq!(pairs, n_tokens * experts.used);
        prop_assert_eq!(routes.shared().len(), n_tokens * usize::from(experts.shared_gate));
    }
}

#[test]
fn biases_count_for_the_choice_only() {
    let sigmoid = router(Scores::Sigmoid, None);
    let plain = chosen(&sigmoid, &[2.0, 1.0, 0.0, -1.0], &[], 2);
    assert_eq!(plain.iter().map(|c| c.0).collect::<Vec<_>>(), [0, 1]);
    let biased = chosen(&sigmoid, &[2.0, 1.0, 0.0, -1.0], &[0.0, 0.0, 9.0, 8.0], 2);
    assert_eq!(biased.iter().map(|c| c.0).collect::<Vec<_>>(), [2, 3]);
    let [(_, a), (_, b)] = biased[..] else {
        panic!("two")
    };
    let s = |x: f32| 1.0 / (1.0 + (-x).exp());
    assert!(
        (a / b - s(0.0) / s(-1.0)).abs() < 1e-6,
        "weights are those without biases"
    );
}

#[test]
fn only_the_best_groups_are_asked() {
    // The second group has the best pair, the first the best expert, and the last two are equal.
    let logits = [5.0, -9.0, 4.0, 3.0, 1.0, 1.0, 1.0, 1.0];
    let of = |used| {
        let groups = Some(Groups {
            count: 4,
            used,
            counted: 2,
        });
        let chosen = chosen(&router(Scores::SoftmaxOfChosen, groups), &logits, &[], 2);
        chosen.iter().map(|c| c.0).collect::<Vec<_>>()
    };
    assert_eq!(of(1), [2, 3]);
    assert_eq!(of(2), [2, 3]);
    assert_eq!(of(4), [0, 2]);
}

#[test]
fn a_group_may_be_as_good_as_its_best_expert() {
    // The second group has the best pair, the first the best expert.
    let logits = [5.0, -9.0, 4.0, 3.0, 1.0, 1.0, 1.0, 1.0];
    let groups = Some(Groups {
        count: 4,
        used: 1,
        counted: 1,
    });
    let chosen = chosen(&router(Scores::SoftmaxOfChosen, groups), &logits, &[], 2);
    assert_eq!(chosen.iter().map(|c| c.0).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn what_is_not_a_number_is_noticed() {
    for scores in [Scores::Softmax, Scores::Sigmoid, Scores::SoftmaxOfChosen] {
        let ours = chosen(&router(scores, None), &[1.0, f32::NAN, 0.5], &[], 2);
        assert!(ours.iter().any(|(_, w)| w.is_nan()), "{scores:?}: {ours:?}");
        let numbers = ours.iter().all(|(e, _)| *e < 3);
        assert!(numbers && ours[0].0 != ours[1].0, "{ours:?}");
    }
    // No expert is chosen twice, whatever the logits are.
    let lost = chosen(
        &router(Scores::SoftmaxOfChosen, None),
        &[f32::NEG_INFINITY; 3],
        &[],
        3,
    );
    let ids = |chosen: &[(u32, f32)]| chosen.iter().map(|c| c.0).collect::<Vec<_>>();
    assert_eq!(ids(&lost), [0, 1, 2]);
    let groups = Some(Groups {
        count: 2,
        used: 1,
        counted: 2,
    });
    let ours = chosen(
        &router(Scores::Sigmoid, groups),
        &[0.0, 0.0, 1.0, 1.0],
        &[],
        2,
    );
    assert_eq!(ours.iter().map(|c| c.0).collect::<Vec<_>>(), [2, 3]);
}
