//! Reads resident weights into their slots before the first token, verified against their checksums.

use forebay_models::bundle::{Bundle, HotNeuron, checksum};
use forebay_plans::program::Program;
use forebay_plans::residency::{Residency, ResidencyPlan};
use forebay_queues::slab::{Slab, Slot, Span};
use forebay_traces::clock::now_ns;

use crate::fault::Fault;
use crate::io::{Driver, ReadDone, ReadOp};
use crate::memory::{CoreMemory, WeightMemory};

/// Reads in flight for clusters that are kept only in part.
const BUFFERS: usize = 4;

/// Fills the slots of all resident clusters. `progress` is called with the bytes read so far.
///
/// # Errors
/// A failed read, or a checksum that does not match.
pub fn load_resident(
    driver: &mut dyn Driver,
    bundle: &Bundle,
    plan: &ResidencyPlan,
    slots: &mut [Option<Slot>],
    progress: &mut dyn FnMut(u64),
) -> Result<(), Fault> {
    let mut loader = Loader::new(driver, bundle, progress);
    let pinned = |i: &usize| plan.residency[*i] == Residency::Pinned;
    let pinned: Vec<usize> = (0..slots.len()).filter(pinned).collect();
    loader.whole(&pinned, slots)?;
    loader.gates(plan, slots)
}

/// Bytes that [`load_resident`] reads.
pub fn resident_bytes(bundle: &Bundle, plan: &ResidencyPlan) -> u64 {
    let kept = |r: &Residency| matches!(r, Residency::Pinned | Residency::GatePinned);
    let clusters = bundle.clusters.iter().zip(&plan.residency);
    let kept = clusters.filter(|(_, residency)| kept(residency));
    kept.map(|(entry, _)| entry.padded_len() as u64).sum()
}

/// A neuron that goes into a cache: the cluster, the core, the neuron and its index in the core's store.
type HotPlace = (u32, u16, u16, u32);

/// Where the best of an earlier run's hot set goes, as far as there is room. The caches know what they begin with; this
/// is what else is needed to read it.
pub struct HotSet {
    /// Sorted.
    neurons: Vec<HotPlace>,
    /// Clusters in which these are.
    clusters: Vec<u32>,
}

impl HotSet {
    /// Finds the places of `hot`, and notes for the caches what they begin with.
    pub fn new(hot: &[HotNeuron], programs: &[Program], cores: &mut [CoreMemory]) -> Self {
        let mut neurons: Vec<HotPlace> = Vec::new();
        for (core, (program, memory)) in programs.iter().zip(cores).enumerate() {
            let clusters = program.clusters_by_neuron();
            let base = |n: &HotNeuron| {
                let at = clusters.binary_search_by_key(&n.cluster, |c| c.0);
                at.ok().map(|at| clusters[at].1)
            };
            let ours = hot.iter().filter_map(|n| base(n).map(|base| (n, base)));
            for (place, (n, base)) in (0..).zip(ours.take(memory.neurons.slots)) {
                memory.neurons.preloaded.push(base + n.neuron);
                neurons.push((n.cluster, core as u16, n.neuron as u16, place));
            }
            let key = |n: &HotNeuron| program.cached_clusters.binary_search(&n.cluster).ok();
            let keys = hot.iter().filter_map(key).take(memory.experts.cells.len());
            memory.experts.preloaded = keys.map(|key| key as u32).collect();
        }
        neurons.sort_unstable();
        let mut clusters: Vec<u32> = neurons.iter().map(|p| p.0).collect();
        clusters.dedup();
        Self { neurons, clusters }
    }

    /// Bytes that [`Self::load`] reads.
    pub fn bytes(&self, bundle: &Bundle, programs: &[Program], cores: &[CoreMemory]) -> u64 {
        let experts = programs.iter().zip(cores);
        let experts = experts.flat_map(|(program, core)| first_experts(program, core));
        let clusters = self.clusters.iter().map(|&c| c as usize).chain(experts);
        let bytes = clusters.map(|cluster| bundle.clusters[cluster].padded_len() as u64);
        bytes.sum()
    }

