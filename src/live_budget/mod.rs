//! The budget while the engine runs. Copies on a device that shares the memory go first, phase by phase: the cores have
//! those weights and compute them. Then the cache of neurons or of experts shrinks; then pinned clusters of a model
//! that streams others are evicted. No result depends on any of it. Keys and values and all other pinned weights stay.

mod copies;
mod pressure;

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_actors::fault::Fault;
use forebay_actors::runtime::Runtime;
use forebay_actors::step::Sizes;
use forebay_plans::budget::Budget;
use forebay_plans::expert_cache::ExpertCachePlan;
use forebay_plans::giving_way::GivingWay;
use forebay_plans::residency::ResidencyPlan;
use parking_lot::Mutex;

use crate::error::Error;
use crate::lent::{InUse, Lent};

pub(crate) use copies::Copies;
pub(crate) use pressure::Watch;

/// The items that shrink besides the cache.
const PINNED: &str = "resident_weights";
const COPIES: &str = "device_weights";
const WINDOW: &str = "device_window";
pub(crate) const KV_COPIES: &str = "device_kv";
/// Bytes per core that shrinking does not release: pages that the idle memory covers only in part, at both ends.
const EDGES: u64 = 128 << 10;

/// The cache of each core: of neurons or of experts.
#[derive(Clone, Copy, Debug)]
struct Cache {
    /// Name of its item in the budget.
    item: &'static str,
    /// Neurons or clusters that fit.
    slots: usize,
    /// Bytes of each.
    slot_bytes: usize,
    /// Minimum number.
    least_slots: usize,
}

impl Cache {
    /// That of a plan, which has one of the two at most.
    fn of(plan: &ResidencyPlan) -> Self {
        let (neurons, experts) = (plan.neuron_cache, plan.expert_cache);
        match experts.cells {
            0 => Self {
                item: "neuron_cache",
                slots: neurons.slots,
                slot_bytes: neurons.slot_bytes,
                least_slots: neurons.least_slots,
            },
            cells => Self {
                item: "expert_cache",
                slots: cells,
                slot_bytes: experts.cell_bytes,
                least_slots: ExpertCachePlan::LEAST_CELLS.min(cells),
            },
        }
    }
}

/// The requested budget, set by any thread, and the one in force, set by the engine thread.
#[derive(Debug)]
pub(crate) struct LiveBudget {
    /// The budget with which the engine was started, but with what is lent: it is over by that.
    drawn: Budget,
    lent: Lent,
    copies: Copies,
    cache: Cache,
    clusters: GivingWay,
    threads: u64,
    /// The requested budget in bytes.
    asked: AtomicU64,
    now: Mutex<InForce>,
}

/// What the next step needs of the memory that may be lent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Need {
    /// Positions that the sequence will have.
    pub positions: usize,
    /// Whether it has none yet. Otherwise the KV cache keeps its memory.
    pub is_empty: bool,
    /// Tokens of the step.
    pub tokens: usize,
    /// Whether it is one generated token. Otherwise buffers keep their memory: more of a prompt may follow.
    pub decodes: bool,
}

#[derive(Debug)]
struct InForce {
    budget: Budget,
    /// What is in use of what may be lent.
    used: InUse,
    /// Whether all cores keep to it; false after a failed change.
    settled: bool,
}

impl LiveBudget {
    /// The budget of an engine that is starting on `threads` cores, whose weights have what is `lent`.
    pub fn new(
        mut drawn: Budget,
        plan: &ResidencyPlan,
        (copies, clusters): (Copies, GivingWay),
        (threads, lent): (usize, Lent),
    ) -> Self {
        let now = InForce {
            budget: drawn.clone(),
            used: InUse::FIRST,
            settled: true,
        };
        for (item, bytes) in lent.items(InUse::FIRST) {
            if bytes > 0 {
                drawn.claim(item, bytes, "what weights have until then");
            }
        }
        Self {
            asked: AtomicU64::new(drawn.total_bytes()),
            now: Mutex::new(now),
            drawn,
            lent,
            copies,
            cache: Cache::of(plan),
            clusters,
            threads: threads as u64,
        }
    }

    /// The budget in force.
    pub fn now(&self) -> Budget {
        self.now.lock().budget.clone()
    }

    /// The minimum total, bytes.
    pub fn least(&self) -> u64 {
        let gone = self.cache.slots - self.cache.least_slots;
        let clusters = self.freed_by_clusters(self.clusters.clusters.len());
        let freed = self.freed_by_slots(gone as u64) + clusters + self.copies.freed_in_all(0);
        self.drawn.claimed() - freed
    }

