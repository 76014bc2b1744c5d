//! What caches of experts miss: the engine's policy, least recently used, and the best possible, over recorded routes.
//!
//! The caches are those of the engine: clusters are divided over the cores as it divides them, every core has as many
//! cells, each of which holds one cluster, and what a token wants of a layer is held until the layer is done. Prompts
//! are simulated as if they were generated, token by token.

use std::collections::VecDeque;
use std::ops::Range;

use forebay_models::bundle::Bundle;
use forebay_models::network::Content;
use forebay_plans::expert_cache::ExpertCachePlan;
use forebay_plans::residency::assign_owners;
use forebay_stages::cache::{NeuronCache, PolicyKind};
use serde::{Deserialize, Serialize};

use super::belady::{Future, ranges};
use super::routes::Routes;

/// Misses of a cache that has room for a part of all experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpertMisses {
    /// Part of all clusters of experts that the cache holds.
    pub cached: f64,
    /// Part of the wanted clusters that are not in the warm cache.
    pub miss_rate: f64,
    /// The same with the least recently used one dropped first.
    pub lru: f64,
    /// The same of a cache that knows the future: no policy misses less.
    pub belady: f64,
    /// Clusters that a token misses.
    pub per_token: f64,
    /// Bytes of these.
    pub bytes: f64,
}

/// Clusters that were wanted and missed, and bytes of the latter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Missed {
    pub wanted: u64,
    pub missed: u64,
    pub bytes: u64,
}

impl Missed {
    /// Part of what was wanted.
    pub fn rate(&self) -> f64 {
        self.missed as f64 / self.wanted.max(1) as f64
    }

