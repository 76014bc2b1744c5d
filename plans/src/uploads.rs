//! Streamed clusters of FFNs that a device computes in prompts. They are copied to it as they are read, through a
//! window in its memory: a place for each, which is free again once its job is over. The core that has read a cluster
//! keeps the buffer until then, and computes it itself where the device fails or no place is free.

use std::collections::BTreeMap;

use forebay_models::bundle::Bundle;
use forebay_models::network::Content;

use crate::device_formats::formats;
use crate::preload::PROMPT_TOKENS;
use crate::residency::{Residency, ResidencyPlan};

/// Most places of a core: while a job is computed, the clusters of the next one are copied.
pub const MAX_PLACES: usize = 16;
/// Of a core's stream buffers, places take at most this part: the others are read into meanwhile.
const BUFFERS_SHARE: usize = 2;
/// Places begin at multiples of this, which is enough for every device's words.
const PLACE_ALIGN: usize = 256;

/// What of every layer's streamed clusters is copied to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UploadShare {
    /// Part of them, 0 to 1.
    pub part: f64,
    /// In batches of at least so many tokens.
    pub from_tokens: usize,
}

impl UploadShare {
    /// This part in every prompt.
    pub fn always(part: f64) -> Self {
        Self {
            part: part.clamp(0.0, 1.0),
            from_tokens: PROMPT_TOKENS,
        }
    }
}

/// The window of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadWindow {
    /// Cores that have places in it.
    pub threads: usize,
    /// Places of each core.
    pub places: usize,
    /// Bytes of each.
    pub place_bytes: usize,
}

/// What a window takes of the process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadCosts {
    /// Bytes of a core's job.
    pub jobs: u64,
    /// Clusters of a core that are on their way to the device's thread.
    pub carriers: usize,
    /// Copies of the places: what the driver has on the way, and the places of a device that shares the memory.
    pub copies: u64,
}

/// Streamed clusters that are copied to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uploads {
    /// Through what.
    pub window: UploadWindow,
    /// From how many tokens on each is, by directory index.
    clusters: BTreeMap<u32, u32>,
}

impl UploadWindow {
    /// The largest window for clusters of `bundle` on each of `threads` cores that is at most a `piece` of a device's
    /// memory and takes at most `room` bytes; `None` if there is room for none, or the device computes no cluster that
    /// may be streamed.
    pub fn largest(
        bundle: &Bundle,
        threads: usize,
        room: u64,
        (piece, costs): (u64, UploadCosts),
    ) -> Option<Self> {
        let possible = |i: &usize| matches!(bundle.clusters[*i].content, Content::Neurons(_));
        let possible = (0..bundle.clusters.len()).filter(possible);
        let possible = possible.filter(|&i| formats(bundle, i).is_some());
        let longest = possible.map(|i| bundle.clusters[i].len as usize).max()?;
        let of_places = |places| Self {
            threads,
            places,
            place_bytes: longest.next_multiple_of(PLACE_ALIGN),
        };
        let mut windows = (1..=MAX_PLACES).rev().map(of_places);
        windows.find(|window| window.bytes(costs) <= room && window.device_bytes() <= piece)
    }

    /// The same with no more places than `stream_slots` buffers of a core allow.
    fn beside(self, stream_slots: usize) -> Option<Self> {
        let places = self.places.min(stream_slots / BUFFERS_SHARE);
        (places > 0).then_some(Self { places, ..self })
    }

    /// Bytes of the process's memory for all cores.
    pub fn bytes(&self, costs: UploadCosts) -> u64 {
        let per_core = costs.jobs + (costs.carriers * self.place_bytes) as u64;
        self.threads as u64 * per_core + costs.copies * self.device_bytes()
    }

    /// Bytes of the device's memory.
    pub fn device_bytes(&self) -> u64 {
        (self.threads * self.places * self.place_bytes) as u64
    }
}

impl Uploads {
    /// Of each core's streamed clusters of a layer, the part that `share` says, from the first one on: they are read
    /// first. All of a layer have the same formats: of several, those with the most bytes. `None` if there are none.
    pub fn choose(
        bundle: &Bundle,
        plan: &ResidencyPlan,
        window: UploadWindow,
        share: UploadShare,
    ) -> Option<Self> {
        let window = window.beside(plan.stream_slots)?;
        let mut clusters = BTreeMap::new();
        for layer in 0..bundle.meta.network.n_layers() {
            for own in streamed(bundle, plan, layer).values() {
                let n = (share.part * own.len() as f64).round() as usize;
                let chosen = own.iter().take(n).copied();
                clusters.extend(chosen.map(|i| (i, share.from_tokens as u32)));
            }
        }
        (!clusters.is_empty()).then_some(Self { window, clusters })
    }

    /// Its clusters, ascending, with the least number of tokens for which each is copied.
    pub fn clusters(&self) -> impl Iterator<Item = (u32, usize)> {
        self.clusters.iter().map(|(&i, &from)| (i, from as usize))
    }

    /// Bytes of all its clusters.
    pub fn bytes(&self, bundle: &Bundle) -> u64 {
        let clusters = self.clusters.keys();
        clusters
            .map(|&i| u64::from(bundle.clusters[i as usize].len))
            .sum()
    }
}

/// A layer's streamed clusters that a device can compute in one job, by core.
fn streamed(bundle: &Bundle, plan: &ResidencyPlan, layer: usize) -> BTreeMap<u16, Vec<u32>> {
    let mut groups: BTreeMap<_, (u64, BTreeMap<u16, Vec<u32>>)> = BTreeMap::new();
    for (i, entry) in bundle.clusters.iter().enumerate() {
        let is_streamed = plan.residency[i] == Residency::Streamed;
        if entry.content != Content::Neurons(layer) || !is_streamed {
            continue;
        }
        if let Some(formats) = formats(bundle, i) {
            let group = groups.entry(formats).or_default();
            group.0 += u64::from(entry.len);
            group.1.entry(plan.owner[i]).or_default().push(i as u32);
        }
    }
    let largest = groups.into_values().max_by_key(|(bytes, _)| *bytes);
    largest.map(|(_, clusters)| clusters).unwrap_or_default()
}