    /// Requests a total of `bytes` from the next step on.
    ///
    /// # Errors
    /// Less than what cannot shrink, or more than at the start.
    pub fn ask(&self, bytes: u64) -> Result<(), Error> {
        if bytes > self.drawn.total_bytes() {
            let problem = format!(
                "{bytes} bytes are more than the {} with which the engine was started; its memory is planned once, so \
                 build a new engine for more",
                self.drawn.total_bytes()
            );
            return Err(Error::parameter("memory", problem));
        }
        // With nothing lent: else a later step would not fit.
        self.fitted(bytes, InUse::ALL)?;
        self.asked.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// A watch on memory pressure for this engine.
    pub(crate) fn watch(&self) -> Watch {
        Watch::new(self.releasable())
    }

    /// What could be given back before anything has been generated.
    fn releasable(&self) -> u64 {
        self.claimed(InUse::FIRST).saturating_sub(self.least())
    }

    /// Puts the requested budget into force, between two steps, or `spared` bytes less than is claimed, as far as that
    /// is possible, before a step with such a `need`.
    ///
    /// # Errors
    /// Why a core has ended, or why a cluster could not be pinned again; the next call tries again.
    pub(crate) fn apply(&self, graph: &mut Runtime, spared: u64, need: Need) -> Result<(), Fault> {
        let Some((used, total)) = self.due(spared, need) else {
            return Ok(());
        };
        // The requested total was checked in `ask`, and the minimum is possible.
        let Ok((sizes, budget)) = self.fitted(total, used) else {
            return Ok(());
        };
        let done = graph.resize(sizes);
        let mut now = self.now.lock();
        (now.settled, now.used) = (done.is_ok(), used);
        if now.settled {
            now.budget = budget;
        }
        done
    }

    /// What will be in use, and the total of the budget that is to be put into force; `None` if they are.
    fn due(&self, spared: u64, need: Need) -> Option<(InUse, u64)> {
        let asked = self.asked.load(Ordering::Relaxed);
        let now = self.now.lock();
        let mut used = self.lent.in_use(need.positions, need.tokens);
        if !need.is_empty {
            used.kv = used.kv.max(now.used.kv);
        }
        if !need.decodes {
            used.scratch = used.scratch.max(now.used.scratch);
        }
        let total = self.total(asked, spared, used);
        let in_force = now.settled && (used, total) == (now.used, now.budget.total_bytes());
        (!in_force).then_some((used, total))
    }

    /// The total of which `spared` bytes of what is claimed are not used.
    fn total(&self, asked: u64, spared: u64, used: InUse) -> u64 {
        match spared {
            0 => asked,
            _ => asked.min(self.claimed(used).saturating_sub(spared).max(self.least())),
        }
    }

    /// What is claimed while so much is in use.
    fn claimed(&self, used: InUse) -> u64 {
        self.drawn.claimed() - self.lent.left(used)
    }

    /// What is kept under a total of `bytes` while so much is in use, and the budget then. Copies on a device go first:
    /// nothing is read instead. Then the cache shrinks: its contents come back as they are wanted, if they are.
    fn fitted(&self, bytes: u64, used: InUse) -> Result<(Sizes, Budget), Error> {
        let over = self.claimed(used).saturating_sub(bytes);
        let phases_on_device = self.copies.keep(over);
        let copies = self.copies.freed(phases_on_device);
        let window = self.copies.freed_window(phases_on_device);
        let kv = self.copies.freed_kv(phases_on_device);
        let over = over.saturating_sub(copies + window + kv);
        let per_slot = self.threads * self.cache.slot_bytes as u64;
        let wanted = match over {
            0 => 0,
            _ => (over + self.threads * EDGES).div_ceil(per_slot.max(1)),
        };
        let gone = wanted.min((self.cache.slots - self.cache.least_slots) as u64);
        let freed = self.freed_by_slots(gone);
        let given = match over.saturating_sub(freed) {
            0 => 0,
            rest => self.clusters.enough_for(rest + self.threads * EDGES),
        };
        let budget = self.drawn.changed(bytes, self.cache.item, freed);
        let budget = budget.changed(bytes, PINNED, self.freed_by_clusters(given));
        let budget = budget.changed(bytes, COPIES, copies);
        let budget = budget.changed(bytes, WINDOW, window);
        let mut budget = budget.changed(bytes, KV_COPIES, kv);
        for (item, left) in self.lent.items(used) {
            budget = budget.changed(bytes, item, left);
        }
        budget.check()?;
        let sizes = Sizes {
            cache_slots: self.cache.slots - gone as usize,
            evicted_clusters: given as u32,
            phases_on_device,
            max_tokens: self.lent.max_tokens(used),
            kv_blocks: self.lent.kv_blocks(used),
        };
        Ok((sizes, budget))
    }

    /// Bytes that all cores together release with `gone` slots each.
    fn freed_by_slots(&self, gone: u64) -> u64 {
        let bytes = gone * self.threads * self.cache.slot_bytes as u64;
        bytes.saturating_sub(self.threads * EDGES)
    }

    /// Bytes that they release with the first `given` clusters.
    fn freed_by_clusters(&self, given: usize) -> u64 {
        let bytes = self.clusters.bytes_of(given);
        bytes.saturating_sub(self.threads * EDGES)
    }
}

#[cfg(test)]
mod tests;
