//! P_miss(m): what a cache of neurons misses, by its size.

use serde::{Deserialize, Serialize};

/// Misses of a warm cache that holds a part of all neurons.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MissSample {
    /// Part of all neurons that the cache holds.
    pub cached: f64,
    /// Reads per token, neighbours joined.
    pub reads: f64,
    /// Bytes of these reads.
    pub bytes: f64,
}

/// Misses by size, ascending, with linear interpolation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MissCurve {
    /// From an empty cache to one that holds everything.
    samples: Vec<MissSample>,
}

impl MissCurve {
    /// From samples in any order; `empty` is what a token reads without a cache. A larger cache never counts as worse
    /// than a smaller one, even if noisy samples show that.
    pub fn new(empty: MissSample, samples: &[MissSample]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.retain(|s| s.cached > 0.0);
        sorted.sort_by(|a, b| a.cached.total_cmp(&b.cached));
        let mut curve = vec![MissSample {
            cached: 0.0,
            ..empty
        }];
        for sample in sorted {
            let last = curve[curve.len() - 1];
            curve.push(MissSample {
                cached: sample.cached,
                reads: sample.reads.min(last.reads),
                bytes: sample.bytes.min(last.bytes),
            });
        }
        if curve[curve.len() - 1].cached < 1.0 {
            curve.push(MissSample {
                cached: 1.0,
                reads: 0.0,
                bytes: 0.0,
            });
        }
        Self { samples: curve }
    }

    /// The assumption about a model that has not been profiled: `wanted` neurons per token of `bytes` each, all equally
    /// likely.
    pub fn unknown(wanted: f64, bytes: f64) -> Self {
        let empty = MissSample {
            cached: 0.0,
            reads: wanted,
            bytes: wanted * bytes,
        };
        Self::new(empty, &[])
    }

    /// The misses of a cache of any size.
    pub fn at(&self, cached: f64) -> MissSample {
        let cached = cached.clamp(0.0, 1.0);
        let above = self.samples.iter().position(|s| s.cached >= cached);
        let above = above.unwrap_or(self.samples.len() - 1).max(1);
        let (low, high) = (self.samples[above - 1], self.samples[above]);
        let part = (cached - low.cached) / (high.cached - low.cached).max(1e-12);
        let between = |a: f64, b: f64| a + (b - a) * part;
        MissSample {
            cached,
            reads: between(low.reads, high.reads),
            bytes: between(low.bytes, high.bytes),
        }
    }
}
