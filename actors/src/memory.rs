//! All memory for weights and reads, cut from one slab before anything runs.

use forebay_models::bundle::{Bundle, FfnGeometry};
use forebay_models::panel::PANEL_ROWS;
use forebay_models::tensor::TensorId;
use forebay_plans::giving_way::{GivingWay, WINDOW};
use forebay_plans::program::Program;
use forebay_plans::residency::{Residency, ResidencyPlan};
use forebay_queues::slab::{PAGE, Slab, SlabError, Slot};
use forebay_stages::expert_store::ExpertMemory;
use forebay_stages::neuron_store::NeuronMemory;
use forebay_stages::weights::{EvictableCluster, EvictableMemory};

/// Memory of one core.
#[derive(Debug, Default)]
pub struct CoreMemory {
    /// Stream window.
    pub stream: Vec<Slot>,
    /// Neuron cache and its read buffers.
    pub neurons: NeuronMemory,
    /// Expert cache.
    pub experts: ExpertMemory,
    /// Pinned clusters that may be evicted.
    pub evictable: EvictableMemory,
}

impl CoreMemory {
    /// Maximum number of buffers that the stream window ever has.
    pub fn stream_buffers(&self) -> usize {
        match (self.stream.len(), self.evictable.clusters.is_empty()) {
            (0, false) => WINDOW,
            (own, _) => own,
        }
    }
}

/// The divided slab.
#[derive(Debug)]
pub struct WeightMemory {
    /// Slots for resident weights by directory index; filled by [`crate::load`].
    pub resident: Vec<Option<Slot>>,
    /// Memory by core.
    pub cores: Vec<CoreMemory>,
    /// Buffers for embedding rows, `[row_buffers]`.
    pub rows: Vec<Slot>,
    /// Buffers for rows of the table of token inputs, `[row_buffers]`; none if the model has none.
    pub input_rows: Vec<Slot>,
    /// Whether the system accepted the advice to use huge pages.
    pub huge_pages: bool,
}

/// Embedding rows that are read at the same time: with more, the disk gets no faster.
const MAX_ROW_BUFFERS: usize = 32;

/// Number of buffers for embedding rows if a step has up to `max_batch` tokens.
pub fn row_buffers(max_batch: usize) -> usize {
    max_batch.min(MAX_ROW_BUFFERS)
}

/// Bytes of a buffer for one row of a table, or for its panel in a tied head, wherever it starts within a page; 0 if
/// the model has no such table.
pub fn row_buffer_bytes(bundle: &Bundle, table: TensorId) -> usize {
    let matrix = bundle.meta.matrix(table);
    let Some(row) = matrix.and_then(|t| t.block.row_bytes(t.cols)) else {
        return 0;
    };
    let is_head = bundle.meta.network.head_tensor() == table;
    let rows = if is_head { PANEL_ROWS } else { 1 };
    (rows * row + PAGE).next_multiple_of(PAGE)
}

impl WeightMemory {
    /// Divides a slab as `plan` requires.
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn carve(
        bundle: &Bundle,
        plan: &ResidencyPlan,
        programs: &[Program],
        max_batch: usize,
    ) -> Result<Self, SlabError> {
        let resident_len = |i: usize| resident_bytes(bundle, plan, i);
        let cache = plan.neuron_cache;
        let page = |b: usize| b.next_multiple_of(PAGE);
        let resident: usize = (0..bundle.clusters.len())
            .filter_map(resident_len)
            .map(page)
            .sum();
        let per_core = plan.stream_slots * page(plan.stream_slot_bytes)
            + page(cache.slots * cache.slot_bytes)
            + cache.staging * page(cache.staging_bytes)
            + plan.expert_cache.cells * page(plan.expert_cache.cell_bytes);
        let row_bytes = [TensorId::TokenEmbedding, TensorId::TokenInputs]
            .map(|table| row_buffer_bytes(bundle, table));
        let rows: usize = row_bytes.iter().sum::<usize>() * row_buffers(max_batch);
        let mut slab = Slab::new(resident + programs.len() * per_core + rows)?;
        let mut take = |bytes: usize| slab.carve(bytes).unwrap_or_else(|| unreachable_slot(bytes));
        let evictable = evictable_clusters(bundle, plan, programs.len());
        let mut resident: Vec<Option<Slot>> = Vec::new();
        resident.resize_with(bundle.clusters.len(), || None);
        for given in evictable.iter().flatten() {
            resident[given.cluster as usize] = Some(take(given.bytes));
        }
        for (i, slot) in resident.iter_mut().enumerate() {
            if slot.is_none() {
                *slot = resident_len(i).map(&mut take);
            }
        }
        let cores = programs.iter().zip(evictable);
        let cores = cores
            .map(|(program, evictable)| core_memory(plan, program, evictable, &mut take))
            .collect();
        let [rows, input_rows] = row_bytes.map(|bytes| {
            let buffers = if bytes > 0 { row_buffers(max_batch) } else { 0 };
            (0..buffers).map(|_| take(bytes)).collect()
        });
        Ok(Self {
            resident,
            cores,
            rows,
            input_rows,
            huge_pages: slab.huge_pages(),
        })
    }

