//! The simulated device, and what a probe and a caller see of its faults.

mod past;

use forebay_devices::probe::{self, HeadShape, check, check_attention};
use forebay_devices::simulated::{Behaviour, SimulatedDevice};
use forebay_devices::{
    AttentionWork, DeviceDriver, DeviceFault, DeviceJob, FORMATS, FfnCluster, Group, KvSpace,
    PanelRange, Patch, Routing, SegmentId, Work,
};
use forebay_kernels::{Activations, Form, KernelTable, WeightPanels};
use forebay_numbers::activation::Activation;
use forebay_numbers::block::BlockType;
use forebay_numbers::panel::pack_panels;
use past::Past;

const COLS: usize = 64;
const ROWS: usize = 20;

/// 20 rows of Q4_0, in panels.
fn weights() -> Vec<u8> {
    let row_bytes = COLS / 32 * 18;
    let rows: Vec<u8> = (0..ROWS * row_bytes)
        .map(|i| {
            if i % 18 == 1 {
                0x2c
            } else {
                (i * 37 % 251) as u8
            }
        })
        .collect();
    let mut panels = Vec::new();
    pack_panels(BlockType::Q4_0, &rows, row_bytes, &mut panels);
    panels
}

fn tokens(kernels: &KernelTable, n_tokens: usize) -> Activations {
    let values: Vec<f32> = (0..n_tokens * COLS)
        .map(|i| (i % 13) as f32 - 6.5)
        .collect();
    let mut tokens = Activations::new(n_tokens, COLS);
    tokens.load(kernels, Form::Panels, n_tokens, COLS, &values);
    tokens
}

const RANGE: PanelRange = PanelRange {
    block: BlockType::Q4_0,
    at: 0,
    n_rows: ROWS,
    cols: COLS,
};

fn job(id: u64, segment: SegmentId) -> DeviceJob {
    DeviceJob {
        id,
        segment,
        tokens: tokens(&KernelTable::best(), 3),
        work: Work::Rows {
            panels: vec![RANGE],
            out: vec![f32::NAN; 3 * ROWS],
        },
    }
}

fn device(behaviour: Behaviour) -> SimulatedDevice {
    SimulatedDevice::new(KernelTable::best(), 2, behaviour)
}

/// Virtual time: every look takes 10 ns.
fn clock() -> impl FnMut() -> u64 {
    let mut now = 0;
    move || {
        now += 10;
        now
    }
}

#[test]
fn jobs_have_the_results_of_the_kernels_and_take_their_time() {
    let mut device = device(Behaviour {
        job_ns: 100,
        ..Behaviour::ideal()
    });
    let bytes = weights();
    let segment = device.load(&bytes).unwrap();
    assert_eq!(device.memory_bytes(), bytes.len() as u64);
    device.submit(job(1, segment), 1000).unwrap();
    device.submit(job(2, segment), 1010).unwrap();
    let refused = device.submit(job(3, segment), 1020).unwrap_err();
    assert_eq!(refused.id, 3);
    // Weights stay until the jobs that use them are over.
    device.unload(segment);
    assert_eq!(device.memory_bytes(), 0);
    let mut done = Vec::new();
    assert_eq!(device.poll(1099, &mut done), 0);
    assert_eq!(device.poll(1100, &mut done), 1);
    assert_eq!((device.in_flight(), device.next_due()), (1, Some(1200)));
    assert_eq!(device.poll(1250, &mut done), 1);
    let times: Vec<_> = done.iter().map(|d| (d.job.id, d.elapsed_ns)).collect();
    assert_eq!(times, [(1, 100), (2, 240)]);
    let panels = WeightPanels {
        block: BlockType::Q4_0,
        bytes: &bytes,
        n_rows: ROWS,
    };
    let mut expected = vec![0.0; 3 * ROWS];
    let kernels = KernelTable::best();
    kernels.panels(panels, &tokens(&kernels, 3), &mut expected, ROWS);
    for done in done {
        assert_eq!(done.result, Ok(()));
        assert!(matches!(done.job.work, Work::Rows { out, .. } if out == expected));
    }
}

