//! The clusters of a phase, and where their weights are.

/// Where a cluster's weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Completely in memory.
    Pinned,
    /// In memory, and in a device's memory: the device computes it in steps that use so many of the phase's clusters on
    /// it, else a core does.
    Device {
        /// Its place among the phase's clusters on the device.
        place: u32,
    },
    /// Gate in memory, Up and Down by neuron.
    GatePinned {
        /// Index of its first neuron among the core's cached ones.
        base: u32,
    },
    /// All rows by neuron.
    Neurons {
        /// Index of its first neuron among the core's cached ones.
        base: u32,
    },
    /// In the expert cache, or on flash.
    Cached {
        /// Its number among the core's cached clusters.
        key: u32,
    },
    /// Through the stream window.
    Streamed {
        /// Position in the cycle of reads.
        ordinal: u32,
    },
    /// As a whole through the prefill graph's window, although single neurons are cached.
    Preloaded {
        /// Position in the cycle of reads.
        ordinal: u32,
        /// Index of its first neuron among the core's cached ones.
        base: u32,
    },
}

impl Source {
    /// Whether all of it is in memory.
    pub fn is_in_memory(self) -> bool {
        matches!(self, Self::Pinned | Self::Device { .. })
    }

    /// Its place among the phase's clusters on a device, if it is there.
    pub fn place(self) -> Option<usize> {
        match self {
            Self::Device { place } => Some(place as usize),
            _ => None,
        }
    }

    /// Whether a device computes it in a step that uses the first `places` of the phase's clusters on it.
    pub fn is_computed_elsewhere(self, places: u32) -> bool {
        matches!(self, Self::Device { place } if place < places)
    }

    /// Whether single neurons are read.
    pub fn is_by_neuron(self) -> bool {
        matches!(self, Self::GatePinned { .. } | Self::Neurons { .. })
    }

    /// Position in the cycle of reads, for a cluster that comes through a window.
    pub fn ordinal(self) -> Option<usize> {
        match self {
            Self::Streamed { ordinal } | Self::Preloaded { ordinal, .. } => Some(ordinal as usize),
            Self::Pinned
            | Self::Device { .. }
            | Self::GatePinned { .. }
            | Self::Neurons { .. }
            | Self::Cached { .. } => None,
        }
    }

    /// Index of the first neuron among the core's cached ones, if its neurons are cached.
    pub fn base(self) -> Option<u32> {
        match self {
            Self::GatePinned { base } | Self::Neurons { base } | Self::Preloaded { base, .. } => {
                Some(base)
            }
            Self::Pinned | Self::Device { .. } | Self::Cached { .. } | Self::Streamed { .. } => {
                None
            }
        }
    }

    /// Number among the core's cached clusters, if it is one.
    pub fn key(self) -> Option<usize> {
        match self {
            Self::Cached { key } => Some(key as usize),
            _ => None,
        }
    }
}

/// A cluster on a core's work list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Directory index.
    pub cluster: u32,
    /// Index into [`Rows::matrices`](super::Rows::matrices); 0 for neuron clusters.
    pub matrix: u16,
    /// The expert whose neurons it has; `None` for what every token uses.
    pub expert: Option<u16>,
    /// Where its weights come from.
    pub source: Source,
}
