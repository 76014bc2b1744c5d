//! Which pinned clusters are evicted while the budget is smaller than at the start, and in which order; they are
//! streamed then.

use forebay_models::bundle::Bundle;
use forebay_models::network::Content;

use crate::residency::{Residency, ResidencyPlan};

/// Buffers of the stream window that a core which streams nothing takes out of the memory that it releases.
pub const WINDOW: usize = 4;

/// Pinned clusters that can be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivingWay {
    /// Directory indices, in the order of eviction.
    pub clusters: Vec<u32>,
    /// Bytes that evicting the first `n` of them releases, `[clusters + 1]`.
    bytes: Vec<u64>,
}

impl GivingWay {
    /// Those of `plan`: FFN clusters that fit the buffers of a core which streams anyway, and all of a core which does
    /// not; none if neurons are cached. The first ones, however many, are spread evenly over the layers, as pinned
    /// clusters are, and over the cores.
    pub fn new(bundle: &Bundle, plan: &ResidencyPlan) -> Self {
        let threads = plan.owner.iter().max().map_or(0, |&most| most + 1);
        let mut streams = vec![false; usize::from(threads)];
        for (residency, &owner) in plan.residency.iter().zip(&plan.owner) {
            streams[usize::from(owner)] |= *residency == Residency::Streamed;
        }
        let can = |&i: &usize| {
            let entry = &bundle.clusters[i];
            let fits = !streams[usize::from(plan.owner[i])]
                || entry.padded_len() <= plan.stream_slot_bytes;
            matches!(entry.content, Content::HotNeurons(_) | Content::Neurons(_))
                && plan.residency[i] == Residency::Pinned
                // If neurons are cached, the prefill graph's program is compiled once, at the start: what gave way
                // would still be pinned in it. The planner never pins FFN clusters beside such a cache.
                && plan.neuron_cache.slots == 0
                // Where a device fails, any core may have to compute them.
                && !plan.device_places.contains_key(&(i as u32))
                && fits
        };
        let all: Vec<usize> = (0..bundle.clusters.len()).filter(can).collect();
        let of_core = |rank: u16| {
            let own = all.iter().filter(move |&&i| plan.owner[i] == rank);
            scattered(own.map(|&i| i as u32).collect())
        };
        let cores: Vec<Vec<u32>> = (0..threads).map(of_core).collect();
        let longest = cores.iter().map(Vec::len).max().unwrap_or(0);
        let in_turn = (0..longest).flat_map(|i| cores.iter().filter_map(move |core| core.get(i)));
        let clusters: Vec<u32> = in_turn.copied().collect();
        let len = |cluster: u32| bundle.clusters[cluster as usize].padded_len() as u64;
        // What a core without a window keeps of the memory that it releases.
        let window = |(core, streams): (&Vec<u32>, &bool)| match streams {
            true => 0,
            false => WINDOW as u64 * core.iter().map(|&c| len(c)).max().unwrap_or(0),
        };
        let mut kept: Vec<u64> = cores.iter().zip(&streams).map(window).collect();
        let mut bytes = vec![0];
        let mut sum = 0;
        for &cluster in &clusters {
            let kept = &mut kept[usize::from(plan.owner[cluster as usize])];
            let back = (*kept).min(len(cluster));
            *kept -= back;
            sum += len(cluster) - back;
            bytes.push(sum);
        }
        Self { clusters, bytes }
    }

    /// Bytes that evicting the first `n` clusters releases.
    pub fn bytes_of(&self, n: usize) -> u64 {
        self.bytes
            .get(n)
            .or(self.bytes.last())
            .copied()
            .unwrap_or(0)
    }

    /// How many of the first clusters have to be evicted to release `bytes`; all of them if that is not enough.
    pub fn enough_for(&self, bytes: u64) -> usize {
        let fewer = self.bytes.partition_point(|&b| b < bytes);
        fewer.min(self.clusters.len())
    }
}

/// The same in an order in which the first ones, however many, are scattered over all: by the reversed bits of their
/// index.
fn scattered(clusters: Vec<u32>) -> Vec<u32> {
    let mut places: Vec<usize> = (0..clusters.len()).collect();
    places.sort_by_key(|place| place.reverse_bits());
    places.into_iter().map(|place| clusters[place]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_lie_scattered() {
        let order = scattered((0..100).collect());
        for n in [8, 16, 32, 64] {
            for part in 0..4 {
                let there = order[..n].iter().filter(|&&c| c / 25 == part).count();
                assert!(there.abs_diff(n / 4) <= n / 8, "{there} of {n} in {part}");
            }
        }
        let mut all = order;
        all.sort_unstable();
        assert!(all.into_iter().eq(0..100));
    }

    #[test]
    fn enough_is_enough_and_no_more() {
        let some = GivingWay {
            clusters: vec![7, 3, 5],
            bytes: vec![0, 10, 30, 35],
        };
        let pairs = [(0, 0), (1, 1), (10, 1), (11, 2), (30, 2), (31, 3), (99, 3)];
        for (bytes, n) in pairs {
            assert_eq!(some.enough_for(bytes), n, "{bytes}");
        }
        assert_eq!((some.bytes_of(2), some.bytes_of(9)), (30, 35));
        assert_eq!(GivingWay::default().enough_for(5), 0);
        assert_eq!(GivingWay::default().bytes_of(5), 0);
    }
}
