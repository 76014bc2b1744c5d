//! The budget while the engine runs. Copies on a device that shares the memory go first, phase by phase: the cores have
//! those weights and compute them. Then the cache of neurons or of experts shrinks; then pinned clusters of a model that
//! streams others are evicted. No result depends on any of it. Keys and values and all other pinned weights stay.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_actors::fault::Fault;
use forebay_actors::runtime::{Runtime, Sizes};
use forebay_plans::budget::Budget;
use forebay_plans::expert_cache::ExpertCachePlan;
use forebay_plans::giving_way::GivingWay;
use forebay_plans::residency::ResidencyPlan;
use parking_lot::Mutex;

use super::copies::Copies;
use super::pressure::Watch;
use crate::error::Error;
use crate::lent::{InUse, Lent};

/// The items that shrink besides the cache.
const PINNED: &str = "resident_weights";
const COPIES: &str = "device_weights";
const WINDOW: &str = "device_window";
pub(super) const KV_COPIES: &str = "device_kv";
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
pub(super) struct Need {
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
    pub(super) fn watch(&self) -> Watch {
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
    pub(super) fn apply(&self, graph: &mut Runtime, spared: u64, need: Need) -> Result<(), Fault> {
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
mod tests {
    use forebay_plans::on_device::OnDevice;
    use forebay_plans::residency::NeuronCachePlan;

    use super::*;
    use crate::lent::{KV_CACHE, Loan, SCRATCH};

    const MIB: u64 = 1 << 20;

    fn plan(neuron_cache: NeuronCachePlan, expert_cache: ExpertCachePlan) -> ResidencyPlan {
        ResidencyPlan {
            residency: Vec::new(),
            owner: Vec::new(),
            stream_slots: 0,
            stream_slot_bytes: 0,
            neuron_cache,
            expert_cache,
            pinned_bytes: 0,
            on_device: OnDevice::default(),
        }
    }

    /// 2 cores with 1000 slots of 8 KiB, 15.6 MiB, and 100 MiB that stay.
    fn example() -> LiveBudget {
        let cache = NeuronCachePlan {
            slots: 1000,
            slot_bytes: 8192,
            least_slots: 200,
            ..NeuronCachePlan::default()
        };
        let mut drawn = Budget::new(120 * MIB);
        drawn.claim("resident_weights", 100 * MIB, "test");
        drawn.claim("neuron_cache", 2 * cache.bytes_per_core() as u64, "test");
        let plan = plan(cache, ExpertCachePlan::default());
        LiveBudget::new(drawn, &plan, Default::default(), (2, Lent::default()))
    }

    /// What is lent is part of what could give way, but here nothing can.
    #[test]
    fn an_engine_that_can_release_nothing_is_not_asked_to() {
        let mut drawn = Budget::new(120 * MIB);
        drawn.claim("resident_weights", 100 * MIB, "test");
        drawn.claim(KV_CACHE, 10 * MIB, "test");
        let lent = Lent {
            kv: Loan::new((10, 5), MIB, |units| units as u64 * MIB),
            scratch: Loan::default(),
        };
        assert!(lent.left(InUse::FIRST) > 0);
        let plan = plan(NeuronCachePlan::default(), ExpertCachePlan::default());
        let live = LiveBudget::new(drawn, &plan, Default::default(), (2, lent));
        assert_eq!(live.releasable(), 0);
        assert!(live.total(120 * MIB, u64::MAX, InUse::FIRST) >= live.least());
    }

    /// 2 cores with 16 cells of a MiB each.
    #[test]
    fn the_expert_cache_shrinks_to_a_few_cells() {
        let cache = ExpertCachePlan {
            cells: 16,
            cell_bytes: MIB as usize,
        };
        let mut drawn = Budget::new(140 * MIB);
        drawn.claim("resident_weights", 100 * MIB, "test");
        drawn.claim("expert_cache", 2 * cache.bytes_per_core() as u64, "test");
        let plan = plan(NeuronCachePlan::default(), cache);
        let live = LiveBudget::new(drawn, &plan, Default::default(), (2, Lent::default()));
        assert!(live.least() < 110 * MIB);
        let (sizes, budget) = live.fitted(live.least(), InUse::ALL).expect("possible");
        assert_eq!(sizes.cache_slots, ExpertCachePlan::LEAST_CELLS);
        assert!(budget.claimed() <= live.least());
    }

    #[test]
    fn every_total_from_the_least_on_fits_with_as_many_slots_as_it_has_room_for() {
        let live = example();
        let most = live.drawn.total_bytes();
        let mut last = 0;
        for bytes in (live.least()..=most).step_by(4000).chain([most]) {
            let (sizes, budget) = live.fitted(bytes, InUse::ALL).expect("possible");
            let slots = sizes.cache_slots;
            assert!((200..=1000).contains(&slots) && slots >= last);
            assert!(budget.claimed() <= bytes && budget.total_bytes() == bytes);
            last = slots;
        }
        assert_eq!(last, 1000);
        assert!(live.least() < 105 * MIB);
    }

    /// A change costs the cores a step of its own, and empties the stream window.
    #[test]
    fn a_text_that_grows_changes_nothing_unless_weights_have_memory_of_it() {
        let need = |positions, tokens| Need {
            positions,
            tokens,
            decodes: tokens == 1,
            is_empty: false,
        };
        let live = example();
        for positions in 0..5000 {
            assert_eq!(live.due(0, need(positions, 1)), None, "{positions}");
            assert_eq!(live.due(0, need(positions, 99)), None, "{positions}");
        }
        let total = live.drawn.total_bytes();
        let bytes = |n: usize| n as u64;
        let lender = LiveBudget {
            lent: Lent {
                kv: Loan::new((1024, 128), u64::MAX, bytes),
                scratch: Loan::new((64, 8), u64::MAX, bytes),
            },
            ..example()
        };
        let used = |kv, scratch| Some((InUse { kv, scratch }, total));
        assert_eq!(lender.due(0, need(128, 8)), None);
        assert_eq!(lender.due(0, need(129, 1)), used(2, 1));
        assert_eq!(lender.due(0, need(1, 9)), used(1, 2));
        lender.now.lock().used = InUse { kv: 2, scratch: 8 };
        // The rest of a prompt, then a generated token.
        assert_eq!(lender.due(0, need(200, 3)), None);
        assert_eq!(lender.due(0, need(200, 1)), used(2, 1));
    }

    /// Of phases of 3, 0, 5 and 2 MiB, a window of 1, and keys and values of 4, beside a cache.
    #[test]
    fn copies_on_a_device_go_first_and_from_the_last_phase_on() {
        let copies = Copies {
            phases: [3, 0, 5, 2].map(|mib| mib * MIB).to_vec(),
            window: MIB,
            kv: 4 * MIB,
        };
        let mut live = example();
        live.drawn.claim("device_weights", 10 * MIB, "test");
        live.drawn.claim("device_window", MIB, "test");
        live.drawn.claim("device_kv", 4 * MIB, "test");
        live.copies = copies;
        let (claimed, slots) = (live.drawn.claimed(), live.cache.slots);
        for (less, kept, left) in [
            (0, usize::MAX, 10),
            (1, 5, 10),
            (4 * MIB, 5, 10),
            (4 * MIB + 1, 4, 10),
            (5 * MIB, 4, 10),
            (5 * MIB + 1, 3, 8),
            (7 * MIB, 3, 8),
            (7 * MIB + 1, 2, 3),
            (12 * MIB, 2, 3),
            (12 * MIB + 1, 0, 0),
            (15 * MIB, 0, 0),
        ] {
            let (sizes, budget) = live.fitted(claimed - less, InUse::ALL).expect("possible");
            assert_eq!((sizes.phases_on_device, sizes.cache_slots), (kept, slots));
            let of = |name| {
                budget
                    .items()
                    .iter()
                    .find(|i| i.name == name)
                    .map(|i| i.bytes)
            };
            let window = if kept > 4 { MIB } else { 0 };
            let kv = if kept > 5 { 4 * MIB } else { 0 };
            let expected = [left * MIB, window, kv].map(Some);
            let found = [COPIES, WINDOW, KV_COPIES].map(of);
            assert_eq!(found, expected, "{less} less");
            assert!(budget.claimed() <= claimed - less);
        }
        // Then the cache.
        let (sizes, _) = live
            .fitted(claimed - 16 * MIB, InUse::ALL)
            .expect("possible");
        assert!(sizes.phases_on_device == 0 && sizes.cache_slots < slots);
        assert_eq!(live.least(), example().least());
    }

    /// Of a KV cache of 10 MiB and buffers of 4, seven eighths are lent to the cache of neurons.
    #[test]
    fn what_is_lent_is_given_back_under_every_total() {
        let written = |positions| (positions as u64 * 10 * MIB).div_ceil(1024);
        let buffers = |tokens| (tokens as u64 * 4 * MIB).div_ceil(128);
        let plain = example();
        let mut drawn = plain.drawn.clone();
        drawn.claim(KV_CACHE, written(128), "test");
        drawn.claim(SCRATCH, buffers(16), "test");
        let cache = NeuronCachePlan {
            slots: 1000,
            slot_bytes: 8192,
            least_slots: 200,
            ..NeuronCachePlan::default()
        };
        let plan = plan(cache, ExpertCachePlan::default());
        let lent = Lent {
            kv: Loan::new((1024, 128), u64::MAX, written),
            scratch: Loan::new((128, 16), u64::MAX, buffers),
        };
        let live = LiveBudget::new(drawn, &plan, Default::default(), (2, lent));
        assert_eq!(live.now().claimed(), live.claimed(InUse::FIRST));
        // As little is possible as if nothing had been lent.
        assert_eq!(live.least(), plain.least() + 14 * MIB);
        assert!(live.ask(live.least() - 1).is_err() && live.ask(live.least()).is_ok());
        for total in [live.least(), live.claimed(InUse::FIRST)] {
            let mut slots = usize::MAX;
            for (positions, tokens) in (0..=1024).step_by(64).zip((0..).step_by(8)) {
                let used = live.lent.in_use(positions, tokens);
                let (sizes, budget) = live.fitted(total, used).expect("possible");
                let of = |name| budget.items().iter().find(|item| item.name == name);
                let bytes = |name| of(name).map_or(0, |item| item.bytes);
                let (kv, scratch) = (bytes(KV_CACHE), bytes(SCRATCH));
                assert!(kv >= written(positions) && kv <= 10 * MIB);
                assert!(scratch >= buffers(tokens) && scratch <= 4 * MIB);
                assert!(sizes.kv_blocks * 64 >= positions && sizes.max_tokens >= tokens);
                assert!(budget.claimed() <= total && sizes.cache_slots <= slots);
                slots = sizes.cache_slots;
            }
            assert!(slots < 1000);
        }
    }

    /// A device with its own memory has nothing that a smaller budget could use.
    #[test]
    fn what_is_not_in_the_budget_does_not_go() {
        let live = example();
        let (sizes, _) = live.fitted(live.least(), InUse::ALL).expect("possible");
        assert_eq!(sizes.phases_on_device, usize::MAX);
    }

    #[test]
    fn less_than_the_least_and_more_than_at_the_start_are_refused() {
        let live = example();
        let message = live
            .ask(live.least() - 1)
            .expect_err("too little")
            .to_string();
        let least = format!("the minimum is {} MiB", live.least().div_ceil(MIB));
        assert!(message.contains(&least), "{message}");
        assert!(live.ask(121 * MIB).is_err());
        live.ask(live.least()).expect("the minimum is possible");
        assert_eq!(
            live.now(),
            live.drawn,
            "nothing changes before the next step"
        );
    }

    #[test]
    fn without_cache_and_stream_only_what_is_unclaimed_can_go() {
        let mut drawn = Budget::new(120 * MIB);
        drawn.claim("resident_weights", 100 * MIB, "test");
        let plan = plan(NeuronCachePlan::default(), ExpertCachePlan::default());
        let live = LiveBudget::new(drawn, &plan, Default::default(), (2, Lent::default()));
        assert_eq!(live.least(), 100 * MIB);
        assert!(live.ask(100 * MIB - 1).is_err());
        live.ask(100 * MIB).expect("what is claimed is enough");
    }
}
