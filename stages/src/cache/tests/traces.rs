//! What the policies are known to do on planted traces.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use forebay_models::random::split_mix;

use crate::cache::{NeuronCache, PolicyKind};

/// Neurons used by each token.
type Trace = Vec<Vec<usize>>;

/// Share of a trace's accesses in `counted` tokens that are hits, and the cache after it.
fn run(kind: PolicyKind, slots: usize, trace: &Trace, counted: Range<usize>) -> (f64, NeuronCache) {
    let neurons = trace.iter().flatten().max().map_or(0, |n| n + 1);
    let mut cache = NeuronCache::new(kind, neurons, slots);
    let (mut hits, mut accesses) = (0, 0);
    for (token, used) in trace.iter().enumerate() {
        for &neuron in used {
            let hit = cache.hold(neuron);
            if counted.contains(&token) {
                accesses += 1;
                hits += usize::from(hit.is_some());
            }
            let slot = hit.or_else(|| cache.admit(neuron));
            cache.release(slot.expect("nothing else is held"));
        }
        cache.end_token();
    }
    (f64::from(hits as u32) / f64::from(accesses), cache)
}

fn hit_rate(kind: PolicyKind, slots: usize, trace: &Trace) -> f64 {
    run(kind, slots, trace, 0..trace.len()).0
}

/// Uniform in 0..1, from a counter.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        split_mix(&mut self.0) as f64 / 2f64.powi(64)
    }

    /// A rank below `n`, rank r with a probability proportional to 1 / (r + 1).
    fn zipf(&mut self, n: usize) -> usize {
        let total: f64 = (1..=n).map(|r| 1.0 / r as f64).sum();
        let mut rest = self.next() * total;
        (0..n)
            .find(|&r| {
                rest -= 1.0 / (r + 1) as f64;
                rest < 0.0
            })
            .unwrap_or(n - 1)
    }
}

const NEURONS: usize = 500;

/// Tokens of 20 independent accesses; the neuron of rank r is `r * 7 + shift`, modulo [`NEURONS`].
fn skewed(tokens: usize, shift: usize, random: &mut Random) -> Trace {
    (0..tokens)
        .map(|_| {
            (0..20)
                .map(|_| (random.zipf(NEURONS) * 7 + shift) % NEURONS)
                .collect()
        })
        .collect()
}

#[test]
fn frequency_is_near_the_best_on_a_stationary_skew_and_recency_behind() {
    let trace = skewed(1500, 0, &mut Random(1));
    for slots in [25, 50, 100, 200] {
        let rate = |kind| hit_rate(kind, slots, &trace);
        let (frequency, two_queue, lru) = (
            rate(PolicyKind::Frequency),
            rate(PolicyKind::TwoQueue),
            rate(PolicyKind::Lru),
        );
        // The best there is where accesses are independent: the most popular stay for ever.
        let share = |n: usize| (1..=n).map(|r| 1.0 / r as f64).sum::<f64>();
        let best = share(slots) / share(NEURONS);
        assert!(two_queue > lru && frequency > lru, "{slots} slots");
        // In a cache of one or two tokens' uses, most of what is there was used just now.
        assert!(frequency > two_queue || slots < 100, "{slots} slots");
        assert!(
            frequency > 0.94 * best,
            "{frequency} of {best}, {slots} slots"
        );
    }
}

#[test]
fn a_cycle_longer_than_the_cache_defeats_recency() {
    let trace: Trace = vec![(0..40).collect(); 20];
    assert_eq!(hit_rate(PolicyKind::Lru, 39, &trace), 0.0);
    assert_eq!(hit_rate(PolicyKind::TwoQueue, 39, &trace), 0.0);
    // It is a matter of one slot: only the first round misses.
    assert_eq!(hit_rate(PolicyKind::Lru, 40, &trace), 19.0 / 20.0);
}

