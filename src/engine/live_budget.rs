//! The budget while the engine runs. What gives way is the neuron cache, and then pinned clusters of a model that
//! streams others anyway; no result depends on either. Keys and values and all other pinned weights stay where they
//! are.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_actors::fault::Fault;
use forebay_actors::runtime::{Runtime, Sizes};
use forebay_plans::budget::Budget;
use forebay_plans::giving_way::GivingWay;
use forebay_plans::residency::NeuronCachePlan;
use parking_lot::Mutex;

use super::pressure::Watch;
use crate::error::Error;

/// The items that give way.
const CACHE: &str = "neuron_cache";
const PINNED: &str = "resident_weights";
/// Bytes per core that shrinking does not bring: pages at both ends of the idle memory that it covers in part.
const EDGES: u64 = 128 << 10;

/// What was asked for, by any thread, and what is in force, by the engine thread.
#[derive(Debug)]
pub(crate) struct LiveBudget {
    /// The budget that the engine was started with.
    drawn: Budget,
    cache: NeuronCachePlan,
    clusters: GivingWay,
    threads: u64,
    /// Bytes.
    asked: AtomicU64,
    now: Mutex<InForce>,
}

#[derive(Debug)]
struct InForce {
    budget: Budget,
    /// Whether all cores keep to it; not where a change has failed.
    settled: bool,
}

impl LiveBudget {
    /// The budget of an engine that starts.
    pub fn new(drawn: Budget, cache: NeuronCachePlan, clusters: GivingWay, threads: usize) -> Self {
        Self {
            asked: AtomicU64::new(drawn.total_bytes()),
            now: Mutex::new(InForce {
                budget: drawn.clone(),
                settled: true,
            }),
            drawn,
            cache,
            clusters,
            threads: threads as u64,
        }
    }

    /// The budget in force.
    pub fn now(&self) -> Budget {
        self.now.lock().budget.clone()
    }

    /// The least possible total, bytes.
    pub fn least(&self) -> u64 {
        let gone = self.cache.slots - self.cache.least_slots;
        let clusters = self.freed_by_clusters(self.clusters.clusters.len());
        self.drawn.claimed() - self.freed_by_slots(gone as u64) - clusters
    }

    /// Asks for a total of `bytes` from the next step on.
    ///
    /// # Errors
    /// Less than what cannot give way, or more than at the start.
    pub fn ask(&self, bytes: u64) -> Result<(), Error> {
        if bytes > self.drawn.total_bytes() {
            let problem = format!(
                "{bytes} bytes are more than the {} that the engine was started with; what it is to hold is planned \
                 once, so build a new engine for more",
                self.drawn.total_bytes()
            );
            return Err(Error::parameter("memory", problem));
        }
        self.fitted(bytes)?;
        self.asked.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Looks at the memory's pressure for this engine.
    pub(super) fn watch(&self) -> Watch {
        Watch::new(self.drawn.claimed() - self.least())
    }

    /// Brings what was asked for into force, between two steps, or `spared` bytes less than is in use, as far as that
    /// is possible.
    ///
    /// # Errors
    /// The cause for which a core has ended, or for which a cluster could not be pinned again; the next call tries
    /// anew.
    pub fn apply(&self, graph: &mut Runtime, spared: u64) -> Result<(), Fault> {
        let asked = self.asked.load(Ordering::Relaxed);
        let total = match spared {
            0 => asked,
            _ => asked.min((self.drawn.claimed() - spared).max(self.least())),
        };
        {
            let now = self.now.lock();
            if now.settled && total == now.budget.total_bytes() {
                return Ok(());
            }
        }
        // What is asked for was checked then, and the least is possible.
        let Ok((sizes, budget)) = self.fitted(total) else {
            return Ok(());
        };
        let done = graph.resize(sizes);
        let mut now = self.now.lock();
        now.settled = done.is_ok();
        if now.settled {
            now.budget = budget;
        }
        done
    }

    /// What is kept under a total of `bytes`, and the budget then. The cache gives way first: what it holds comes
    /// back by itself, and may not be wanted.
    fn fitted(&self, bytes: u64) -> Result<(Sizes, Budget), Error> {
        let over = self.drawn.claimed().saturating_sub(bytes);
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
        let budget = self.drawn.changed(bytes, CACHE, freed);
        let budget = budget.changed(bytes, PINNED, self.freed_by_clusters(given));
        budget.check()?;
        let sizes = Sizes {
            cache_slots: self.cache.slots - gone as usize,
            evicted_clusters: given as u32,
        };
        Ok((sizes, budget))
    }

    /// Bytes that all cores together give back with `gone` slots each.
    fn freed_by_slots(&self, gone: u64) -> u64 {
        let bytes = gone * self.threads * self.cache.slot_bytes as u64;
        bytes.saturating_sub(self.threads * EDGES)
    }

    /// Bytes that they give back with the first `given` clusters.
    fn freed_by_clusters(&self, given: usize) -> u64 {
        let bytes = self.clusters.bytes_of(given);
        bytes.saturating_sub(self.threads * EDGES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

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
        drawn.claim(CACHE, 2 * cache.bytes_per_core() as u64, "test");
        LiveBudget::new(drawn, cache, GivingWay::default(), 2)
    }

    #[test]
    fn every_total_from_the_least_on_fits_with_as_many_slots_as_it_has_room_for() {
        let live = example();
        let most = live.drawn.total_bytes();
        let mut last = 0;
        for bytes in (live.least()..=most).step_by(4000).chain([most]) {
            let (sizes, budget) = live.fitted(bytes).expect("possible");
            let slots = sizes.cache_slots;
            assert!((200..=1000).contains(&slots) && slots >= last);
            assert!(budget.claimed() <= bytes && budget.total_bytes() == bytes);
            last = slots;
        }
        assert_eq!(last, 1000);
        assert!(live.least() < 105 * MIB);
    }

    #[test]
    fn less_than_the_least_and_more_than_at_the_start_are_refused() {
        let live = example();
        let message = live
            .ask(live.least() - 1)
            .expect_err("too little")
            .to_string();
        let least = format!("least possible is {} MiB", live.least().div_ceil(MIB));
        assert!(message.contains(&least), "{message}");
        assert!(live.ask(121 * MIB).is_err());
        live.ask(live.least()).expect("the least is possible");
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
        let live = LiveBudget::new(drawn, NeuronCachePlan::default(), GivingWay::default(), 2);
        assert_eq!(live.least(), 100 * MIB);
        assert!(live.ask(100 * MIB - 1).is_err());
        live.ask(100 * MIB).expect("what is claimed is enough");
    }
}
