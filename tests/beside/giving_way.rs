//! A smaller budget takes a device's copies of weights, and of keys and values before; the cores compute meanwhile, and
//! no token changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay::{DeviceChoice, DeviceStatistics, Engine, EngineBuilder, KvType};
use forebay_devices::simulated::Behaviour;

use super::device::{Hold, Trouble, lost, with_behaviour, with_device};
use super::faults::{dense, run, run_from};
use crate::support::{build, change_budget};

/// What never comes within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A model of which a device only has weights: it does not attend over bytes.
fn of_weights(threads: usize) -> EngineBuilder {
    dense(threads).kv_type(KvType::Q8)
}

/// What comes of that without a device.
fn alone() -> String {
    run(&build(of_weights(2).device(DeviceChoice::Cpu))).logits_hash
}

/// An engine, its device, the bytes of its copies, and what is claimed of its budget.
fn start(threads: usize, part: f64) -> (Engine, Hold, u64, u64) {
    let (builder, hold) = with_device(of_weights(threads), part);
    let engine = build(builder);
    let copies = hold.memory();
    assert!(copies > 0);
    assert_eq!(of_budget(&engine), copies, "the budget has them");
    let claimed = engine.budget().claimed();
    (engine, hold, copies, claimed)
}

/// What the budget in force says of the copies.
fn of_budget(engine: &Engine) -> u64 {
    let budget = engine.budget();
    let item = budget.items().iter().find(|i| i.name == "device_weights");
    item.map_or(0, |item| item.bytes)
}

#[test]
fn copies_on_a_device_give_way_and_come_back() {
    let alone = alone();
    for (threads, part) in [(1, 0.3), (2, 1.0)] {
        let (engine, hold, copies, claimed) = start(threads, part);
        let total = engine.budget().total_bytes();
        let all = run(&engine).device.expect("a device");
        let mut last = (copies, all.decode_share);
        for less in [1, copies / 2, copies] {
            change_budget(&engine, claimed - less);
            let (memory, run) = (hold.memory(), run(&engine));
            let device = run.device.expect("a device");
            assert_eq!(run.logits_hash, alone, "{threads} {part} {less}");
            assert_eq!(of_budget(&engine), memory);
            assert!(memory + less <= copies && memory <= last.0, "{memory}");
            assert_eq!(memory < last.0, device.decode_share < last.1, "{device:?}");
            assert_eq!(device.jobs > 0, memory > 0, "{device:?}");
            assert_eq!((device.faults, &device.problem), (0, &None));
            last = (memory, device.decode_share);
        }
        change_budget(&engine, total);
        assert_eq!(hold.memory(), copies, "all is back");
        let back = run(&engine);
        assert_eq!(back.logits_hash, alone);
        let device = back.device.expect("a device");
        assert_eq!(
            (device.jobs, device.decode_share),
            (all.jobs, all.decode_share)
        );
    }
}

/// What a device computes with where the cores have it takes no memory, and stays there under a smaller budget.
#[test]
fn imported_weights_take_no_memory() {
    let copying = start(2, 1.0).0;
    let all = run(&copying).device.expect("a device");
    drop(copying);
    let imports = Behaviour {
        imports: true,
        ..Behaviour::ideal()
    };
    let (builder, hold) = with_behaviour(of_weights(2), 1.0, (usize::MAX, imports));
    let engine = build(builder);
    let budget = engine.budget();
    let mut items = budget.items().iter();
    assert!(
        !items.any(|i| ["device_weights", "device_staging"].contains(&&*i.name) && i.bytes > 0)
    );
    for bytes in [budget.claimed(), engine.least_budget()] {
        change_budget(&engine, bytes);
        let run = run(&engine);
        let device = run.device.expect("a device");
        assert_eq!((hold.memory(), of_budget(&engine)), (0, 0));
        assert_eq!(run.logits_hash, alone(), "within {bytes}");
        let shares = |d: &DeviceStatistics| (d.jobs, d.decode_share, d.prompt_share);
        assert_eq!(shares(&device), shares(&all), "within {bytes}");
    }
    hold.fail_after(3, Trouble::Ends(lost()));
    assert_eq!(run(&engine).logits_hash, alone());
}