#[test]
fn a_lost_device_loses_its_jobs_and_all_later_ones() {
    let mut device = device(Behaviour {
        job_ns: 100,
        lost_after: Some(1),
        ..Behaviour::ideal()
    });
    let segment = device.load(&weights()).unwrap();
    device.submit(job(1, segment), 0).unwrap();
    device.submit(job(2, segment), 0).unwrap();
    let mut done = Vec::new();
    device.poll(1, &mut done);
    let ids: Vec<_> = done.iter().map(|d| d.job.id).collect();
    assert_eq!(ids, [1, 2]);
    for done in &done {
        assert!(matches!(done.result, Err(DeviceFault::Lost { .. })));
    }
    assert!(matches!(
        device.load(&[0; 16]),
        Err(DeviceFault::Lost { .. })
    ));
    device.submit(job(3, segment), 5).unwrap();
    assert_eq!(device.poll(5, &mut done), 1);
}

#[test]
fn weights_that_do_not_fit_are_refused_with_the_figures() {
    let bytes = weights();
    let mut device = device(Behaviour {
        memory_bytes: bytes.len() as u64 + 10,
        ..Behaviour::ideal()
    });
    let first = device.load(&bytes).unwrap();
    let fault = DeviceFault::OutOfMemory {
        bytes: bytes.len() as u64,
        left: Some(10),
    };
    assert_eq!(device.load(&bytes), Err(fault.clone()));
    assert!(fault.to_string().contains("fewer weights"), "{fault}");
    device.unload(first);
    assert!(device.load(&bytes).is_ok());
}

/// A job for a share of one cluster of 32 neurons, changed, with so much room for results.
fn share_job(
    segment: SegmentId,
    change: fn(&mut FfnCluster),
    activation: Activation,
    room: usize,
) -> DeviceJob {
    let range = |n_rows, cols| PanelRange {
        n_rows,
        cols,
        ..RANGE
    };
    let mut cluster = FfnCluster {
        gate: range(32, COLS),
        up: range(32, COLS),
        down: range(COLS, 32),
    };
    change(&mut cluster);
    DeviceJob {
        work: Work::Share {
            clusters: vec![cluster],
            activation,
            biases: Default::default(),
            routing: Routing::default(),
            out: vec![0; room],
        },
        ..job(0, segment)
    }
}

#[test]
fn jobs_that_do_not_fit_their_weights_end_with_what_is_wrong() {
    let mut device = device(Behaviour::ideal());
    let segment = device.load(&weights()).unwrap();
    let with = |change: fn(&mut PanelRange)| {
        let mut job = job(0, segment);
        if let Work::Rows { panels, .. } = &mut job.work {
            change(&mut panels[0]);
        }
        job
    };
    let share = |change, activation, room| share_job(segment, change, activation, room);
    let (silu, room) = (Activation::Silu, 3 * COLS);
    let cases = [
        (with(|range| range.n_rows = 33), "segment has"),
        (with(|range| range.n_rows = 19), "room for 60"),
        (with(|range| range.cols = 32), "64"),
        (with(|range| range.at = 2), "multiple of 4"),
        (with(|range| range.at = 16), "segment has"),
        (with(|range| range.at = usize::MAX - 3), "segment has"),
        (with(|range| range.block = BlockType::Q2_K), "Q2_K"),
        (with(|range| range.block = BlockType::Q4_K), "whole blocks"),
        (share(|_| {}, silu, room - 1), "room for 191"),
        (share(|_| {}, Activation::GeluErf, room), "GeluErf"),
        (share(|c| c.up.n_rows = 31, silu, room), "31 of Up"),
        (share(|c| c.down.n_rows = 32, silu, room), "32 of Down"),
        (share(|c| c.gate.n_rows = 16, silu, room), "Q4_0 with 16"),
        (share(|c| c.down.block = BlockType::F16, silu, room), "F16"),
    ];
    let mut biased = share(|_| {}, silu, room);
    if let Work::Share { biases, .. } = &mut biased.work {
        biases[0] = vec![0.0; 32];
    }
    let routed = |tokens: Vec<u32>, clusters, n_weights| {
        let mut job = share(|_| {}, silu, room);
        if let Work::Share { routing, .. } = &mut job.work {
            let group = Group {
                clusters,
                tokens: tokens.len(),
            };
            *routing = Routing {
                groups: vec![group],
                tokens,
                weights: vec![1.0; n_weights],
            };
        }
        job
    };
    let extras = [
        (biased, "32 neurons have 32 and 0 biases"),
        (routed(vec![0, 3], 1, 2), "2 of 3 tokens"),
        (routed(vec![0, 2], 2, 2), "groups of 2 clusters"),
        (routed(vec![0, 2], 0, 2), "groups of 0 clusters"),
        (routed(vec![0, 2], 1, 1), "2 tokens and 1 weights"),
    ];
    for (job, expected) in cases.into_iter().chain(extras) {
        let done = probe::run(&mut device, job, &mut clock()).unwrap();
        let fault = done.result.unwrap_err().to_string();
        assert!(fault.contains(expected), "{fault}");
    }
}