/// Ten neurons of every token among neurons that are never used again.
#[test]
fn neurons_used_once_per_token_stay_by_frequency_and_pass_by_recency() {
    let mut fresh = 10..;
    let trace: Trace = (0..200)
        .map(|_| (0..10).chain(fresh.by_ref().take(30)).collect())
        .collect();
    let late = 100..200;
    let hits = |kind| run(kind, 20, &trace, late.clone()).0 * 40.0;
    assert_eq!(hits(PolicyKind::Lru), 0.0);
    assert_eq!(hits("window:3".parse().expect("a window")), 0.0);
    // Their counts grow even while they come and go, until they stay.
    assert_eq!(hits(PolicyKind::Frequency), 10.0);
}

#[test]
fn two_queues_and_counts_keep_what_was_used_often_through_a_scan() {
    let mut trace: Trace = vec![(0..10).collect(); 4];
    trace.push((10..200).collect());
    trace.push((0..10).collect());
    let last = |kind| run(kind, 20, &trace, 5..6).0;
    assert_eq!(last(PolicyKind::TwoQueue), 1.0);
    assert_eq!(last(PolicyKind::Frequency), 1.0);
    assert_eq!(last(PolicyKind::Lru), 0.0);
}

#[test]
fn nothing_is_ever_found_without_a_cache() {
    let trace = skewed(50, 0, &mut Random(2));
    let (rate, cache) = run(PolicyKind::NoCache, 100, &trace, 0..50);
    assert_eq!(rate, 0.0);
    assert!(cache.is_empty());
}

#[test]
fn a_window_keeps_exactly_the_last_tokens_neurons() {
    let trace = skewed(40, 0, &mut Random(3));
    for tokens in [1, 2, 5, 60] {
        let kind: PolicyKind = format!("window:{tokens}").parse().expect("a window");
        for end in 1..=trace.len() {
            let (_, cache) = run(kind, NEURONS, &trace[..end].to_vec(), 0..end);
            let mut contents = Vec::new();
            cache.contents(&mut contents);
            let kept: BTreeSet<usize> = contents.iter().map(|&n| n as usize).collect();
            let last = &trace[end.saturating_sub(tokens)..end];
            let expected: BTreeSet<usize> = last.iter().flatten().copied().collect();
            assert_eq!(kept, expected, "{kind} after {end} tokens");
            assert_eq!(contents.len(), kept.len());
        }
    }
}

/// Hits in the last `counted` tokens when the least count of all time goes first.
fn without_ageing(slots: usize, trace: &Trace, counted: usize) -> f64 {
    let mut counts: HashMap<usize, u32> = HashMap::new();
    let mut here: BTreeSet<usize> = BTreeSet::new();
    let (mut hits, mut accesses) = (0.0, 0.0);
    for (token, used) in trace.iter().enumerate() {
        for &neuron in used {
            *counts.entry(neuron).or_default() += 1;
            if token + counted >= trace.len() {
                accesses += 1.0;
                hits += f64::from(u8::from(here.contains(&neuron)));
            }
            if here.insert(neuron) && here.len() > slots {
                let others = here.iter().filter(|&&n| n != neuron);
                let victim = *others.min_by_key(|n| counts[n]).expect("others");
                here.remove(&victim);
            }
        }
    }
    hits / accesses
}

/// After the popular neurons have changed, counts that age find the new ones.
#[test]
fn frequency_adapts() {
    let (before, after, slots) = (1500, 300, 50);
    let mut random = Random(4);
    let mut trace = skewed(before, 0, &mut random);
    trace.extend(skewed(after, 250, &mut random));
    let kind = PolicyKind::Frequency;
    let old = run(kind, slots, &trace, before - 100..before).0;
    let new = run(kind, slots, &trace, trace.len() - 100..trace.len()).0;
    let stale = without_ageing(slots, &trace, 100);
    assert!(new > 0.95 * old, "{new} after {old}");
    assert!(new > stale + 0.05, "{new} with ageing, {stale} without");
}