/// Another budget every few milliseconds, whatever is being computed.
#[test]
fn copies_give_way_between_two_tokens() {
    let (engine, hold, copies, claimed) = start(2, 1.0);
    let (done, before, begun) = (AtomicBool::new(false), hold.loads(), Instant::now());
    let mut hashes = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                let less = copies * (7 * number % 5) / 4;
                engine.set_budget(claimed - less).expect("possible");
                std::thread::sleep(Duration::from_millis(2));
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        while hold.loads() < before + 40 && begun.elapsed() < PATIENCE {
            hashes.push(run(&engine).logits_hash);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(hold.loads() >= before + 40, "{} loads", hold.loads());
    let right = alone();
    assert!(hashes.iter().all(|hash| *hash == right), "{hashes:?}");
    change_budget(&engine, claimed - copies);
    assert_eq!(hold.memory(), 0);
}

/// It has given its memory to somebody else meanwhile: the cores keep what it has no room for.
#[test]
fn a_device_may_have_less_room_afterwards() {
    let alone = alone();
    // As many segments as it has at the start, those of the check included, and two more.
    let (_, roomy, copies, _) = start(2, 1.0);
    let limits = (roomy.loads() as usize + 2, Behaviour::ideal());
    let (builder, hold) = with_behaviour(of_weights(2), 1.0, limits);
    let engine = build(builder);
    let (claimed, total) = (engine.budget().claimed(), engine.budget().total_bytes());
    change_budget(&engine, claimed - copies);
    change_budget(&engine, total);
    let some = hold.memory();
    assert!(some > 0 && some < copies, "{some} of {copies}");
    let run = run(&engine);
    let device = run.device.expect("a device");
    assert_eq!(run.logits_hash, alone);
    assert!(device.jobs > 0 && device.problem.is_none(), "{device:?}");
}

/// What a device that is lost had in the shared memory goes back, and nothing is copied to it again.
#[test]
fn a_lost_device_gives_its_memory_back() {
    let alone = alone();
    let (engine, hold, copies, claimed) = start(2, 1.0);
    let total = engine.budget().total_bytes();
    change_budget(&engine, claimed - copies / 2);
    hold.fail_after(5, Trouble::Ends(lost()));
    let during = run(&engine);
    assert_eq!(during.logits_hash, alone);
    assert!(during.device.is_some_and(|device| device.loss().is_some()));
    for bytes in [claimed - copies, total] {
        change_budget(&engine, bytes);
        assert_eq!(hold.memory(), 0, "under {bytes}");
        assert_eq!(run(&engine).logits_hash, alone);
    }
}

/// Keys and values go before anything else, and are copied again when they come back.
#[test]
fn keys_and_values_give_way_first_and_come_back() {
    let alone = build(dense(2).device(DeviceChoice::Cpu));
    let (builder, hold) = with_device(dense(2), 0.7);
    let engine = build(builder);
    let budget = engine.budget();
    let (claimed, total) = (budget.claimed(), budget.total_bytes());
    let mut items = budget.items().iter();
    let item = items.find(|item| item.name == "device_kv");
    let kv = item.expect("keys and values").bytes;
    let mut first = 3;
    let mut attends = |expected: bool| {
        first += 1;
        let run = run_from(&engine, first);
        let device = run.device.expect("a device");
        assert_eq!(run.logits_hash, run_from(&alone, first).logits_hash);
        assert_eq!(device.attention_jobs > 0, expected, "{device:?}");
        assert_eq!((device.faults, device.problem), (0, None));
        device.decode_share
    };
    let (all, share) = (hold.memory(), attends(true));
    assert!(share > 0.3 && all > kv, "{share}, {kv} of {all} bytes");
    for less in [1, kv] {
        change_budget(&engine, claimed - less);
        assert_eq!(hold.memory(), all - kv);
        assert_eq!(attends(false), share);
        change_budget(&engine, total);
        assert_eq!(hold.memory(), all);
        assert_eq!(attends(true), share);
    }
    change_budget(&engine, claimed - kv - 1);
    assert!(hold.memory() < all - kv, "then weights go");
    assert!(attends(false) < share);
}
