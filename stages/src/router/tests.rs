//! The choice against a sort, and the lists of tokens against the choice.

use forebay_models::network::{Experts, Groups, Router, Scores};
use forebay_plans::program::{Item, Source};
use forebay_queues::board::F32Board;
use forebay_queues::slab::{PAGE, Slab};
use proptest::prelude::*;

use super::{Choosing, Preference, Routes};
use crate::cache::PolicyKind;
use crate::expert_store::{ExpertMemory, ExpertStore};
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
    chosen_with(router, logits, (biases, &[]), used)
}

fn chosen_with(
    router: &Router,
    logits: &[f32],
    (biases, bonus): (&[f32], &[f32]),
    used: usize,
) -> Vec<(u32, f32)> {
    let (mut scores, mut ranks) = (vec![0.0; logits.len()], vec![0.0; logits.len()]);
    let mut chosen = vec![(0, 0.0); used];
    let choosing = Choosing {
        router,
        biases,
        bonus,
    };
    choosing.choose(logits, (&mut scores, &mut ranks), &mut chosen);
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
            routes.route(&experts, (&[], &[]), (&logits, experts.router_width()));
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

#[test]
fn a_bonus_counts_for_the_choice_only_and_not_against_the_best() {
    let softmax = router(Scores::SoftmaxOfChosen, None);
    let logits = [3.0, 2.0, 1.0, 0.0, -1.0];
    let ids = |bonus: &[f32], used| {
        let ours = chosen_with(&softmax, &logits, (&[], bonus), used);
        ours.iter().map(|c| c.0).collect::<Vec<_>>()
    };
    assert_eq!(ids(&[], 3), [0, 1, 2]);
    assert_eq!(ids(&[0.0; 5], 3), [0, 1, 2]);
    // The fourth overtakes the third, and the last the second; nobody the first.
    assert_eq!(ids(&[0.0, 0.0, 0.0, 1.5, 0.0], 3), [0, 1, 3]);
    assert_eq!(ids(&[0.0, 0.0, 0.0, 0.0, 9.0], 3), [0, 4, 1]);
    // Of five, two are certain.
    assert_eq!(ids(&[0.0, 0.0, 0.0, 9.0, 11.0], 5), [0, 1, 4, 3, 2]);
    let ours = chosen_with(&softmax, &logits, (&[], &[0.0, 0.0, 0.0, 0.0, 9.0]), 2);
    let [(0, a), (4, b)] = ours[..] else {
        panic!("{ours:?}")
    };
    assert!(
        (a / b - 4f32.exp()).abs() < 1e-3,
        "weights are those without"
    );
}

#[test]
fn a_bonus_goes_with_biases_of_scores() {
    let sigmoid = router(Scores::Sigmoid, None);
    let biases = [0.0, 0.0, 0.5, 0.0];
    let choice = |bonus: [f32; 4]| {
        let ours = chosen_with(&sigmoid, &[2.0, 1.0, 0.0, 0.0], (&biases, &bonus), 2);
        ours.iter().map(|c| c.0).collect::<Vec<_>>()
    };
    assert_eq!(choice([0.0; 4]), [2, 0]);
    assert_eq!(choice([0.0, 0.0, 0.0, 3.0]), [2, 3]);
}

#[test]
fn one_token_s_guesses_are_by_weight_and_those_of_several_by_number() {
    let mut routes = Routes::default();
    let (next, rows) = (
        experts(4, 2, false),
        [[0.0, 3.0, 1.0, 2.0], [3.0, 0.0, 0.0, 4.0]],
    );
    let mut guess = |rows: &[[f32; 4]]| {
        routes.guess((2, &next), &[], rows.iter().map(<[f32; 4]>::as_slice));
        assert!(routes.guessed()[0].is_empty());
        routes.guessed()[1].iter().map(|g| g.0).collect::<Vec<_>>()
    };
    assert_eq!(guess(&rows[1..]), [3, 0]);
    assert_eq!(guess(&rows), [0, 1, 3]);
    assert!(guess(&[]).is_empty());
}

/// A cluster of an expert that is cached under this key.
fn item(expert: u16, key: u32) -> Item {
    Item {
        cluster: key,
        matrix: 0,
        expert: Some(expert),
        source: Source::Cached { key },
    }
}

/// A cache of a core's four clusters, of which `held` are in memory.
fn store(held: &[u32]) -> ExpertStore {
    let mut slab = Slab::new(4 * PAGE).expect("small");
    let memory = ExpertMemory {
        cells: (0..4).map(|_| slab.carve(PAGE).expect("room")).collect(),
        clusters: 4,
        preloaded: held.to_vec(),
    };
    ExpertStore::new(memory, PolicyKind::default(), (4, 4))
}

#[test]
fn minor_experts_weigh_less_than_a_part_of_the_largest() {
    let mut routes = Routes::default();
    // Of the last two, one is half as heavy as the first, one is as heavy.
    let logits = [4.0, 0.0, 4.0 - 2f32.ln(), 4.0];
    routes.route(&experts(4, 4, false), (&[], &[]), (&logits, 4));
    let minor = |share| {
        (0..4)
            .map(|e| routes.is_minor(e, share))
            .collect::<Vec<_>>()
    };
    assert_eq!(minor(0.01), [false; 4]);
    assert_eq!(minor(0.1), [false, true, false, false]);
    assert_eq!(minor(0.6), [false, true, true, false]);
    assert_eq!(minor(1.0), [false, true, true, false]);
    routes.route(&experts(2, 2, false), (&[], &[]), (&[f32::NAN, 0.0], 2));
    assert!(!routes.is_minor(0, 1.0) && !routes.is_minor(1, 1.0));
}

#[test]
fn experts_gain_by_what_all_cores_hold_of_them() {
    let all = experts(3, 1, true);
    let mut cores = [0, 1].map(|_| Preference::new((1, 4), 0.5));
    let board = F32Board::new(8);
    // Two clusters of each expert, one on each core; the shared gate's column is no expert's.
    let items: Vec<Item> = (0..3).map(|e| item(e, u32::from(e))).collect();
    for (rank, held) in [&[0, 1][..], &[1]].into_iter().enumerate() {
        let store = store(held);
        cores[rank].publish((&items, 3), |key| store.has(key), (&board, rank));
    }
    for core in &mut cores {
        // Spreads of 2, 4 and one that is no number.
        let logits = [
            0.0,
            1.0,
            2.0,
            99.0,
            -1.0,
            3.0,
            0.0,
            99.0,
            f32::NAN,
            f32::INFINITY,
            0.0,
            0.0,
        ];
        core.learn(0, &all, (&logits, all.router_width()));
        assert_eq!(core.bonus((0, &all), (&board, 2), 2), [0.75, 1.5, 0.0]);
    }
}
