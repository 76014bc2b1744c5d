//! Where weights are: resident, in a buffer that a flight carries, or in the neuron cache. Stages request rows and need
//! not know where they are.

mod evictable;
mod views;

use std::ops::Range;
use std::sync::Arc;

use forebay_plans::program::Source;
use forebay_queues::slab::Slot;

use crate::expert_store::ExpertStore;
use crate::flight::Flight;
use crate::neuron_rows::NeuronRows;
use crate::neuron_store::NeuronStore;

pub use evictable::Evictable;
pub use views::{EvictableCluster, EvictableMemory, EvictableView, SharedEvictables};

/// Weights that stay in memory, by directory index: whole clusters, or their Gate rows only.
#[derive(Debug, Default)]
pub struct Resident {
    /// All of them; none if there are none.
    memory: Option<Arc<Slot>>,
    /// Where each is, `[clusters]`; nowhere if it is not resident.
    ranges: Vec<Range<usize>>,
}

impl Resident {
    /// Takes the loaded slots, `[clusters]`.
    ///
    /// # Panics
    /// They were not cut from a slab one after the other.
    pub fn new(slots: Vec<Option<Slot>>) -> Self {
        let mut ranges = vec![0..0; slots.len()];
        let mut slots: Vec<(usize, Slot)> = (0..)
            .zip(slots)
            .filter_map(|(cluster, slot)| Some((cluster, slot?)))
            .collect();
        slots.sort_by_key(|(_, slot)| slot.span().addr());
        let mut memory: Option<Slot> = None;
        for (cluster, slot) in slots {
            let at = memory.as_ref().map_or(0, |memory| memory.len());
            ranges[cluster] = at..at + slot.len();
            match &mut memory {
                None => memory = Some(slot),
                Some(memory) => assert!(memory.join(slot).is_ok(), "slots follow each other"),
            }
        }
        Self {
            memory: memory.map(Arc::new),
            ranges,
        }
    }

    /// Bytes of a resident cluster (empty if it is not resident, which the plan rules out).
    pub fn bytes(&self, cluster: usize) -> &[u8] {
        match &self.memory {
            Some(memory) => &memory[self.ranges[cluster].clone()],
            None => &[],
        }
    }

    /// The memory of all of them, and where in it those of `clusters` and what is between them are: whole pages, which
    /// never change. `None` if one is not resident, or there are none.
    pub fn span(
        &self,
        clusters: impl IntoIterator<Item = usize>,
    ) -> Option<(&Arc<Slot>, Range<usize>)> {
        let ranges = clusters.into_iter().map(|cluster| {
            let range = self.ranges[cluster].clone();
            (!range.is_empty()).then_some(range)
        });
        let all = ranges.reduce(|a, b| {
            let (a, b) = (a?, b?);
            Some(a.start.min(b.start)..a.end.max(b.end))
        });
        Some((self.memory.as_ref()?, all??))
    }

    /// Where a resident cluster begins in that memory.
    pub fn start(&self, cluster: usize) -> usize {
        self.ranges[cluster].start
    }
}

/// The weights as one core sees them.
#[derive(Debug)]
pub struct Weights {
    resident: Arc<Resident>,
    /// All cores' resident clusters that may be evicted while the engine runs.
    pub view: EvictableView,
    /// This core's.
    pub evictable: Evictable,
    /// The neuron cache.
    pub neurons: NeuronStore,
    /// The expert cache.
    pub experts: ExpertStore,
}

impl Weights {
    /// A core's weights.
    pub fn new(
        resident: Arc<Resident>,
        (view, evictable): (EvictableView, Evictable),
        neurons: NeuronStore,
        experts: ExpertStore,
    ) -> Self {
        Self {
            resident,
            view,
            evictable,
            neurons,
            experts,
        }
    }

    /// Bytes of a resident cluster of any core, wherever it is; empty if it has been evicted.
    pub fn bytes(&self, cluster: u32) -> &[u8] {
        let evictable = self.view.bytes(cluster);
        evictable.unwrap_or_else(|| self.resident.bytes(cluster as usize))
    }

    /// Whether a cluster that was pinned at the start is in memory.
    pub fn is_here(&self, cluster: u32) -> bool {
        self.view.all_pinned() || !self.bytes(cluster).is_empty()
    }

    /// Bytes of a resident cluster that is never evicted.
    pub fn shared_bytes(&self, cluster: u32) -> &[u8] {
        self.resident.bytes(cluster as usize)
    }

    /// Where a flight's Gate rows are.
    pub fn gate_rows<'a>(&'a self, flight: &'a Flight) -> NeuronRows<'a> {
        self.gate_rows_of(flight.buffer.as_deref(), flight)
    }

    /// The same if the flight's buffer has been taken out of it.
    pub fn gate_rows_of<'a>(&'a self, buffer: Option<&'a [u8]>, flight: &Flight) -> NeuronRows<'a> {
        match (buffer, flight.item.source) {
            (Some(bytes), _) => whole(bytes, flight),
            (None, Source::GatePinned { .. }) => NeuronRows::Gates(self.bytes(flight.item.cluster)),
            (None, Source::Neurons { .. }) => self.cached(flight),
            (None, _) => whole(self.bytes(flight.item.cluster), flight),
        }
    }

    /// Where its Up and Down are.
    pub fn up_down_rows<'a>(&'a self, flight: &'a Flight) -> NeuronRows<'a> {
        match &flight.buffer {
            _ if flight.is_by_neuron() => self.cached(flight),
            Some(slot) => whole(slot, flight),
            None => whole(self.bytes(flight.item.cluster), flight),
        }
    }

    /// A flight's neurons in the cache.
    pub fn cached(&self, flight: &Flight) -> NeuronRows<'_> {
        NeuronRows::Cached {
            store: &self.neurons,
            flight: flight.number,
        }
    }
}

fn whole<'a>(bytes: &'a [u8], flight: &Flight) -> NeuronRows<'a> {
    let n = flight.count;
    NeuronRows::Whole { bytes, n }
}
