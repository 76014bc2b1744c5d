//! Any machine and any model: a plan that keeps the budget, or the item that does not fit.

mod grid;
mod inside_experts;
mod shapes;

use std::collections::BTreeMap;
use std::path::Path;

use forebay_models::bundle::{Bundle, PackOptions};
use forebay_models::kv_type::KvType;
use forebay_models::tokenizer::EncodingMemory;
use forebay_plans::machine::{DiskProfile, DiskRate, KernelRate, MachineProfile};
use forebay_plans::plan::{PLAN_VERSION, Plan, PlannedModel};
use forebay_plans::residency::{Pipeline, STREAM_WINDOW, Sparsity};
use forebay_plans::topology::Topology;
use proptest::prelude::*;

use super::{Fixed, Outlook, Wish, fastest, least_memory};
use crate::error::Error;
use crate::memory::{MemoryRequest, plan};
use crate::profiles::{ExpertMisses, ExpertProfile, Profile};

/// Machines by what the kernel says of their CPUs: capacity (phones) or greatest frequency, and siblings.
#[derive(Clone, Debug)]
enum Cpus {
    /// 1 prime, 3 big and 4 little cores.
    Phone,
    /// Cores with two threads, and efficient cores.
    Hybrid { fast: usize, slow: usize },
    /// Equal cores.
    Plain(usize),
}

