//! Requests to the neuron store, and its answers.

use forebay_models::bundle::FfnGeometry;
use forebay_plans::residency::Loading;
use forebay_queues::slab::Slot;

use crate::cache::PolicyKind;
use crate::live_mask::LiveMask;

/// Parts of a neuron's bundle, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts(u8);

impl Parts {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The Gate row.
    pub const GATE: Self = Self(1);
    /// Up row and Down column.
    pub const UP_DOWN: Self = Self(2);
    /// The whole bundle.
    pub const BUNDLE: Self = Self(3);

    /// Whether all of `other` is in the set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Where a cluster's neurons are.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Index of the cluster's first neuron among the core's cached neurons.
    pub base: usize,
    /// Offset of the cluster in the file.
    pub file_offset: u64,
    /// Storage of the layer's FFN.
    pub geometry: FfnGeometry,
    /// Directory index of the cluster.
    pub cluster: usize,
}

/// A cluster of which some neurons are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The core's number for this flight, unique while it lasts.
    pub flight: usize,
    /// The cluster.
    pub place: Place,
    /// Wanted neurons, counted within the cluster.
    pub live: LiveMask,
    /// Which of their parts are wanted.
    pub parts: Parts,
}

/// A read to be started.
#[derive(Debug)]
pub struct NeuronRead {
    /// Identifies the read when it completes.
    pub id: usize,
    /// Offset in the file, page-aligned.
    pub offset: u64,
    /// Bytes, a multiple of the page.
    pub len: usize,
    /// Buffer to fill.
    pub slot: Slot,
    /// The flight that waits for it.
    pub flight: usize,
}

/// A neuron whose bytes do not match their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptNeuron {
    /// Directory index of its cluster.
    pub cluster: usize,
    /// Neuron within the cluster.
    pub neuron: usize,
    /// The flight that has no reads left after this one, if any.
    pub ready: Option<usize>,
}

/// Cache statistics of one core, in neurons.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheCounts {
    /// Wanted neurons found in memory.
    pub hits: u64,
    /// Wanted neurons that had to be read.
    pub misses: u64,
}

/// Memory of a core's neuron cache.
#[derive(Debug, Default)]
pub struct NeuronMemory {
    /// Neurons that may be cached: those that this core owns and that are not pinned.
    pub neurons: usize,
    /// Slots of the cache.
    pub slots: usize,
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// `[slots, slot_bytes]`; `None` if no neuron is cached.
    pub store: Option<Slot>,
    /// Read buffers.
    pub buffers: Vec<Slot>,
    /// Neurons that are already in the store, best first, the first one in slot 0.
    pub preloaded: Vec<u32>,
}

/// How neurons are kept and read.
#[derive(Clone, Copy, Debug)]
pub struct NeuronRules {
    /// Which neurons stay.
    pub policy: PolicyKind,
    /// How a bundle is read.
    pub loading: Loading,
    /// Whether slots hold whole bundles, not only Up and Down.
    pub whole: bool,
}
