//! How prompts are preloaded: from how many tokens on, through how large a window, and how much of the neuron cache
//! has to be missing before that pays.

use forebay_models::bundle::{Bundle, DirectoryEntry};
use serde::Serialize;

use crate::cost::NEURON_DEPTH;
use crate::machine::DiskProfile;
use crate::residency::{Residency, ResidencyPlan};

/// Tokens from which a step is a prompt's: with one neuron in ten alive per token, most are alive for one of this many.
pub const PROMPT_TOKENS: usize = 16;
/// Most tokens of a draft: with the last token, fewer than take the graph of prompts.
pub const MOST_DRAFTED: usize = PROMPT_TOKENS - 2;
/// How much faster sequential reads are taken to be than reads of single neurons where the disk has not been measured:
/// 2.4 against 0.47 GB/s on the machine where this was.
pub const SEQUENTIAL_GAIN: f64 = 5.0;
/// The window takes at most this part of the neuron cache, or, where that is not enough for two clusters, at most
/// half of it.
const CACHE_SHARE: usize = 8;
/// Maximum buffers of the window.
const MAX_BUFFERS: usize = 64;

/// The window of one core's prefill graph where its memory is borrowed from the neuron cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PreloadWindow {
    /// Buffers of each core.
    pub buffers: usize,
    /// Bytes of each, enough for the longest cluster.
    pub buffer_bytes: usize,
}

impl PreloadWindow {
    /// As many layers ahead as the share of the neuron cache allows, at most one: the disk is as fast with less.
    /// `None` where there is no room for two clusters, or no neuron is cached.
    pub fn of(bundle: &Bundle, plan: &ResidencyPlan) -> Option<Self> {
        let cache = &plan.neuron_cache;
        let read = |(i, _): &(usize, &DirectoryEntry)| {
            let residency = plan.residency[*i];
            residency.is_by_neuron() || residency == Residency::Streamed
        };
        let clusters = || bundle.clusters.iter().enumerate().filter(read);
        let buffer_bytes = clusters().map(|(_, e)| e.padded_len()).max()?;
        let threads = plan.owner.iter().max().map_or(1, |&o| usize::from(o) + 1);
        // Bytes of a core's part of each layer's FFN.
        let mut layers = vec![0; bundle.meta.network.n_layers() * threads];
        for (i, entry) in clusters() {
            if let (Some(layer), true) = (entry.layer(), plan.residency[i].is_by_neuron()) {
                layers[layer * threads + usize::from(plan.owner[i])] += entry.padded_len();
            }
        }
        let layer = layers.into_iter().max().filter(|&bytes| bytes > 0)?;
        let store = cache.slots * cache.slot_bytes;
        let buffers = ((store / CACHE_SHARE).min(layer) / buffer_bytes).max(2);
        (buffers * buffer_bytes <= store / 2).then_some(Self {
            buffers: buffers.min(MAX_BUFFERS),
            buffer_bytes,
        })
    }
}

/// How much faster a disk reads whole clusters of `cluster_bytes`, `depth` at a time, than neurons of `neuron_bytes`.
pub fn sequential_gain(
    disk: &DiskProfile,
    (cluster_bytes, depth): (f64, usize),
    neuron_bytes: f64,
) -> f64 {
    let rate = |bytes: f64, depth| bytes / disk.seconds_per_read(bytes, depth).max(1e-12);
    let gain = rate(cluster_bytes, depth) / rate(neuron_bytes, NEURON_DEPTH);
    match gain.is_finite() {
        true => gain.max(1.0),
        false => SEQUENTIAL_GAIN,
    }
}