fn put(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// The cores that would compute on such a machine.
fn cores(cpus: &Cpus) -> Vec<usize> {
    let tree = tempfile::tempdir().unwrap();
    let root = tree.path();
    let cpu = |id: usize, file: &str, value: String| {
        put(
            root,
            &format!("sys/devices/system/cpu/cpu{id}/{file}"),
            &value,
        );
    };
    let n = match *cpus {
        Cpus::Phone => {
            for id in 0..8 {
                let capacity = [1024, 870, 870, 870, 300, 300, 300, 300][id];
                cpu(id, "cpu_capacity", format!("{capacity}\n"));
            }
            8
        }
        Cpus::Hybrid { fast, slow } => {
            for core in 0..fast {
                for id in [2 * core, 2 * core + 1] {
                    let siblings = format!("{}-{}\n", 2 * core, 2 * core + 1);
                    cpu(id, "topology/thread_siblings_list", siblings);
                    cpu(id, "cpufreq/cpuinfo_max_freq", "5200000\n".into());
                }
            }
            for id in 2 * fast..2 * fast + slow {
                cpu(id, "cpufreq/cpuinfo_max_freq", "3900000\n".into());
            }
            2 * fast + slow
        }
        Cpus::Plain(n) => n,
    };
    let all = format!("0-{}", n - 1);
    put(root, "sys/devices/system/cpu/online", &all);
    put(
        root,
        "proc/self/status",
        &format!("Cpus_allowed_list:\t{all}\n"),
    );
    put(root, "proc/self/cgroup", "");
    put(root, "proc/self/mountinfo", "");
    let topology = Topology::read_from(&root.join("sys"), &root.join("proc")).unwrap();
    topology.compute_cores(None).unwrap()
}

/// A small real bundle: ReLU with predictors where `sparse`, else SwiGLU in blocks.
fn bundle(sparse: bool) -> Bundle {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = match sparse {
        true => root.join("models/demo/hf"),
        false => root.join("tests/golden/tiny/llama_k/model.gguf"),
    };
    let folder = std::env::temp_dir().join("forebay-planner-tests");
    std::fs::create_dir_all(&folder).unwrap();
    crate::packed::open(&model, Some(&folder), &PackOptions::default(), &mut |_| {}).unwrap()
}

/// The same model with clusters `times` as long, as a wider one would have, as far as planning looks at it.
fn widened(mut bundle: Bundle, times: u32) -> Bundle {
    for e in &mut bundle.clusters {
        e.len = e.len.saturating_mul(times);
    }
    bundle
}

fn machine(cores: Vec<usize>, outlook_rates: (f64, f64, f64)) -> (MachineProfile, DiskProfile) {
    let (memory, kernel, disk) = outlook_rates;
    let mut machine = MachineProfile::empty("test".into(), cores.clone());
    machine.memory = (1..=cores.len())
        .map(|n| memory * (n as f64).sqrt())
        .collect();
    let rate = KernelRate {
        alone: kernel,
        together: kernel * cores.len() as f64,
        read_alone: 0.0,
        read_together: 0.0,
    };
    machine.kernels = BTreeMap::from([("gemv/Q4_K/256".into(), rate)]);
    let rates = [4096u64, 65536, 524_288].map(|block_bytes| DiskRate {
        block_bytes,
        depth: 16,
        bytes_per_second: disk * (block_bytes as f64 / 524_288.0).sqrt(),
    });
    let disk = DiskProfile {
        rates: rates.to_vec(),
        ..DiskProfile::default()
    };
    (machine, disk)
}

fn request(total: u64, threads: usize, sparsity: Sparsity) -> MemoryRequest {
    MemoryRequest {
        total,
        weights: None,
        process: 9 << 20,
        threads,
        context: None,
        context_hint: None,
        context_needed: 0,
        kv_type: KvType::default(),
        max_batch: None,
        max_logits: 1,
        drafts: 14,
        draft_model: 0,
        device: None,
        sparsity,
        pipeline: Pipeline::Cluster,
        keeps_tables: true,
        stream_window: STREAM_WINDOW,
        neuron_cache: 0,
        counts: 0,
        observer: 0,
        trace: 0,
        encoding: EncodingMemory::default(),
        converses: false,
    }
}

#[test]
fn a_context_that_is_needed_may_take_more_than_its_share() {
    let mut bundle = bundle(true);
    bundle.meta.network.context_length = 1 << 20;
    let context = |needed: usize| {
        let request = MemoryRequest {
            context_needed: needed,
            ..request(20 << 20, 1, Sparsity::Exact)
        };
        crate::memory::plan(&bundle, &request).map(|plan| plan.context)
    };
    let usual = context(0).expect("a plan");
    assert!((512..4096).contains(&usual), "{usual}");
    assert_eq!(context(usual).expect("a plan"), usual);
    assert_eq!(context(usual + 1).expect("a plan"), usual + 256);
    // The minimum that is named is enough for it.
    let least = |total: u64, needed: usize| {
        let request = MemoryRequest {
            context_needed: needed,
            ..request(total, 1, Sparsity::Exact)
        };
        match crate::memory::plan(&bundle, &request) {
            Err(Error::Budget(budget)) => Err(budget.least_mib() << 20),
            planned => Ok(planned.expect("a plan").context),
        }
    };
    let (few, many) = (
        least(1 << 20, 0).unwrap_err(),
        least(1 << 20, 9000).unwrap_err(),
    );
    assert!(few < many, "{few} {many}");
    assert!(least(few, 0).is_ok_and(|context| context < 9000));
    assert!(least(many, 9000).expect("enough") >= 9000);
    // What does not fit is halved until it does.
    let most = context(1 << 19).expect("a plan");
    assert!(most >= usual && most < 1 << 19, "{most}");
}

/// Keys and values have an eighth of the budget, and whatever else weights leave.
#[test]
fn a_context_is_as_long_as_all_weights_allow() {
    let mut bundle = bundle(true);
    bundle.meta.network.context_length = 1 << 20;
    let planned = |mib: u64, context: Option<usize>| {
        let request = MemoryRequest {
            context,
            ..request(mib << 20, 1, Sparsity::Exact)
        };
        crate::memory::plan(&bundle, &request)
    };
    let (mut whole, mut longer) = (0, 0);
    for mib in 20..64 {
        let usual = planned(mib, None).expect("a plan");
        let kv = usual.budget.items().iter().find(|i| i.name == "kv_cache");
        let is_more = kv.is_some_and(|kv| kv.bytes > (mib << 20) / 8);
        assert!(!is_more || usual.residency.is_all_in_memory(), "{mib} MiB");
        longer += usize::from(is_more);
        if usual.residency.is_all_in_memory() && usual.context < 4096 {
            let next = planned(mib, Some(2 * usual.context));
            let is_whole = next.is_ok_and(|next| next.residency.is_all_in_memory());
            assert!(!is_whole, "{mib} MiB");
            whole += 1;
        }
    }
    assert!(whole > 0 && longer > 0, "{whole} {longer}");
}

fn machines() -> impl Strategy<Value = Cpus> {
    prop_oneof![
        Just(Cpus::Phone),
        (1usize..9, 0usize..9).prop_map(|(fast, slow)| Cpus::Hybrid { fast, slow }),
        (1usize..20).prop_map(Cpus::Plain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn a_plan_keeps_the_budget_or_names_what_does_not_fit(
        cpus in machines(),
        (sparse, times) in (any::<bool>(), 1u32..400),
        mib in prop_oneof![1u64..64, 16u64..4096],
        rates in (1e9f64..1e11, 1e8f64..1e11, 1e7f64..1e10),
    ) {
        let cores = cores(&cpus);
        let mut bundle = bundle(sparse);
        if !sparse {
            bundle = widened(bundle, times);
        }
        let threads = cores.len().min(bundle.meta.network.most_cores());
        let sparsity = if sparse { Sparsity::Predicted } else { Sparsity::Dense };
        let (machine, disk) = machine(cores[..threads].to_vec(), rates);
        let request = request(mib << 20, threads, sparsity);
        let outlook = Outlook::new(&bundle, (&machine, &disk), None, request);
        match fastest(&outlook, Fixed::default()) {
            Ok(decision) => {
                let (c, e) = (decision.seen.choices, &decision.seen.expected);
                prop_assert!(c.threads >= 1 && c.threads <= threads);
                prop_assert!(e.memory_items.values().sum::<u64>() <= mib << 20);
                prop_assert!(e.decode_tokens_per_second.is_finite() && e.decode_tokens_per_second > 0.0);
                prop_assert!(e.prefill_tokens_per_second.is_finite() && e.prefill_tokens_per_second > 0.0);
                // The file says the same, and is accepted.
                let plan = Plan {
                    version: PLAN_VERSION,
                    model: PlannedModel { name: "m".into(), identity: 1, weight_bytes: 1 },
                    machine: "test".into(),
                    memory_bytes: mib << 20,
                    choices: c,
                    expected: decision.seen.expected,
                    reasons: decision.reasons,
                    notes: Vec::new(),
                };
                let file = tempfile::NamedTempFile::new().unwrap();
                std::fs::write(file.path(), serde_json::to_vec(&plan).unwrap()).unwrap();
                let read = Plan::read(file.path()).unwrap();
                prop_assert_eq!(read.choices, plan.choices);
                prop_assert!(!read.to_string().is_empty());
            }
            Err(Error::Budget(budget)) => {
                prop_assert!(budget.least > mib << 20);
                let text = budget.to_string();
                prop_assert!(text.contains("process") || text.contains("weights"), "{}", text);
                // What it names is enough.
                let outlook = outlook.within(budget.least_mib() << 20);
                prop_assert!(fastest(&outlook, Fixed::default()).is_ok());
            }
            Err(e) => prop_assert!(false, "{e}"),
        }
    }
}

/// The same program is some 100 KiB larger from one start to the next, and a plan is carried out in another one.
#[test]
fn a_plan_near_the_minimum_fits_in_a_larger_process() {
    let bundle = widened(bundle(false), 100);
    let (machine, disk) = machine(vec![0, 1], (2e10, 1e10, 2e9));
    let least = match plan(&bundle, &request(1 << 20, 2, Sparsity::Dense)) {
        Err(Error::Budget(budget)) => budget.least,
        other => panic!("{other:?}"),
    };
    for spare in 1 << 2..9 << 2 {
        let request = request(least + (spare << 18), 2, Sparsity::Dense);
        let outlook = Outlook::new(&bundle, (&machine, &disk), None, request);
        let choices = fastest(&outlook, Fixed::default()).unwrap().seen.choices;
        let mut later = outlook;
        later.request.process += 1 << 19;
        let fits = later.layout(&choices).is_ok();
        assert!(fits, "{spare} quarters of a MiB to spare: {choices:?}");
    }
}

#[test]
fn drafts_take_little_and_no_budget_is_too_small_for_their_sake() {
    let bundle = widened(bundle(false), 100);
    let planned = |total, drafts| {
        let request = MemoryRequest {
            drafts,
            ..request(total, 2, Sparsity::Dense)
        };
        plan(&bundle, &request)
    };
    let least = |drafts| match planned(1 << 20, drafts) {
        Err(Error::Budget(budget)) => budget.least,
        other => panic!("{other:?}"),
    };
    assert_eq!(least(14), least(0));
    let row = 4 * bundle.meta.network.vocab_size as u64;
    for mib in [least(0).div_ceil(1 << 20), 100, 400, 4096] {
        let memory = planned(mib << 20, 14).unwrap();
        let items = memory.budget.items().iter();
        let bytes: u64 = items.filter(|i| i.name == "drafts").map(|i| i.bytes).sum();
        assert_eq!(bytes, memory.drafts as u64 * row);
        assert!(bytes <= (mib << 20) / 64);
        assert_eq!(memory.max_logits, 1 + memory.drafts);
        assert!(memory.max_logits <= memory.max_batch);
    }
    assert_eq!(planned(4 << 30, 14).unwrap().drafts, 14);
    assert_eq!(planned(4 << 30, 0).unwrap().drafts, 0);
}

/// A model that has no neurons but those of experts, as wide ones would be.
fn of_experts(folder: &Path) -> Bundle {
    like(folder, "qwen3_moe_bf16")
}

/// A tiny model with experts, as wide ones would be.
fn like(folder: &Path, tiny: &str) -> Bundle {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = root.join("tests/golden/tiny").join(tiny);
    let outline = crate::packed::open_or_outline(&model, Some(folder), &PackOptions::default());
    widened(outline.unwrap().0, 400)
}

/// The part of a bundle's bytes that is `percent` of it, in MiB.
fn part_of(bundle: &Bundle, percent: u64) -> u64 {
    let all: u64 = bundle.clusters.iter().map(|e| e.padded_len() as u64).sum();
    (all * percent / 100) >> 20
}

/// What the cache of experts misses counts.
#[test]
fn reads_of_experts_are_expected() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = of_experts(folder.path());
    let speeds = machine(vec![0, 1], (1e10, 1e10, 1e9));
    let reads = |percent: u64| {
        let outlook = Outlook::new(
            &bundle,
            (&speeds.0, &speeds.1),
            None,
            request(part_of(&bundle, percent) << 20, 2, Sparsity::Dense),
        );
        let seen = fastest(&outlook, Fixed::default()).unwrap().seen.expected;
        (seen.bytes_per_token, seen.decode_seconds.io)
    };
    let [little, more, most] = [60, 80, 200].map(reads);
    assert!(
        little.0 > more.0 && more.0 > 0.0 && most.0 == 0.0,
        "{little:?} {more:?} {most:?}"
    );
    assert!(
        little.1 > more.1 && more.1 > 0.0 && most.1 == 0.0,
        "{little:?} {more:?} {most:?}"
    );
}

/// With all experts in memory, guessing changes nothing, and the usual choices are still what others have to beat.
#[test]
fn guesses_that_change_nothing_keep_their_default() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = like(folder.path(), "qwen3_moe_all_bf16");
    let (machine, disk) = machine(vec![0, 1], (1e10, 1e10, 1e9));
    let request = request(part_of(&bundle, 200) << 20, 2, Sparsity::Dense);
    let outlook = Outlook::new(&bundle, (&machine, &disk), None, request);
    let decision = fastest(&outlook, Fixed::default()).unwrap();
    assert_eq!(outlook.guessable(), 3);
    assert_eq!(decision.seen.choices.guessed_layers, 1);
    assert!(
        decision
            .reasons
            .iter()
            .all(|r| r.choice != "guessed layers")
    );
}

/// A prompt's batch reads experts into all cells, one after the other: at the disk's speed.
#[test]
fn prompts_are_expected_to_read_experts_at_the_disks_speed() {
    const DISK: f64 = 1e9;
    let folder = tempfile::tempdir().unwrap();
    let bundle = of_experts(folder.path());
    let (machine, disk) = machine(vec![0, 1], (1e13, 1e13, DISK));
    let request = request(part_of(&bundle, 60) << 20, 2, Sparsity::Dense);
    let outlook = Outlook::new(&bundle, (&machine, &disk), None, request);
    let seen = fastest(&outlook, Fixed::default()).unwrap().seen;
    let batch_seconds = seen.prompt_seconds * seen.choices.max_batch as f64;
    let all: usize = bundle.clusters.iter().map(|e| e.padded_len()).sum();
    let read = batch_seconds * DISK / all as f64;
    assert!(
        (0.1..1.3).contains(&read),
        "{read} of the model's bytes per batch"
    );
}

/// Where a model has been profiled, its own misses count.
#[test]
fn experts_are_read_as_often_as_the_profile_says() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = of_experts(folder.path());
    let speeds = machine(vec![0, 1], (1e10, 1e10, 1e9));
    let expected = |miss_rate: f64| {
        let point = |cached| ExpertMisses {
            cached,
            miss_rate,
            ..ExpertMisses::default()
        };
        let experts = ExpertProfile {
            counts: vec![vec![1; 8]],
            misses: vec![point(0.001), point(1.0)],
            ..ExpertProfile::default()
        };
        let profile = Profile {
            experts: Some(experts),
            ..shapes::profile(&shapes::QWEN)
        };
        let outlook = Outlook::new(
            &bundle,
            (&speeds.0, &speeds.1),
            Some(&profile),
            request(part_of(&bundle, 70) << 20, 2, Sparsity::Dense),
        );
        fastest(&outlook, Fixed::default()).unwrap().seen.expected
    };
    let [none, half, all] = [0.0, 0.5, 1.0].map(expected);
    assert_eq!(none.bytes_per_token, 0.0);
    let ratio = half.bytes_per_token / all.bytes_per_token;
    assert!((ratio - 0.5).abs() < 1e-9, "{ratio}");
    assert!(all.decode_tokens_per_second < none.decode_tokens_per_second);
}

