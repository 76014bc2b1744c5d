use std::collections::BTreeMap;

use forebay_models::block::BlockType;
use proptest::prelude::*;

use super::*;
use crate::machine::{DiskRate, KernelRate};

const WINDOW: f64 = 24e6;

const CASE: KernelCase = KernelCase {
    kernel: Kernel::Gemv,
    format: BlockType::Q4_0,
    cols: 4096,
};

fn machine() -> MachineProfile {
    let mut machine = MachineProfile::empty("test".into(), vec![0, 1]);
    machine.memory = vec![20e9, 40e9];
    let rate = KernelRate {
        alone: 10e9,
        together: 20e9,
        read_alone: 0.0,
        read_together: 0.0,
    };
    let gemm = KernelCase {
        kernel: Kernel::Gemm,
        ..CASE
    };
    let products = KernelRate {
        alone: 1e13,
        together: 2e13,
        read_alone: 0.0,
        read_together: 0.0,
    };
    machine.kernels = BTreeMap::from([(CASE.key(), rate), (gemm.key(), products)]);
    machine
}

fn disk() -> DiskProfile {
    let rate = |block_bytes, bytes_per_second| DiskRate {
        block_bytes,
        depth: 64,
        bytes_per_second,
    };
    DiskProfile {
        rates: vec![rate(8192, 0.5e9), rate(524_288, 2e9)],
        ..DiskProfile::default()
    }
}

fn rates<'a>((machine, disk): (&'a MachineProfile, &'a DiskProfile), threads: usize) -> Rates<'a> {
    Rates {
        machine,
        disk,
        threads,
        depth: 64,
        window: WINDOW,
    }
}

fn work() -> TokenWork {
    let part = |bytes| vec![Weights { case: CASE, bytes }];
    TokenWork {
        attention: part(1e8),
        predictor: part(0.2e8),
        ffn: part(3e8),
        head: part(0.5e8),
        kv_bytes: 4e7,
        layers: 10,
        clusters: 1000.0,
        ffn_used: 1.0,
        guesses: Vec::new(),
        named_before_attention: 0.0,
    }
}

#[test]
fn the_equations_add_up() {
    let (machine, disk) = (machine(), disk());
    let rates = rates((&machine, &disk), 2);
    let mut t = rates.compute(&work());
    assert!((t.attention - (1e8 / 20e9 + 4e7 / 40e9)).abs() < 1e-9);
    assert!((t.ffn - 3e8 / 20e9).abs() < 1e-9);
    let overhead = 1000.0 * CLUSTER_SECONDS / 2.0 + 10.0 * (LAYER_SECONDS + EXCHANGE_SECONDS);
    assert!((t.overhead - overhead).abs() < 1e-9);
    assert_eq!(t.total(), t.compute());
    assert_eq!(t.bound_by(), "memory read");
    // Streamed clusters overlap, unless neurons are read between them.
    t.stream = rates.stream(200.0, 200.0 * 524_288.0);
    let efficiency = STREAM_EFFICIENCY * (WINDOW / WIDE_WINDOW).powf(WINDOW_POWER);
    assert!((t.stream - 200.0 * 524_288.0 / 2e9 / efficiency).abs() < 1e-9);
    assert_eq!(t.total(), t.stream);
    t.io = rates.neurons(1000.0, 1000.0 * 8192.0);
    assert!((t.io - 1000.0 * 8192.0 / 0.5e9).abs() < 1e-9);
    let hidden = t.io.min(HIDDEN_BEHIND_FFN * t.ffn);
    assert!((t.total() - t.compute() - t.stream - t.io + hidden).abs() < 1e-12);
    assert_eq!(t.bound_by(), "disk read");
}

#[test]
fn a_narrow_stream_window_is_a_little_slower_and_a_very_wide_one_no_faster() {
    let (machine, disk) = (machine(), disk());
    let time = |window| {
        let rates = Rates {
            window,
            ..rates((&machine, &disk), 2)
        };
        rates.stream(200.0, 200.0 * 524_288.0)
    };
    let of_wide = |part: f64| time(part * WIDE_WINDOW) / time(WIDE_WINDOW);
    assert!((of_wide(1.0 / 16.0) - 1.32).abs() < 0.01);
    assert_eq!(of_wide(4.0), 1.0);
}

#[test]
fn neurons_that_are_named_before_attention_are_read_beside_it() {
    let (machine, disk) = (machine(), disk());
    let rates = rates((&machine, &disk), 2);
    let total = |named_before_attention, reads: f64| {
        let work = TokenWork {
            named_before_attention,
            ..work()
        };
        let mut t = rates.compute(&work);
        t.io = rates.neurons(reads, reads * 8192.0);
        (t.total(), t)
    };
    let ((after, t), (half, _), (before, _)) = (total(0.0, 1e4), total(0.5, 1e4), total(1.0, 1e4));
    assert!((after - before - HIDDEN_BEHIND_ATTENTION * t.attention).abs() < 1e-12);
    assert!((after - 2.0 * half + before).abs() < 1e-12);
    // Few reads are hidden wholly, and no more than that.
    let (few, t) = total(1.0, 10.0);
    assert!((few - t.compute()).abs() < 1e-12);
}

