//! What a profile says about a model's experts.

use std::collections::BTreeMap;

use forebay_models::network::Network;
use forebay_plans::cost::ExpertCurves;
use serde::{Deserialize, Serialize};

use super::expert_cache::ExpertMisses;

/// Statistics of the experts that the tokens of a text use: means over the layers that have any.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpertProfile {
    /// How often each expert was used, `[n_layers][experts of the layer]`.
    pub counts: Vec<Vec<u32>>,
    /// Part of a token's experts that the token so many before used, too.
    pub again: BTreeMap<usize, f64>,
    /// The same of the token before, by layer; 0 for one without experts, `[n_layers]`.
    pub again_by_layer: Vec<f64>,
    /// Part of a layer's uses that so many most used experts have.
    pub top_share: BTreeMap<usize, f64>,
    /// Different experts of a layer that so many consecutive tokens use.
    pub distinct: BTreeMap<usize, f64>,
    /// Mean weights of a token's experts, the best first, as parts of their sum.
    pub weights: Vec<f64>,
    /// Part of the neurons of a token's experts whose Gate is alive; 1 if all are computed. Profiles by earlier
    /// versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive: Option<f64>,
    /// Cores over which the simulated caches are divided.
    pub threads: usize,
    /// Misses by cache size, ascending.
    pub misses: Vec<ExpertMisses>,
}

impl ExpertProfile {
    /// Whether shares are within 0 to 1 and sizes ascend: plans are computed from them.
    pub(super) fn is_sound(&self) -> bool {
        let share = |v: f64| (0.0..=1.0).contains(&v);
        let amount = |v: &f64| *v >= 0.0 && v.is_finite();
        let point = |p: &ExpertMisses| {
            let shares = [p.cached, p.miss_rate, p.lru, p.belady];
            shares.into_iter().all(share) && [p.per_token, p.bytes].iter().all(amount)
        };
        let mut shares = self.again.values().chain(&self.again_by_layer);
        shares.all(|v| share(*v))
            && self.alive.is_none_or(share)
            && self.top_share.values().chain(&self.weights).all(amount)
            && self.distinct.values().all(amount)
            && self.misses.iter().all(point)
            && self.misses.is_sorted_by(|a, b| a.cached < b.cached)
    }

    /// Whether it can be of a model.
    pub(super) fn fits(&self, network: &Network) -> bool {
        let experts = (0..network.n_layers()).map(|l| network.experts(l).map_or(0, |e| e.count));
        self.counts.iter().map(Vec::len).eq(experts)
    }

    /// Part of the wanted clusters that a cache of a part of all of them misses, interpolated between the sizes that
    /// were tried.
    pub fn miss_rate(&self, cached: f64) -> f64 {
        1.0 - self.curves().hits(cached)
    }

    /// What plans take from it.
    pub(crate) fn curves(&self) -> ExpertCurves {
        let misses: Vec<_> = self
            .misses
            .iter()
            .map(|p| (p.cached, p.miss_rate))
            .collect();
        let routed = self.counts.iter().map(Vec::len).filter(|&n| n > 0);
        let mean = routed.clone().sum::<usize>() as f64 / routed.count().max(1) as f64;
        let distinct = self.distinct.iter().map(|(&n, &d)| (n, d / mean.max(1.0)));
        ExpertCurves::new(&misses, &distinct.collect::<Vec<_>>())
    }
}