    /// Fills the caches. Clusters are read whole: most of a hot set is in a few of them, and large reads are many times
    /// as fast. Slots of neurons have `whole` bundles, or only Up and Down. `progress` is called with the bytes read so
    /// far.
    ///
    /// # Errors
    /// A failed read, or a checksum that does not match.
    pub fn load(
        &self,
        driver: &mut dyn Driver,
        bundle: &Bundle,
        (programs, cores): (&[Program], &mut [CoreMemory]),
        whole: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), Fault> {
        let mut loader = Loader::new(driver, bundle, progress);
        let clusters = self.clusters.iter().map(|&c| c as usize);
        loader.each(clusters, |cluster, buffer| {
            self.take_neurons((bundle, cluster), buffer, whole, cores);
        })?;
        for (program, core) in programs.iter().zip(cores) {
            loader.experts(program, core)?;
        }
        Ok(())
    }

    /// Copies the neurons of a cluster that was read into their slots.
    fn take_neurons(
        &self,
        (bundle, cluster): (&Bundle, usize),
        buffer: &[u8],
        whole: bool,
        cores: &mut [CoreMemory],
    ) {
        let Some(g) = bundle.meta.geometry(bundle.clusters[cluster].content) else {
            return;
        };
        let origin = if whole { 0 } else { g.up_offset() };
        let places = &self.neurons;
        let first = places.partition_point(|p| p.0 < cluster as u32);
        let of_cluster = places[first..].iter().take_while(|p| p.0 == cluster as u32);
        for &(_, core, neuron, place) in of_cluster {
            let start = usize::from(neuron) * g.bundle_stride();
            let bytes = &buffer[start + origin..start + g.bundle_bytes()];
            let memory = &mut cores[usize::from(core)].neurons;
            let at = place as usize * memory.slot_bytes;
            if let Some(store) = &mut memory.store {
                store[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

/// The clusters with which a core's expert cache begins, in the order of its cells.
fn first_experts(program: &Program, core: &CoreMemory) -> impl Iterator<Item = usize> {
    let keys = core.experts.preloaded.iter();
    keys.map(|&key| program.cached_clusters[key as usize] as usize)
}

/// What [`load_resident`] and [`HotSet::load`] fill, in about their order.
pub fn filled(memory: &WeightMemory) -> Vec<Span> {
    let resident = memory.resident.iter().flatten();
    let experts = memory.cores.iter().map(|core| &core.experts);
    let cells = experts.flat_map(|experts| &experts.cells[..experts.preloaded.len()]);
    resident.chain(cells).map(Slot::span).collect()
}

struct Loader<'a> {
    driver: &'a mut dyn Driver,
    bundle: &'a Bundle,
    done: Vec<ReadDone>,
    bytes: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> Loader<'a> {
    fn new(
        driver: &'a mut dyn Driver,
        bundle: &'a Bundle,
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        Self {
            driver,
            bundle,
            done: Vec::new(),
            bytes: 0,
            progress,
        }
    }

    /// Clusters that are kept completely are read directly into their slots.
    fn whole(&mut self, clusters: &[usize], slots: &mut [Option<Slot>]) -> Result<(), Fault> {
        let mut next = 0;
        loop {
            while let Some(&cluster) = clusters.get(next) {
                let Some(slot) = slots[cluster].take() else {
                    break;
                };
                if let Err(back) = self.submit(cluster, slot) {
                    slots[cluster] = Some(back);
                    break;
                }
                next += 1;
            }
            if next >= clusters.len() && self.driver.in_flight() == 0 {
                return Ok(());
            }
            for (cluster, slot) in self.wait()? {
                slots[cluster] = Some(slot);
            }
        }
    }

    /// Clusters of experts are read into the first cells of a core.
    fn experts(&mut self, program: &Program, core: &mut CoreMemory) -> Result<(), Fault> {
        let mut slots: Vec<Option<Slot>> = Vec::new();
        slots.resize_with(self.bundle.clusters.len(), || None);
        let mut cells = std::mem::take(&mut core.experts.cells).into_iter();
        for (cluster, cell) in first_experts(program, core).zip(cells.by_ref()) {
            slots[cluster] = Some(cell);
        }
        let wanted = |i: &usize| slots[*i].is_some();
        let wanted: Vec<usize> = (0..slots.len()).filter(wanted).collect();
        self.whole(&wanted, &mut slots)?;
        let filled = first_experts(program, core).filter_map(|cluster| slots[cluster].take());
        core.experts.cells = filled.chain(cells).collect();
        Ok(())
    }

    /// Of other clusters, only the Gate rows are copied from a buffer.
    fn gates(&mut self, plan: &ResidencyPlan, slots: &mut [Option<Slot>]) -> Result<(), Fault> {
        let wanted = |i: &usize| plan.residency[*i] == Residency::GatePinned;
        let bundle = self.bundle;
        self.each((0..slots.len()).filter(wanted), |cluster, buffer| {
            let entry = &bundle.clusters[cluster];
            let Some(g) = bundle.meta.geometry(entry.content) else {
                return;
            };
            let rows = buffer.chunks(g.bundle_stride()).take(entry.count as usize);
            if let Some(slot) = &mut slots[cluster] {
                for (to, bundle) in slot.chunks_exact_mut(g.gate_row()).zip(rows) {
                    to.copy_from_slice(&bundle[..g.gate_row()]);
                }
            }
        })
    }

    /// Reads clusters through a few buffers and passes each to `take`.
    fn each(
        &mut self,
        clusters: impl Iterator<Item = usize> + Clone,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<(), Fault> {
        let lengths = clusters
            .clone()
            .map(|i| self.bundle.clusters[i].padded_len());
        let Some(largest) = lengths.max() else {
            return Ok(());
        };
        let no_memory = |e: forebay_queues::slab::SlabError| Fault::IoStopped {
            cause: e.to_string(),
        };
        let mut slab = Slab::new(BUFFERS * largest).map_err(no_memory)?;
        let mut free: Vec<Slot> = (0..BUFFERS).filter_map(|_| slab.carve(largest)).collect();
        let mut queue = clusters;
        let mut exhausted = false;
        loop {
            while let (false, Some(slot)) = (exhausted, free.pop()) {
                match queue.next() {
                    // The driver has room for at least as many reads as there are buffers.
                    Some(i) => drop(self.submit(i, slot)),
                    None => exhausted = true,
                }
            }
            if exhausted && self.driver.in_flight() == 0 {
                return Ok(());
            }
            for (cluster, buffer) in self.wait()? {
                take(cluster, &buffer);
                free.push(buffer);
            }
        }
    }

    fn submit(&mut self, cluster: usize, slot: Slot) -> Result<(), Slot> {
        let entry = &self.bundle.clusters[cluster];
        let op = ReadOp {
            client: 0,
            tag: cluster as u64,
            offset: entry.offset,
            len: entry.padded_len() as u32,
            slot,
            slot_offset: 0,
        };
        self.driver.submit(op, now_ns()).map_err(|op| op.slot)
    }

    /// Waits for completions; returns each cluster with its verified bytes.
    fn wait(&mut self) -> Result<Vec<(usize, Slot)>, Fault> {
        let stopped = |e: std::io::Error| Fault::IoStopped {
            cause: e.to_string(),
        };
        self.driver.flush().map_err(stopped)?;
        while self.driver.poll(now_ns(), &mut self.done) == 0 {
            self.driver.wait(None).map_err(stopped)?;
        }
        let mut loaded = Vec::with_capacity(self.done.len());
        for done in self.done.drain(..) {
            let cluster = done.tag as usize;
            let entry = &self.bundle.clusters[cluster];
            let what = || format!("{:?} cluster", entry.content);
            if let Err(fault) = done.result {
                return Err(Fault::Read {
                    what: what(),
                    offset: entry.offset,
                    fault,
                });
            }
            if checksum(&done.slot[..entry.len as usize]) != entry.sum {
                return Err(Fault::Corrupt {
                    what: what(),
                    offset: entry.offset,
                });
            }
            self.bytes += u64::from(done.len);
            loaded.push((cluster, done.slot));
        }
        (self.progress)(self.bytes);
        Ok(loaded)
    }
}
