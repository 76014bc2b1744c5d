//! Messages: clusters on their way through the stages of a core, mostly the one they belong to. The holder of a flight
//! owns its buffers.

use forebay_plans::program::Item;
use forebay_queues::pages::give_back;
use forebay_queues::slab::Slot;

use crate::live_mask::LiveMask;

/// A neuron cluster in flight.
#[derive(Debug)]
pub struct Flight {
    /// Which cluster, and where its weights come from.
    pub item: Item,
    /// How many of the phase came before it; identifies its hold on cached neurons.
    pub number: usize,
    /// Neurons of the cluster.
    pub count: usize,
    /// Neurons to compute: after Pred, those that may be alive; after GC, those that are.
    pub live: LiveMask,
    /// Whether GC is done with it.
    pub gated: bool,
    /// Of a cluster of an expert whose Gates came first: how many live neurons' Up and Down had to be read, if any had.
    pub read_later: Option<usize>,
    /// Buffer of a streamed cluster.
    pub buffer: Option<Slot>,
    /// The core whose cluster it is, if another one computes it.
    pub owner: Option<usize>,
    /// Ties the consumer to the read in the trace; 0 for clusters in memory.
    pub flow: u64,
    /// Gates before the activation, `[n_tokens, count]`.
    gates: Vec<f32>,
    /// Neurons that the predictor names, `[n_tokens]`; empty without one.
    named: Vec<LiveMask>,
    /// What was computed while the flight waited.
    pub early: Early,
}

/// Products of single neurons with one token, computed while the rest of the cluster was read.
#[derive(Debug)]
pub struct Early {
    /// Gates before the activation, `[count]`, of the neurons in `gated`.
    pub gates: Vec<f32>,
    /// Ups, `[count]`, of the neurons in `upped`.
    pub ups: Vec<f32>,
    /// Neurons whose Gates are known.
    pub gated: LiveMask,
    /// Live neurons whose Ups are known.
    pub upped: LiveMask,
}

impl Flight {
    /// Room for `max_tokens` tokens and clusters of `max_neurons`; with room for predictions if requested.
    pub fn new(max_tokens: usize, max_neurons: usize, predicted: bool) -> Self {
        let item = Item {
            cluster: 0,
            matrix: 0,
            expert: None,
            source: forebay_plans::program::Source::Pinned,
        };
        Self {
            item,
            number: 0,
            count: 0,
            live: LiveMask::NONE,
            gated: false,
            read_later: None,
            buffer: None,
            owner: None,
            flow: 0,
            gates: vec![0.0; max_tokens * max_neurons],
            named: vec![LiveMask::NONE; if predicted { max_tokens } else { 0 }],
            early: Early {
                gates: vec![0.0; max_neurons],
                ups: vec![0.0; max_neurons],
                gated: LiveMask::NONE,
                upped: LiveMask::NONE,
            },
        }
    }

    /// Bytes of what [`Self::new`] allocates and [`Self::give_back`] keeps, for memory budgets.
    pub fn bytes_kept(max_tokens: usize, max_neurons: usize, predicted: bool) -> usize {
        let named = if predicted { max_tokens } else { 0 };
        size_of::<Self>() + 2 * max_neurons * size_of::<f32>() + named * size_of::<LiveMask>()
    }

    /// Gives the memory of gates back to the system until a step needs it.
    pub fn give_back(&mut self) {
        give_back(&mut self.gates);
    }

    /// Bytes of what it gives back.
    pub fn bytes_of_steps(max_tokens: usize, max_neurons: usize) -> usize {
        max_tokens * max_neurons * size_of::<f32>()
    }

    /// Begins a new flight: `item` is the `number`th of its phase and has `count` neurons.
    pub fn begin(&mut self, item: Item, number: usize, count: usize) {
        (self.item, self.number, self.count) = (item, number, count);
        (self.live, self.gated, self.flow) = (LiveMask::first(count), false, 0);
        (self.read_later, self.owner) = (None, None);
        (self.early.gated, self.early.upped) = (LiveMask::NONE, LiveMask::NONE);
    }

    /// Gates of `n_tokens` tokens, `[n_tokens, count]`.
    pub fn gates(&self, n_tokens: usize) -> &[f32] {
        &self.gates[..n_tokens * self.count]
    }

    /// What the predictor names for each of `n_tokens` tokens, if there is one, for writing.
    pub fn named_mut(&mut self, n_tokens: usize) -> Option<&mut [LiveMask]> {
        (!self.named.is_empty()).then(|| &mut self.named[..n_tokens])
    }

    /// Gates for writing, what the predictor names, and what is already known.
    pub fn gates_mut(&mut self, n_tokens: usize) -> (&mut [f32], Option<&[LiveMask]>, &mut Early) {
        let named = (!self.named.is_empty()).then(|| &self.named[..n_tokens]);
        (
            &mut self.gates[..n_tokens * self.count],
            named,
            &mut self.early,
        )
    }

    /// Whether single neurons of it are read.
    pub fn is_by_neuron(&self) -> bool {
        self.item.source.is_by_neuron()
    }
}

/// A cluster of matrix rows that was read through a window.
#[derive(Debug)]
pub struct RowFlight {
    /// Which cluster.
    pub item: Item,
    /// Its bytes.
    pub buffer: Slot,
    /// Ties the consumer to the read in the trace.
    pub flow: u64,
}
