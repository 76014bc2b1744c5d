//! What gives way, and how much of it.

use std::collections::BTreeMap;

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
        device_places: BTreeMap::new(),
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
