//! The neuron cache: whether there is one, and how large.

use forebay_models::bundle::{DirectoryEntry, FfnGeometry, FfnLayout};
use forebay_models::network::Content;

use super::{
    DIRECTORY_BYTES, NeuronCachePlan, PAGE, Pipeline, Planner, Residency, Sparsity, is_neurons,
    streamable,
};

/// Bytes of a buffer for coalesced neuron reads.
const STAGING_BYTES: usize = 64 << 10;
/// Neuron read buffers take at most 1/`STAGING_SHARE` of the weight memory.
const STAGING_SHARE: u64 = 16;
/// Neuron read buffers per core.
const STAGING_SLOTS: usize = 32;

impl Planner<'_> {
    /// Whether neurons are cached whole, because predictors name them before their Gate is known.
    fn caches_bundles(&self) -> bool {
        self.request.sparsity == Sparsity::Predicted
    }

    /// Whether everything except the single neurons fits, together with a useful cache.
    pub(super) fn all_but_neurons_fits(&self) -> bool {
        let Some(g) = self.neuron_geometry() else {
            return false;
        };
        let resident: u64 = streamable(self.bundle)
            .map(|(_, e)| match e.content {
                Content::Neurons(_) => self.gate_bytes(e),
                _ => e.padded_len() as u64,
            })
            .sum();
        resident + self.least_neuron_cache(&g).max(self.reserved()) <= self.left
    }

    /// Bytes reserved for the neuron cache, if there is one.
    pub(super) fn reserved(&self) -> u64 {
        match self.neuron_geometry() {
            Some(_) => self.request.neuron_cache.min(self.left),
            None => 0,
        }
    }

    /// Bytes of a cluster's Gate rows, as pinned.
    fn gate_bytes(&self, e: &DirectoryEntry) -> u64 {
        if self.caches_bundles() {
            return 0;
        }
        let geometry = self.bundle.meta.geometry(e.content);
        let row = geometry.map_or(0, FfnGeometry::gate_row);
        (e.count as usize * row).next_multiple_of(PAGE) as u64
    }

    /// Bytes of a neuron read buffer: large enough to join neighbours in one read, but all buffers together take little
    /// of the memory. It holds at least one neuron, wherever in a page the neuron starts.
    fn staging_bytes(&self, slot_bytes: usize) -> usize {
        let one = (slot_bytes + 2 * PAGE).next_multiple_of(PAGE);
        let buffers = (self.request.threads * STAGING_SLOTS) as u64;
        let share = (self.request.weight_bytes / STAGING_SHARE / buffers) as usize;
        (share / PAGE * PAGE).clamp(one, STAGING_BYTES.max(one))
    }

    /// Bytes of the smallest useful neuron cache over all cores, read buffers included.
    fn least_neuron_cache(&self, g: &FfnGeometry) -> u64 {
        let (slot, slots) = (self.slot_bytes(g), self.least_slots(g));
        let per_core = STAGING_SLOTS * self.staging_bytes(slot) + slots * (slot + DIRECTORY_BYTES);
        (self.request.threads * per_core) as u64
    }

    /// Slots of the smallest useful neuron cache of one core.
    fn least_slots(&self, g: &FfnGeometry) -> usize {
        match self.request.pipeline {
            // Two clusters whose neurons are all alive.
            Pipeline::Cluster => 2 * g.neurons,
            // What a core owns of a layer: it reads all of that before it computes any.
            Pipeline::Matrix | Pipeline::None => {
                let clusters = self.bundle.meta.network.widest_ffn().div_ceil(g.neurons);
                clusters.div_ceil(self.request.threads) * g.neurons
            }
        }
    }

    /// The largest neuron geometry, if the FFN can be cached by neuron.
    pub(super) fn neuron_geometry(&self) -> Option<FfnGeometry> {
        let ffns = &self.bundle.meta.ffns;
        // Beside experts, which are cached as a whole, the other neurons are few.
        let usable = self.request.sparsity != Sparsity::Dense
            && !self.bundle.meta.has_experts()
            && ffns.iter().flatten().all(|g| g.layout == FfnLayout::Neuron);
        ffns.iter()
            .flatten()
            .copied()
            .filter(|_| usable)
            .max_by_key(FfnGeometry::bundle_bytes)
    }

    /// Bytes of a slot of the neuron cache.
    fn slot_bytes(&self, g: &FfnGeometry) -> usize {
        let bytes = if self.caches_bundles() {
            g.bundle_bytes()
        } else {
            g.up_down_bytes()
        };
        bytes.next_multiple_of(64)
    }

    /// Pins Gate rows, unless whole neurons are cached, and gives the rest to the neuron cache.
    pub(super) fn cache_neurons(&mut self) {
        let Some(g) = self.neuron_geometry() else {
            return;
        };
        let threads = self.request.threads as u64;
        let slot_bytes = self.slot_bytes(&g);
        let mut cache = NeuronCachePlan {
            slots: 0,
            slot_bytes,
            staging: STAGING_SLOTS,
            staging_bytes: self.staging_bytes(slot_bytes),
            least_slots: 0,
        };
        let staging = threads * (cache.staging * cache.staging_bytes) as u64;
        let least = self.least_neuron_cache(&g);
        if self.left < least {
            // Too little for a useful cache: whole clusters are streamed, some of them pinned.
            self.pin_spread(is_neurons);
            return;
        }
        let ffn: Vec<(usize, u64)> = streamable(self.bundle)
            .filter(|(_, e)| is_neurons(e))
            .map(|(i, e)| (i, self.gate_bytes(e)))
            .collect();
        if self.caches_bundles() {
            for &(i, _) in &ffn {
                self.plan.residency[i] = Residency::Neurons;
            }
        } else {
            self.spread(&ffn, self.left - least, Residency::GatePinned);
        }
        let per_slot = slot_bytes + DIRECTORY_BYTES;
        cache.slots = ((self.left - staging) / threads) as usize / per_slot;
        // No core needs more slots than it owns neurons.
        let neurons = self.cacheable_neurons();
        cache.slots = cache.slots.min(neurons.max(1));
        cache.least_slots = self.least_slots(&g).min(cache.slots);
        self.left -= staging + threads * (cache.slots * per_slot) as u64;
        self.plan.neuron_cache = cache;
    }

    /// Maximum number of neurons that one core owns and may cache.
    fn cacheable_neurons(&self) -> usize {
        let mut count = vec![0; self.request.threads];
        for (i, e) in streamable(self.bundle) {
            if self.plan.residency[i].is_by_neuron() {
                count[usize::from(self.plan.owner[i])] += e.count as usize;
            }
        }
        count.into_iter().max().unwrap_or(0)
    }
}
