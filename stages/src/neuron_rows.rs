//! Where the rows of a neuron cluster's single neurons are.

use forebay_models::bundle::FfnGeometry;

use crate::neuron_store::NeuronStore;

/// Rows of a cluster in neuron layout.
#[derive(Clone, Copy, Debug)]
pub enum NeuronRows<'a> {
    /// Inside the whole cluster, as stored.
    Whole {
        /// The cluster.
        bytes: &'a [u8],
        /// How many neurons it has.
        n: usize,
    },
    /// Gate rows one after the other; Up and Down are elsewhere.
    Gates(&'a [u8]),
    /// Neuron by neuron in the neuron cache.
    Cached {
        /// The cache.
        store: &'a NeuronStore,
        /// The flight that holds the neurons.
        flight: usize,
    },
}

impl<'a> NeuronRows<'a> {
    /// Gate row of neuron `i` of the cluster.
    pub fn gate(&self, g: &FfnGeometry, i: usize) -> &'a [u8] {
        match *self {
            Self::Gates(rows) => &rows[i * g.gate_row()..][..g.gate_row()],
            Self::Whole { bytes, .. } => &bytes[i * g.gate_stride()..][..g.gate_row()],
            Self::Cached { store, flight } => store.bytes(g, flight, i, 0..g.gate_row()),
        }
    }

    /// Up row of neuron `i`.
    pub fn up(&self, g: &FfnGeometry, i: usize) -> &'a [u8] {
        self.of_pair(g, i, 0, g.up_row())
    }

    /// What is needed of neuron `i` once it is known to be alive: its Up row, or Down if there is none.
    pub fn after_gate(&self, g: &FfnGeometry, i: usize) -> &'a [u8] {
        match g.up {
            Some(_) => self.up(g, i),
            None => self.down(g, i),
        }
    }

    /// Down column of neuron `i`.
    pub fn down(&self, g: &FfnGeometry, i: usize) -> &'a [u8] {
        self.of_pair(g, i, g.down_offset() - g.up_offset(), g.down_column())
    }

    /// `len` bytes from byte `at` on of Up and Down.
    fn of_pair(&self, g: &FfnGeometry, i: usize, at: usize, len: usize) -> &'a [u8] {
        match *self {
            Self::Whole { bytes, n } => {
                &bytes[g.pairs_offset(n) + i * g.pair_stride() + at..][..len]
            }
            Self::Gates(_) => &[],
            Self::Cached { store, flight } => {
                let at = g.up_offset() + at;
                store.bytes(g, flight, i, at..at + len)
            }
        }
    }
}
