//! The pinned clusters that may be evicted, as all cores see them: each core's are in its own memory, which it alone
//! changes, between two steps; while there is a step, all cores read them.

use std::ops::Range;
use std::sync::Arc;

use forebay_queues::published::{Published, Reading};
use forebay_queues::slab::Slot;

/// Pinned clusters of one core that may be evicted.
#[derive(Debug, Default)]
pub struct EvictableMemory {
    /// Their bytes in this order, from when they have been loaded until they are published.
    pub store: Option<Slot>,
    /// The last one is evicted first.
    pub clusters: Vec<EvictableCluster>,
}

impl EvictableMemory {
    /// Where each of them is, in the order of their bytes.
    pub(super) fn held(&self) -> impl Iterator<Item = Held> + '_ {
        let mut end = 0;
        self.clusters.iter().map(move |c| {
            let (cluster, start) = (c.cluster, end);
            end += c.bytes;
            Held {
                cluster,
                range: start..end,
            }
        })
    }
}

/// A cluster's bytes in its core's memory.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) cluster: u32,
    pub(super) range: Range<usize>,
}

/// A pinned cluster that may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictableCluster {
    /// Directory index.
    pub cluster: u32,
    /// Index in the order in which all cores' clusters are evicted.
    pub place: u32,
    /// Bytes in memory.
    pub bytes: usize,
}

/// Where all cores' clusters are.
#[derive(Debug)]
pub struct SharedEvictables {
    /// The memory of each core's that are pinned.
    pub(super) stores: Published,
    /// With their core, sorted by cluster.
    places: Vec<(Held, usize)>,
    /// Where each core's last cluster ends in its memory if all are pinned.
    ends: Vec<usize>, // [threads]
}

impl SharedEvictables {
    /// Publishes the loaded memory of all cores.
    pub fn new<'a>(cores: impl IntoIterator<Item = &'a mut EvictableMemory>) -> Self {
        let (mut places, mut ends, mut stores) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, memory) in cores.into_iter().enumerate() {
            ends.push(memory.held().last().map_or(0, |held| held.range.end));
            places.extend(memory.held().map(|held| (held, rank)));
            stores.push(memory.store.take());
        }
        places.sort_unstable_by_key(|(held, _)| held.cluster);
        Self {
            stores: Published::new(stores),
            places,
            ends,
        }
    }
}

/// What one core sees of them.
#[derive(Debug)]
pub struct EvictableView {
    shared: Arc<SharedEvictables>,
    /// `[threads]`; empty until the next step while cores may change theirs.
    stores: Vec<Option<Reading>>,
    all_pinned: bool,
}

impl EvictableView {
    /// Nothing yet.
    pub fn new(shared: Arc<SharedEvictables>) -> Self {
        Self {
            stores: Vec::with_capacity(shared.stores.owners()),
            shared,
            all_pinned: false,
        }
    }

    /// A step begins: no core changes its memory now.
    pub fn look(&mut self) {
        if !self.stores.is_empty() {
            return;
        }
        let stores = &self.shared.stores;
        self.stores
            .extend((0..stores.owners()).map(|rank| stores.read(rank)));
        let lengths = self
            .stores
            .iter()
            .map(|s| s.as_ref().map_or(0, |s| s.len()));
        let mut ends = self.shared.ends.iter().zip(lengths);
        self.all_pinned = ends.all(|(&end, len)| end <= len);
    }

    /// Cores are about to change their memory.
    pub fn look_away(&mut self) {
        self.stores.clear();
    }

    /// Whether no cluster of any core has been evicted.
    pub fn all_pinned(&self) -> bool {
        self.all_pinned
    }

    /// Bytes of a cluster that may be evicted, empty if it has been; `None` for others.
    pub fn bytes(&self, cluster: u32) -> Option<&[u8]> {
        let places = &self.shared.places;
        let at = places.binary_search_by_key(&cluster, |(held, _)| held.cluster);
        let (held, rank) = &places[at.ok()?];
        let store = self.stores.get(*rank)?.as_deref();
        let bytes = store.and_then(|store| store.get(held.range.clone()));
        Some(bytes.unwrap_or_default())
    }
}
