//! The sampler against a naive one that sorts everything and computes in f64.

use proptest::prelude::*;

use super::*;

/// Everything off but the draw.
fn open() -> SamplerConfig {
    SamplerConfig {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        repeat_last_n: 0,
        seed: 7,
        logit_bias: Vec::new(),
    }
}

/// The probabilities of the chain by its definition, by id; 0 for tokens that are filtered out.
fn naive(config: &SamplerConfig, logits: &[f32], history: &[u32]) -> Vec<f64> {
    let from = history.len().saturating_sub(config.repeat_last_n);
    let mut sorted: Vec<(f64, usize)> = logits
        .iter()
        .enumerate()
        .map(|(id, &logit)| {
            let penalty = if history[from..].contains(&(id as u32)) {
                config.repeat_penalty
            } else {
                1.0
            };
            (
                f64::from(if logit > 0.0 {
                    logit / penalty
                } else {
                    logit * penalty
                }),
                id,
            )
        })
        .collect();
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if config.top_k > 0 {
        sorted.truncate(config.top_k);
    }
    if config.top_p < 1.0 {
        let p = softmax(&sorted, 1.0);
        let mut sum = 0.0;
        let kept = p.iter().position(|p| {
            sum += p;
            sum >= f64::from(config.top_p)
        });
        sorted.truncate(kept.map_or(sorted.len(), |at| at + 1));
    }
    let best = softmax(&sorted, 1.0)[0];
    let p = softmax(&sorted, 1.0);
    let mut at = 0;
    sorted.retain(|_| {
        at += 1;
        p[at - 1] >= f64::from(config.min_p) * best
    });
    let mut by_id = vec![0.0; logits.len()];
    for (p, (_, id)) in softmax(&sorted, config.temperature.into())
        .iter()
        .zip(&sorted)
    {
        by_id[*id] = *p;
    }
    by_id
}