#[test]
fn the_probe_accepts_the_cpus_results_and_finds_one_wrong_bit() {
    let kernels = KernelTable::best();
    let mut good = device(Behaviour {
        job_ns: 1000,
        ..Behaviour::ideal()
    });
    assert_eq!(check(&mut good, &kernels, &FORMATS, &mut clock()), Ok(()));
    assert_eq!(good.memory_bytes(), 0);
    for wrong in [0, 23, usize::MAX] {
        let mut bad = device(Behaviour {
            wrong_result: Some(wrong),
            ..Behaviour::ideal()
        });
        let found = check(&mut bad, &kernels, &FORMATS[2..], &mut clock());
        // In each of twelve jobs.
        assert!(
            matches!(found, Err(DeviceFault::WrongResults { block, wrong: 12, .. }) if block == FORMATS[2]),
            "{found:?}"
        );
    }
}

#[test]
fn the_probe_gives_up_on_a_device_that_never_finishes() {
    let mut slow = device(Behaviour {
        job_ns: u64::MAX / 2,
        ..Behaviour::ideal()
    });
    let mut now = 0;
    let mut clock = move || {
        now += 1_000_000_000;
        now
    };
    let found = check(&mut slow, &KernelTable::best(), &FORMATS, &mut clock);
    assert!(matches!(found, Err(DeviceFault::Stuck { .. })), "{found:?}");
}

#[test]
fn weights_that_are_written_behind_a_job_are_those_of_the_next_one() {
    let mut device = device(Behaviour {
        job_ns: 100,
        ..Behaviour::ideal()
    });
    let (first, mut second) = (weights(), weights());
    second[18 * 16] ^= 1;
    let segment = device.reserve(first.len() as u64).unwrap();
    assert_eq!(device.memory_bytes(), first.len() as u64);
    let mut done = Vec::new();
    for (id, bytes) in [(1, &first), (2, &second)] {
        device.write(segment, 0, bytes).unwrap();
        device.submit(job(id, segment), 0).unwrap();
    }
    device.poll(1000, &mut done);
    for (done, bytes) in done.iter().zip([&first, &second]) {
        let loaded = device.load(bytes).unwrap();
        let expected = probe::run(&mut device, job(0, loaded), &mut clock()).unwrap();
        let of = |work: &Work| match work {
            Work::Rows { out, .. } => out.clone(),
            _ => Vec::new(),
        };
        assert_eq!(of(&done.job.work), of(&expected.job.work));
    }
    let beyond = device.write(segment, 4, &first);
    assert!(matches!(beyond, Err(DeviceFault::BadJob(_))), "{beyond:?}");
    device.unload(segment);
    assert!(device.write(segment, 0, &first).is_err());
}

/// Three query heads, of which the first one has a key/value head of its own; the sequence's last tokens.
fn attention(past: &Past, n_tokens: usize) -> AttentionWork {
    let positions = 150;
    let numbers = |n: usize, step: usize| (0..n).map(move |i| (i * step % 17) as f32 / 8.0 - 1.0);
    AttentionWork {
        kv: past.space,
        patches: Vec::new(),
        patched: Vec::new(),
        n_tokens,
        heads: 3,
        group: 2,
        first: 1,
        queries: numbers(n_tokens * 3 * past.space.head_dim, 5).collect(),
        blocks: past.blocks.clone(),
        position: positions - n_tokens,
        window: 100,
        scale: 0.25,
        sinks: vec![0.5, -1.0, 3.0],
        out: vec![f32::NAN; n_tokens * 3 * past.space.value_dim],
    }
}