    fn plus(self, other: Self) -> Self {
        Self {
            wanted: self.wanted + other.wanted,
            missed: self.missed + other.missed,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// What one core's cache is asked for.
#[derive(Debug, Default)]
struct OfCore {
    /// Bytes of its clusters, by key.
    bytes: Vec<u32>,
    /// Keys of the clusters that tokens want, token by token and layer by layer.
    keys: Vec<u32>,
    /// End in `keys` of each token and layer, `[tokens, layers]`.
    ends: Vec<u32>,
}

/// What the caches of experts are asked for.
#[derive(Debug)]
pub(crate) struct ExpertWants {
    cores: Vec<OfCore>,
    /// Layers with experts.
    layers: usize,
    tokens: usize,
}

impl ExpertWants {
    /// What the tokens of `routes` ask `threads` cores for.
    pub fn of(bundle: &Bundle, routes: &Routes, threads: usize) -> Self {
        let network = &bundle.meta.network;
        let owners = assign_owners(bundle, threads);
        let mut cores: Vec<OfCore> = (0..threads).map(|_| OfCore::default()).collect();
        // By core, layer and expert, its keys: the directory has an expert's clusters one after the other.
        let empty = |layer| vec![0..0; network.experts(layer).map_or(0, |e| e.count)];
        let layers: Vec<Vec<Range<u32>>> = (0..network.n_layers()).map(empty).collect();
        let mut keys = vec![layers; threads];
        for (e, owner) in bundle.clusters.iter().zip(owners) {
            let (Content::Experts(layer), core) = (e.content, usize::from(owner)) else {
                continue;
            };
            let Some(expert) = network.expert_of(e.content, e.first as usize) else {
                continue;
            };
            let own = &mut keys[core][layer][usize::from(expert)];
            let key = cores[core].bytes.len() as u32;
            let first = if own.start < own.end { own.start } else { key };
            *own = first..key + 1;
            cores[core].bytes.push(e.padded_len() as u32);
        }
        let mut chosen = Vec::new();
        for t in 0..routes.tokens {
            for (l, layer) in routes.layers.iter().enumerate().filter(|(_, l)| l.used > 0) {
                chosen.clear();
                chosen.extend_from_slice(layer.of(t));
                chosen.sort_unstable();
                for (core, keys) in cores.iter_mut().zip(&keys) {
                    let wanted = chosen.iter().flat_map(|&e| keys[l][usize::from(e)].clone());
                    core.keys.extend(wanted);
                    core.ends.push(core.keys.len() as u32);
                }
            }
        }
        Self {
            cores,
            layers: routes.routed().count(),
            tokens: routes.tokens,
        }
    }

    /// Cells per core of a cache for a part `cached` of all clusters.
    fn cells(&self, cached: f64) -> usize {
        let all: usize = self.cores.iter().map(|core| core.bytes.len()).sum();
        let own = all as f64 * cached / self.cores.len().max(1) as f64;
        (own.ceil() as usize).max(ExpertCachePlan::LEAST_CELLS)
    }

    /// Warm caches for a part `cached` of all clusters: the first half of the tokens does not count.
    pub fn at(&self, cached: f64, policy: PolicyKind) -> ExpertMisses {
        let from = self.tokens / 2;
        let own = self.misses(cached, policy, from);
        let lru = match policy {
            PolicyKind::Lru => own,
            _ => self.misses(cached, PolicyKind::Lru, from),
        };
        let per_token = |n: u64| n as f64 / (self.tokens - from).max(1) as f64;
        ExpertMisses {
            cached,
            miss_rate: own.rate(),
            lru: lru.rate(),
            belady: self.least_misses(cached, from).rate(),
            per_token: per_token(own.missed),
            bytes: per_token(own.bytes),
        }
    }

    /// Misses with a policy of the tokens after the first `from`.
    pub fn misses(&self, cached: f64, policy: PolicyKind, from: usize) -> Missed {
        let cells = self.cells(cached);
        let cores = self.cores.iter();
        let each = cores.map(|core| core.run(policy, cells, (self.layers, from * self.layers)));
        each.fold(Missed::default(), Missed::plus)
    }

    /// The same of a cache that knows the future.
    pub fn least_misses(&self, cached: f64, from: usize) -> Missed {
        let (cells, first) = (self.cells(cached), from * self.layers);
        let cores = self.cores.iter().map(|core| {
            let mut all = core.wanted(first);
            let future = Future::of(&core.keys, &core.ends, core.bytes.len());
            future.misses(cells, |set, key| {
                if set >= first {
                    all.missed += 1;
                    all.bytes += u64::from(core.bytes[key as usize]);
                }
            });
            all
        });
        cores.fold(Missed::default(), Missed::plus)
    }
}

impl OfCore {
    /// What is wanted from set `first` on.
    fn wanted(&self, first: usize) -> Missed {
        let wanted = ranges(&self.ends).skip(first).map(|range| range.len());
        Missed {
            wanted: wanted.sum::<usize>() as u64,
            ..Missed::default()
        }
    }

    /// Runs the policy; misses count from set `first` on, and a token has `layers` sets.
    fn run(&self, policy: PolicyKind, cells: usize, (layers, first): (usize, usize)) -> Missed {
        let mut cache = NeuronCache::new(policy, self.bytes.len(), cells);
        let mut all = self.wanted(first);
        let (mut held, mut missing) = (VecDeque::new(), Vec::new());
        for (set, range) in ranges(&self.ends).enumerate() {
            missing.clear();
            // What is in memory is held first, so that none of it makes room for the rest.
            for &key in &self.keys[range] {
                match cache.hold(key as usize) {
                    Some(cell) => held.push_back(cell),
                    None => missing.push(key),
                }
            }
            for &key in &missing {
                if set >= first {
                    all.missed += 1;
                    all.bytes += u64::from(self.bytes[key as usize]);
                }
                // Where all cells are in use, the first one is done before the next read.
                while cache.holds() >= cells
                    && let Some(done) = held.pop_front()
                {
                    cache.release(done);
                }
                held.extend(cache.admit(key as usize));
            }
            held.drain(..).for_each(|cell| cache.release(cell));
            if (set + 1).is_multiple_of(layers) {
                cache.end_token();
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    /// One core's clusters of 10 bytes, wanted set by set.
    fn core(clusters: usize, sets: &[Vec<u32>]) -> OfCore {
        let mut core = OfCore {
            bytes: vec![10; clusters],
            ..OfCore::default()
        };
        for set in sets {
            core.keys.extend(set);
            core.ends.push(core.keys.len() as u32);
        }
        core
    }

    fn wants(cores: Vec<OfCore>, layers: usize, tokens: usize) -> ExpertWants {
        ExpertWants {
            cores,
            layers,
            tokens,
        }
    }

    #[test]
    fn a_cycle_longer_than_the_cache_defeats_recency_alone() {
        // Ten tokens, six clusters in turn, one per token and layer; a cache has four cells at least.
        let sets: Vec<Vec<u32>> = (0..60).map(|i| vec![i % 6]).collect();
        let wants = wants(vec![core(6, &sets)], 2, 30);
        let missed = wants.misses(0.5, PolicyKind::Lru, 15);
        assert_eq!((missed.wanted, missed.missed, missed.bytes), (30, 30, 300));
        let point = wants.at(0.5, PolicyKind::Lru);
        assert_eq!(
            (point.miss_rate, point.lru, point.per_token),
            (1.0, 1.0, 2.0)
        );
        // Two of six are missed each time.
        assert!((point.belady - 1.0 / 3.0).abs() < 1e-9, "{point:?}");
        let whole = wants.at(1.0, PolicyKind::Frequency);
        assert_eq!(
            (whole.miss_rate, whole.belady, whole.bytes),
            (0.0, 0.0, 0.0)
        );
    }

    #[test]
    fn more_than_fits_at_once_is_read_through_the_cells() {
        let sets = vec![(0..6).collect::<Vec<u32>>(); 4];
        let missed = core(6, &sets).run(PolicyKind::Lru, 4, (1, 2));
        // What is in memory is used before it makes room.
        assert_eq!((missed.wanted, missed.missed), (12, 4));
    }

    proptest! {
        /// No policy misses less than the one that knows the future, with caches of any size.
        #[test]
        fn nothing_is_better_than_the_future(
            sets in vec(btree_set(0u32..24, 0..6), 2..60),
            others in vec(btree_set(0u32..24, 0..6), 2..60),
            share in 0.0f64..1.0,
        ) {
            let n = sets.len().min(others.len());
            let of = |sets: &[BTreeSet<u32>]| {
                let sets = sets[..n].iter().map(|set| set.iter().copied().collect());
                core(24, &sets.collect::<Vec<Vec<u32>>>())
            };
            let wants = wants(vec![of(&sets), of(&others)], 1, n);
            let least = wants.least_misses(share, 0);
            for policy in PolicyKind::ALL {
                let missed = wants.misses(share, policy, 0);
                prop_assert_eq!(missed.wanted, least.wanted);
                prop_assert!(least.missed <= missed.missed, "{}: {:?} {:?}", policy, least, missed);
            }
        }
    }
}