#[test]
fn a_wished_speed_takes_no_more_memory_than_it_needs() {
    let bundle = widened(bundle(false), 300);
    let (machine, disk) = machine(vec![0, 1], (2e10, 1e10, 2e9));
    let request = request(4 << 30, 2, Sparsity::Dense);
    let outlook = Outlook::new(&bundle, (&machine, &disk), None, request);
    let best = fastest(&outlook, Fixed::default()).unwrap().seen;
    let most = best.expected.decode_tokens_per_second;
    let wished = most * 0.5;
    let decision = least_memory(&outlook, Fixed::default(), Wish::Speed(wished)).unwrap();
    let taken = decision.memory_bytes;
    assert!(decision.seen.expected.decode_tokens_per_second >= wished * 0.999);
    assert!(taken < best.expected.memory_items.values().sum());
    // A tenth less memory does not do.
    let less = fastest(&outlook.within(taken / 10 * 9), Fixed::default());
    assert!(less.is_err() || less.is_ok_and(|d| d.seen.expected.decode_tokens_per_second < wished));
    let never = least_memory(&outlook, Fixed::default(), Wish::Speed(most * 10.0));
    assert!(never.is_err_and(|e| e.to_string().contains("--speed")));
    let scarce = least_memory(
        &outlook.within(taken / 10 * 9),
        Fixed::default(),
        Wish::Speed(wished),
    );
    assert!(scarce.is_err_and(|e| e.to_string().contains("more than the")));
}