fn attention_job(segment: SegmentId, work: AttentionWork) -> DeviceJob {
    DeviceJob {
        id: 0,
        segment,
        tokens: Activations::new(0, 0),
        work: Work::Attention(Box::new(work)),
    }
}

/// The results of a row, from the definition of a softmax.
fn attended(past: &Past, work: &AttentionWork, token: usize, head: usize) -> Vec<f64> {
    let (kv, d) = ((head + work.first) / work.group, past.space.head_dim);
    let query = &work.queries[(token * work.heads + head) * d..][..d];
    let end = work.position + token + 1;
    let seen = end.saturating_sub(work.window)..end;
    let score = |p: usize| {
        let products = query.iter().zip(past.key(kv, p));
        let sum: f64 = products.map(|(q, k)| f64::from(*q) * f64::from(k)).sum();
        (sum * f64::from(work.scale)).exp()
    };
    let weights: Vec<f64> = seen.clone().map(score).collect();
    let total = weights.iter().sum::<f64>() + f64::from(work.sinks[head]).exp();
    let mut out = vec![0.0; past.space.value_dim];
    for (position, weight) in seen.zip(weights) {
        let values = out.iter_mut().zip(past.value(kv, position));
        values.for_each(|(o, v)| *o += weight / total * f64::from(v));
    }
    out
}

#[test]
fn attention_is_that_over_the_patched_segment() {
    let space = KvSpace {
        heads: 2,
        blocks: 4,
        head_dim: 16,
        value_dim: 20,
    };
    let past = Past::new(space, 150, 1);
    let mut device = device(Behaviour::ideal());
    let segment = device.reserve(space.bytes()).unwrap();
    let half = past.bytes.len() / 2;
    // Half of the bytes come with a job that attends to nothing.
    for (n_tokens, start) in [(0, half), (4, 0)] {
        let mut work = attention(&past, n_tokens);
        work.patches = vec![Patch {
            at: start,
            len: half,
        }];
        work.patched = past.bytes[start..][..half].to_vec();
        let job = attention_job(segment, work);
        let done = probe::run(&mut device, job, &mut clock()).unwrap();
        assert_eq!(done.result, Ok(()));
        let Work::Attention(work) = done.job.work else {
            unreachable!("another job");
        };
        let rows = (0..n_tokens).flat_map(|t| [0, 1, 2].map(|h| (t, h)));
        let expected = rows.flat_map(|(t, h)| attended(&past, &work, t, h));
        let pairs: Vec<_> = work.out.iter().zip(expected).collect();
        assert_eq!(pairs.len(), n_tokens * 3 * 20);
        for (found, expected) in pairs {
            let error = (f64::from(*found) - expected).abs();
            assert!(error < 1e-5, "{found} instead of {expected}");
        }
    }
    // A patch that is not in the segment, or has no bytes.
    let patches = [(past.bytes.len(), 4, 4), (2, 4, 4), (0, 8, 4)];
    for (at, len, bytes) in patches {
        let mut work = attention(&past, 1);
        work.patches = vec![Patch { at, len }];
        work.patched = vec![0; bytes];
        let job = attention_job(segment, work);
        let done = probe::run(&mut device, job, &mut clock()).unwrap();
        let fault = done.result.unwrap_err().to_string();
        assert!(fault.contains("patched bytes"), "{fault}");
    }
}

#[test]
fn the_probe_of_attention_accepts_the_cpus_results_and_finds_one_wrong_bit() {
    let heads = [[32, 32, 4], [16, 20, 1]].map(|[head_dim, value_dim, group]| HeadShape {
        head_dim,
        value_dim,
        group,
    });
    let (kernels, mut good) = (KernelTable::best(), device(Behaviour::ideal()));
    let found = check_attention(&mut good, &kernels, &heads, &mut clock());
    assert_eq!((found, good.memory_bytes()), (Ok(()), 0));
    let mut bad = device(Behaviour {
        wrong_result: Some(40),
        ..Behaviour::ideal()
    });
    let found = check_attention(&mut bad, &kernels, &heads, &mut clock());
    // In each of three jobs.
    assert!(
        matches!(found, Err(DeviceFault::WrongAttention { wrong: 3, .. })),
        "{found:?}"
    );
    assert_eq!(bad.memory_bytes(), 0);
}