fn softmax(sorted: &[(f64, usize)], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = sorted
        .iter()
        .map(|(l, _)| ((l - sorted[0].0) / temperature).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// The candidates that are left before the draw, by id.
fn kept(config: &SamplerConfig, logits: &[f32], history: &[u32]) -> Vec<u32> {
    let mut sampler = Sampler::new(config.clone(), logits.len()).unwrap();
    sampler.sample(logits, history).unwrap();
    let mut ids: Vec<u32> = sampler.candidates.iter().map(|c| c.id).collect();
    ids.sort_unstable();
    ids
}

prop_compose! {
    /// Logits in steps of 1/4, so that ties are frequent and no sum lies within rounding of a limit
    /// by chance alone.
    fn logits()(quarters in prop::collection::vec(-40i8..40, 1..600)) -> Vec<f32> {
        quarters.iter().map(|&q| f32::from(q) / 4.0).collect()
    }
}

proptest! {
    #[test]
    fn candidates_are_those_of_the_naive_chain(
        logits in logits(),
        history in prop::collection::vec(0u32..700, 0..30),
        top_k in prop_oneof![Just(0usize), 1usize..700],
        top_p in prop_oneof![Just(1.0f32), 0.0313f32..0.99],
        min_p in prop_oneof![Just(0.0f32), 0.0013f32..0.9],
        penalty in prop_oneof![Just(1.0f32), Just(1.25f32), Just(0.5f32)],
    ) {
        let config = SamplerConfig {
            top_k, top_p, min_p, repeat_penalty: penalty, repeat_last_n: 20, ..open()
        };
        let expected: Vec<u32> = naive(&config, &logits, &history)
            .iter()
            .enumerate()
            .filter_map(|(id, &p)| (p > 0.0).then_some(id as u32))
            .collect();
        prop_assert_eq!(kept(&config, &logits, &history), expected);
    }

    #[test]
    fn biases_are_added_before_penalties(
        logits in logits(),
        history in prop::collection::vec(0u32..700, 0..30),
        biases in prop::collection::vec((0u32..600, -20i8..20), 1..9),
    ) {
        let biases: Vec<(u32, f32)> = biases
            .into_iter()
            .map(|(id, bias)| (id % logits.len() as u32, f32::from(bias)))
            .collect();
        let mut biased = logits.clone();
        for &(id, bias) in &biases {
            biased[id as usize] += bias;
        }
        let plain = SamplerConfig { top_k: 7, repeat_penalty: 1.25, repeat_last_n: 20, ..open() };
        let config = SamplerConfig { logit_bias: biases, ..plain.clone() };
        prop_assert_eq!(kept(&config, &logits, &history), kept(&plain, &biased, &history));
    }

    #[test]
    fn greedy_takes_the_lowest_of_the_best(
        logits in logits(),
        history in prop::collection::vec(0u32..600, 0..9),
        penalty in prop_oneof![Just(1.0f32), Just(2.0f32)],
    ) {
        let config = SamplerConfig { repeat_penalty: penalty, ..SamplerConfig::greedy() };
        let naive = naive(&SamplerConfig { temperature: 1.0, top_k: 1, ..config.clone() }, &logits, &history);
        let mut sampler = Sampler::new(config, logits.len()).unwrap();
        let id = sampler.sample(&logits, &history).unwrap();
        prop_assert_eq!(naive[id as usize], 1.0);
    }

    #[test]
    fn nothing_panics(logits in prop::collection::vec(any::<f32>(), 0..40), seed: u64) {
        let config = SamplerConfig { seed, repeat_penalty: 1.5, temperature: 1e-3, ..Default::default() };
        let mut sampler = Sampler::new(config, logits.len()).unwrap();
        let sound = !logits.is_empty() && logits.iter().all(|l| l.is_finite());
        let result = sampler.sample(&logits, &[0, 1, 2, 99]);
        prop_assert_eq!(result.is_ok(), sound);
    }
}

#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = (0..40).map(|i| ((i * 7 % 11) as f32) / 3.0).collect();
    let history = [3, 9, 9, 30];
    let config = SamplerConfig {
        temperature: 0.7,
        top_k: 30,
        top_p: 0.9,
        min_p: 0.05,
        repeat_penalty: 1.3,
        repeat_last_n: 3,
        seed: 42,
        logit_bias: Vec::new(),
    };
    let expected = naive(&config, &logits, &history);
    let mut sampler = Sampler::new(config, logits.len()).unwrap();
    let n = 100_000;
    let mut counts = vec![0u32; logits.len()];
    for _ in 0..n {
        counts[sampler.sample(&logits, &history).unwrap() as usize] += 1;
    }
    // Pearson's statistic; the 99.9% quantile for up to 29 degrees of freedom is 58.3.
    let mut statistic = 0.0;
    for (&count, &p) in counts.iter().zip(&expected) {
        let mean = p * f64::from(n);
        if p == 0.0 {
            assert_eq!(count, 0);
        } else {
            statistic += (f64::from(count) - mean).powi(2) / mean;
        }
    }
    assert!(statistic < 58.3, "{statistic}");
}

#[test]
fn seeds_reproduce_and_differ() {
    let logits = vec![0.5; 1000];
    let run = |seed| {
        let mut sampler = Sampler::new(SamplerConfig { seed, ..open() }, 1000).unwrap();
        (0..20)
            .map(|_| sampler.sample(&logits, &[]).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn penalties_reach_back_as_far_as_they_should() {
    let logits = [2.0, 1.5, -1.0, 1.0];
    let config = SamplerConfig {
        repeat_penalty: 2.0,
        repeat_last_n: 2,
        ..SamplerConfig::greedy()
    };
    let mut sampler = Sampler::new(config, 4).unwrap();
    let mut best = |history: &[u32]| sampler.sample(&logits, history).unwrap();
    assert_eq!(best(&[]), 0);
    assert_eq!(best(&[0]), 1);
    assert_eq!(
        best(&[0, 0]),
        1,
        "penalised once: 2 / 2 = 1 ties with token 3, 1.5 is best"
    );
    assert_eq!(
        best(&[0, 1]),
        0,
        "1 against 0.75 and 1: the lowest id of equals"
    );
    assert_eq!(best(&[0, 2, 3]), 0, "out of the window");
    assert_eq!(best(&[9, 400]), 0, "ids outside the vocabulary");
}

#[test]
fn nothing_is_allocated_after_start_up() {
    let logits: Vec<f32> = (0..5000).map(|i| (i % 97) as f32 * 0.1).collect();
    for (top_k, repeat_penalty) in [(0, 1.0), (0, 1.2), (40, 1.0), (4000, 1.2), (9000, 1.0)] {
        let config = SamplerConfig {
            top_k,
            top_p: 0.99,
            repeat_penalty,
            ..Default::default()
        };
        let mut sampler = Sampler::new(config, logits.len()).unwrap();
        let buffers = |s: &Sampler| {
            let capacities = (s.adjusted.capacity(), s.candidates.capacity());
            (s.adjusted.as_ptr(), s.candidates.as_ptr(), capacities)
        };
        let before = buffers(&sampler);
        for _ in 0..10 {
            sampler.sample(&logits, &[1, 2, 3]).unwrap();
            assert_eq!(buffers(&sampler), before, "top_k {top_k}");
        }
    }
    let greedy = Sampler::new(SamplerConfig::greedy(), 5000).unwrap();
    assert_eq!(
        (greedy.candidates.capacity(), greedy.adjusted.capacity()),
        (0, 0)
    );
}

#[test]
fn extremes_are_drawn_soundly() {
    for logits in [
        [f32::MIN, f32::MAX],
        [f32::MIN, f32::MIN],
        [f32::MAX, f32::MAX],
    ] {
        for temperature in [f32::MIN_POSITIVE, 1.0, 100.0] {
            let config = SamplerConfig {
                temperature,
                repeat_penalty: 2.0,
                ..SamplerConfig::default()
            };
            let mut sampler = Sampler::new(config, 2).unwrap();
            let id = sampler.sample(&logits, &[0, 1]).unwrap();
            assert!(logits[id as usize] == logits[0].max(logits[1]));
        }
    }
}

#[test]
fn parameters_out_of_range_name_the_flag() {
    type Change = fn(&mut SamplerConfig);
    let wrong: [(&str, Change); 9] = [
        ("temperature", |c| c.temperature = -0.1),
        ("temperature", |c| c.temperature = f32::NAN),
        ("temperature", |c| c.temperature = f32::INFINITY),
        ("top_p", |c| c.top_p = 1.01),
        ("top_p", |c| c.top_p = f32::NAN),
        ("min_p", |c| c.min_p = -0.01),
        ("min_p", |c| c.min_p = 2.0),
        ("repeat_penalty", |c| c.repeat_penalty = 0.0),
        ("repeat_penalty", |c| c.repeat_penalty = f32::INFINITY),
    ];
    for (flag, change) in wrong {
        let mut config = SamplerConfig::default();
        change(&mut config);
        let message = Sampler::new(config, 10).unwrap_err().to_string();
        assert!(
            message.starts_with(flag) && message.contains("out of range"),
            "{message}"
        );
    }
}

#[test]
fn unsound_logits_are_errors() {
    let mut sampler = Sampler::new(SamplerConfig::greedy(), 3).unwrap();
    for logits in [
        &[1.0, f32::NAN, 0.0][..],
        &[1.0, 0.0, f32::INFINITY],
        &[1.0, 2.0],
        &[],
    ] {
        let message = sampler.sample(logits, &[]).unwrap_err().to_string();
        assert!(message.starts_with("logits: "), "{message}");
    }
    assert_eq!(
        sampler.sample(&[1.0, 2.0, 2.0], &[]).unwrap(),
        1,
        "usable afterwards"
    );
}

#[test]
fn tokens_can_be_excluded_and_forced() {
    let logits = [1.0, 9.0, 8.0, 0.0];
    let choose = |logit_bias: &[(u32, f32)], config: SamplerConfig| {
        let logit_bias = logit_bias.to_vec();
        let mut sampler = Sampler::new(
            SamplerConfig {
                logit_bias,
                ..config
            },
            4,
        )
        .unwrap();
        sampler.sample(&logits, &[]).unwrap()
    };
    let excluded = [(1, f32::NEG_INFINITY), (1, 3.0)];
    assert_eq!(choose(&excluded, SamplerConfig::greedy()), 2);
    for seed in 0..50 {
        let config = SamplerConfig {
            temperature: 100.0,
            seed,
            ..open()
        };
        assert_ne!(choose(&excluded, config.clone()), 1);
        assert_eq!(choose(&[(3, 1e9)], config), 3);
    }
    // If all are, one is chosen all the same.
    let all: Vec<(u32, f32)> = (0..4).map(|id| (id, f32::NEG_INFINITY)).collect();
    choose(&all, SamplerConfig::default());
}

#[test]
fn bad_biases_are_named() {
    let refused = |bias: (u32, f32)| {
        let config = SamplerConfig {
            logit_bias: vec![bias],
            ..open()
        };
        Sampler::new(config, 4).unwrap_err().to_string()
    };
    assert!(
        refused((4, 1.0)).contains("token 4"),
        "{}",
        refused((4, 1.0))
    );
    assert!(refused((1, f32::NAN)).contains("logit_bias"));
    assert!(refused((1, f32::INFINITY)).contains("token 1"));
}