    /// Moves the loaded clusters that may be evicted to their cores.
    pub fn gather(&mut self) {
        for core in &mut self.cores {
            let clusters = core.evictable.clusters.iter();
            let mut slots = clusters.filter_map(|c| self.resident[c.cluster as usize].take());
            core.evictable.store = slots.next().map(|mut store| {
                for slot in slots {
                    assert!(store.join(slot).is_ok(), "they were cut in this order");
                }
                store
            });
        }
    }
}

/// What of a cluster stays in memory, in bytes.
fn resident_bytes(bundle: &Bundle, plan: &ResidencyPlan, cluster: usize) -> Option<usize> {
    let e = &bundle.clusters[cluster];
    match plan.residency[cluster] {
        Residency::Pinned => Some(e.padded_len()),
        Residency::GatePinned => {
            let row = bundle.meta.geometry(e.content).map(FfnGeometry::gate_row);
            Some(e.count as usize * row?)
        }
        Residency::Neurons | Residency::Cached | Residency::Streamed | Residency::OnFlash => None,
    }
}

/// The memory of the core that follows `program`; `take` cuts off a slot.
fn core_memory(
    plan: &ResidencyPlan,
    program: &Program,
    evictable: Vec<EvictableCluster>,
    take: &mut impl FnMut(usize) -> Slot,
) -> CoreMemory {
    let (cache, experts) = (plan.neuron_cache, plan.expert_cache);
    let mut slots = |n: usize, bytes: usize| -> Vec<Slot> { (0..n).map(|_| take(bytes)).collect() };
    // No more buffers or cells than clusters: more would never be filled.
    let stream = plan.stream_slots.min(program.stream.len());
    let cells = experts.cells.min(program.cached_clusters.len());
    CoreMemory {
        evictable: EvictableMemory {
            store: None,
            clusters: evictable,
        },
        stream: slots(stream, plan.stream_slot_bytes),
        neurons: NeuronMemory {
            neurons: program.cached_neurons,
            slots: cache.slots,
            slot_bytes: cache.slot_bytes,
            store: slots(cache.slots.min(1), cache.slots * cache.slot_bytes).pop(),
            buffers: slots(cache.staging, cache.staging_bytes),
            preloaded: Vec::new(),
        },
        experts: ExpertMemory {
            cells: slots(cells, experts.cell_bytes),
            clusters: program.cached_clusters.len(),
            preloaded: Vec::new(),
        },
    }
}

/// Each core's clusters that may be evicted, the last one first.
fn evictable_clusters(
    bundle: &Bundle,
    plan: &ResidencyPlan,
    threads: usize,
) -> Vec<Vec<EvictableCluster>> {
    let mut cores = vec![Vec::new(); threads];
    let order = GivingWay::new(bundle, plan).clusters;
    for (place, cluster) in order.into_iter().enumerate().rev() {
        let i = cluster as usize;
        cores[usize::from(plan.owner[i])].push(EvictableCluster {
            cluster,
            place: place as u32,
            bytes: bundle.clusters[i].padded_len().next_multiple_of(PAGE),
        });
    }
    cores
}

/// The slab was made as large as the sum of what is cut from it.
fn unreachable_slot(bytes: usize) -> Slot {
    unreachable!("the slab was sized for this slot of {bytes} bytes")
}