#[test]
fn nothing_read_takes_no_time() {
    let (machine, disk) = (machine(), DiskProfile::default());
    let rates = rates((&machine, &disk), 1);
    let none = [
        rates.stream(0.0, 0.0),
        rates.neurons(0.0, 0.0),
        rates.experts(0.0, 0.0, (4, 1.0)),
    ];
    assert_eq!(none, [0.0; 3]);
}

#[test]
fn experts_are_read_as_deep_as_a_layer_misses_them() {
    let (machine, mut disk) = (machine(), disk());
    let alone = DiskRate {
        block_bytes: 524_288,
        depth: 1,
        bytes_per_second: 1e9,
    };
    disk.rates.push(alone);
    disk.rates.iter_mut().for_each(|r| r.depth = r.depth.min(4));
    let rates = rates((&machine, &disk), 2);
    let check = |bytes: f64| bytes / CHECKED_PER_SECOND / 2.0;
    // What a layer misses in the mean, if it misses any: 1.6, 2.3 and 5 experts; and 1.1 of five clusters.
    for (layers, per_expert, bytes_per_second) in
        [(10, 1.0, 1e9), (5, 1.0, 1e9), (2, 1.0, 2e9), (10, 5.0, 2e9)]
    {
        let bytes = 10.0 * 524_288.0;
        let expected = bytes / bytes_per_second + check(bytes);
        let time = rates.experts(10.0, bytes, (layers, per_expert));
        assert!((time - expected).abs() < 1e-12, "{layers}: {time}");
    }
}

#[test]
fn experts_that_are_guessed_are_read_beside_more_of_what_is_computed() {
    let time = |seconds: f64, guessed_layers: usize| {
        let mut time = DecodeTime {
            ffn: 0.06,
            head: 0.01,
            ..DecodeTime::default()
        };
        let more = time.add_experts(seconds, guessed_layers);
        (time.total(), more)
    };
    assert!((time(0.0, 3).0 - 0.07).abs() < 1e-12);
    for (layers, not_hidden) in EXPERTS_NOT_HIDDEN.into_iter().enumerate() {
        // The disk is the shorter one, then what is computed.
        for seconds in [0.04, 0.2] {
            let (total, more) = time(seconds, layers);
            let read = more * seconds;
            let expected = read.max(0.07) + not_hidden * read.min(0.07);
            assert!((total - expected).abs() < 1e-12, "{layers}: {total}");
        }
    }
    assert!(time(0.04, 3).0 < time(0.04, 2).0, "there is time for it");
    assert!(
        time(1.0, 0).0 < time(1.0, 1).0,
        "wrong guesses take the disk's time"
    );
}

#[test]
fn larger_batches_of_a_prompt_share_reads() {
    let (machine, disk) = (machine(), disk());
    let rates = rates((&machine, &disk), 2);
    let flash = (1000.0, 1000.0 * 524_288.0);
    let time = |batch| rates.prompt(&work(), batch, flash);
    assert!((time(8) / time(16) - 2.0).abs() < 0.01, "bound by the disk");
    assert!(time(4096) <= time(128));
}

#[test]
fn tokens_of_a_prompt_share_few_experts() {
    let (machine, disk) = (machine(), disk());
    let rates = rates((&machine, &disk), 2);
    let time = |batch, ffn_used| {
        let work = TokenWork { ffn_used, ..work() };
        rates.prompt(&work, batch, (0.0, 0.0))
    };
    assert!((time(1, 0.05) / time(1, 1.0) - 1.0).abs() < 1e-9);
    // Of 20 experts, 8 tokens that use one each use 6.7: 3e8 bytes each, of which dense tokens share one.
    let more = (6.73 - 1.0) * 3e8 / 20e9 / 8.0;
    let time = time(8, 0.05) - time(8, 1.0);
    assert!((time / more - 1.0).abs() < 0.01, "{time} and {more}");
}

#[test]
fn an_unmeasured_kernel_counts_as_fast_as_memory() {
    let (mut machine, disk) = (machine(), disk());
    machine.kernels.clear();
    let rates = rates((&machine, &disk), 2);
    assert!((rates.compute(&work()).ffn - 3e8 / 40e9).abs() < 1e-9);
}

proptest! {
    #[test]
    fn a_larger_cache_never_reads_more(
        points in proptest::collection::vec((0.01f64..1.0, 0.0f64..1e5), 0..12),
        a in 0.0f64..1.0,
        b in 0.0f64..1.0,
    ) {
        let empty = MissSample { cached: 0.0, reads: 5e4, bytes: 4e8 };
        let samples: Vec<_> = points
            .iter()
            .map(|&(cached, reads)| MissSample { cached, reads, bytes: reads * 8192.0 })
            .collect();
        let curve = MissCurve::new(empty, &samples);
        let (small, large) = (curve.at(a.min(b)), curve.at(a.max(b)));
        prop_assert!(large.reads <= small.reads + 1e-6 && large.bytes <= small.bytes + 1e-3);
        prop_assert!(curve.at(0.0).reads == 5e4);
    }
}
