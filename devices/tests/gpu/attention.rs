//! Attention, with heads of all sizes.

use forebay_devices::gpu::{Arithmetic, GpuDriver, GpuOptions};
use forebay_devices::probe::{self, HeadShape, check_attention, wall_clock};
use forebay_devices::{
    AttentionWork, DeviceDriver, DeviceFault, DeviceJob, KvSpace, Patch, SegmentId, Work, on_cpu,
};
use forebay_kernels::{Activations, KernelTable};

use super::definition::{Sum, fused, unfused};
use super::past::Past;
use super::{Random, adapter, bits};

const BLOCK: usize = 64;
pub(super) const SHAPES: [[usize; 3]; 8] = [
    [64, 64, 4],
    [128, 128, 3],
    [96, 96, 1],
    [80, 80, 2],
    [256, 256, 2],
    [32, 32, 5],
    [64, 128, 1],
    [4, 196, 1],
];

fn shape([head_dim, value_dim, group]: [usize; 3]) -> HeadShape {
    HeadShape {
        head_dim,
        value_dim,
        group,
    }
}

pub(super) fn open(shapes: &[[usize; 3]], arithmetic: Arithmetic) -> Option<GpuDriver> {
    let options = GpuOptions {
        formats: Vec::new(),
        heads: shapes.iter().copied().map(shape).collect(),
        ..GpuOptions::default()
    };
    Some(GpuDriver::with_arithmetic(&adapter()?, &options, arithmetic).unwrap())
}

/// What is attended from where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    /// Key/value heads.
    heads: usize,
    n_tokens: usize,
    pub(super) position: usize,
    window: usize,
    has_sinks: bool,
}

/// From the beginning, within blocks, at their borders, with many and with few tokens, with ranges that begin and end
/// within the rows of a workgroup.
pub(super) const CASES: [Case; 5] = [
    case(2, 40, 0, usize::MAX, false),
    case(1, 1, 127, usize::MAX, true),
    case(2, 3, 62, 1, true),
    case(1, 33, 120, 64, false),
    case(3, 2, 150, 100, true),
];

pub(super) const fn case(
    heads: usize,
    n_tokens: usize,
    position: usize,
    window: usize,
    has_sinks: bool,
) -> Case {
    Case {
        heads,
        n_tokens,
        position,
        window,
        has_sinks,
    }
}

impl Case {
    pub(super) fn past(&self, [head_dim, value_dim, _]: [usize; 3]) -> Past {
        let positions = self.position + self.n_tokens;
        let space = KvSpace {
            heads: self.heads,
            blocks: positions.div_ceil(BLOCK) + 1,
            head_dim,
            value_dim,
        };
        Past::new(space, positions, self.position as u64)
    }

    /// Without patches. The first head has fewer readers.
    pub(super) fn work(
        &self,
        past: &Past,
        [head_dim, value_dim, group]: [usize; 3],
    ) -> AttentionWork {
        let first = group / 2;
        let heads = self.heads * group - first;
        let mut random = Random(self.position as u64 + 1);
        let mut numbers = |n: usize| (0..n).map(|_| 3.0 * random.unit()).collect::<Vec<f32>>();
        AttentionWork {
            kv: past.space,
            patches: Vec::new(),
            patched: Vec::new(),
            n_tokens: self.n_tokens,
            heads,
            group,
            first,
            queries: numbers(self.n_tokens * heads * head_dim),
            blocks: past.blocks.clone(),
            position: self.position,
            window: self.window,
            scale: 0.3,
            sinks: match self.has_sinks {
                true => numbers(heads),
                false => Vec::new(),
            },
            out: vec![f32::NAN; self.n_tokens * heads * value_dim],
        }
    }
}

fn job(segment: SegmentId, work: AttentionWork) -> DeviceJob {
    DeviceJob {
        id: 0,
        segment,
        tokens: Activations::new(0, 0),
        work: Work::Attention(Box::new(work)),
    }
}

pub(super) fn attend(
    driver: &mut GpuDriver,
    segment: SegmentId,
    work: AttentionWork,
) -> Result<Vec<f32>, DeviceFault> {
    let done = probe::run(driver, job(segment, work), &mut wall_clock()).unwrap();
    done.result?;
    Ok(out(done.job.work))
}

fn out(work: Work) -> Vec<f32> {
    match work {
        Work::Attention(work) => work.out,
        _ => unreachable!("another job"),
    }
}

pub(super) fn on_cpu(past: &Past, work: AttentionWork) -> Vec<f32> {
    let mut job = job(SegmentId::NONE, work);
    on_cpu::compute(&KernelTable::best(), &past.bytes, &mut job).unwrap();
    out(job.work)
}

/// `2^x` for `x <= 0`.
fn power(x: f32, sum: Sum) -> f32 {
    const POLYNOMIAL: [f32; 7] = [
        1.535_336_2e-4,
        1.339_887_4e-3,
        9.618_437e-3,
        5.550_332_5e-2,
        0.240_226_48,
        std::f32::consts::LN_2,
        1.0,
    ];
    if x < -60.0 {
        return 0.0;
    }
    let whole = x.round_ties_even();
    let fold = |y, &c| sum(y, x - whole, c);
    POLYNOMIAL[1..].iter().fold(POLYNOMIAL[0], fold) * whole.exp2()
}

/// One row, from the definition, with sums that are rounded once or twice.
fn row(past: &Past, work: &AttentionWork, (token, head): (usize, usize), sum: Sum) -> Vec<f32> {
    let (kv, d) = ((work.first + head) / work.group, work.kv.head_dim);
    let query = &work.queries[(token * work.heads + head) * d..][..d];
    let end = work.position + token + 1;
    let seen = end.saturating_sub(work.window)..end;
    let factor = work.scale * std::f32::consts::LOG2_E;
    let sink = work.sinks.get(head);
    let mut most = sink.map_or(f32::NEG_INFINITY, |s| s * std::f32::consts::LOG2_E);
    let mut total = sink.map_or(0.0, |_| 1.0);
    let mut out = vec![0.0; work.kv.value_dim];
    for block in seen.start / BLOCK..end.div_ceil(BLOCK) {
        let own = block * BLOCK..(block + 1) * BLOCK;
        let own = own.start.max(seen.start)..own.end.min(end);
        let score = |p: usize| {
            let pairs = query.iter().zip(past.key(kv, p));
            pairs.fold(0.0, |s, (q, k)| sum(*q, k, s)) * factor
        };
        let scores: Vec<f32> = own.clone().map(score).collect();
        let old = most;
        most = scores.iter().copied().fold(old, f32::max);
        let mut lanes = [0.0; 16];
        let mut weights = Vec::new();
        for (position, score) in own.clone().zip(scores) {
            weights.push(power(score - most, sum));
            lanes[position % 16] += weights[weights.len() - 1];
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        let factor = power(old - most, sum);
        total = sum(total, factor, lanes[0]);
        out.iter_mut().for_each(|o| *o *= factor);
        for (position, weight) in own.zip(weights) {
            let value = past.value(kv, position);
            out.iter_mut()
                .zip(value)
                .for_each(|(o, v)| *o = sum(weight, v, *o));
        }
    }
    out.iter().map(|o| o / total).collect()
}

fn by_definition(past: &Past, work: &AttentionWork, sum: Sum) -> Vec<f32> {
    let rows = (0..work.n_tokens).flat_map(|t| (0..work.heads).map(move |h| (t, h)));
    rows.flat_map(|place| row(past, work, place, sum)).collect()
}

#[test]
fn heads_of_all_sizes_have_the_bits_of_the_cpu() {
    let Some(mut driver) = open(&SHAPES, Arithmetic::Emulated) else {
        return;
    };
    for (shape, case) in SHAPES.iter().flat_map(|s| CASES.map(|c| (*s, c))) {
        let past = case.past(shape);
        let segment = driver.load(&past.bytes).unwrap();
        let expected = on_cpu(&past, case.work(&past, shape));
        let found = attend(&mut driver, segment, case.work(&past, shape)).unwrap();
        driver.unload(segment);
        assert_eq!(bits(&found), bits(&expected), "{shape:?}, {case:?}");
    }
}

#[test]
fn both_arithmetics_follow_the_definition() {
    let shapes = [SHAPES[3], SHAPES[4]];
    let Some(mut native) = open(&shapes, Arithmetic::Native) else {
        return;
    };
    let roundings = native.roundings(Arithmetic::Native, 256).unwrap();
    let sum = if roundings.fused > 0 { fused } else { unfused };
    for (shape, case) in shapes.iter().flat_map(|s| CASES.map(|c| (*s, c))) {
        let past = case.past(shape);
        let work = || case.work(&past, shape);
        let expected = by_definition(&past, &work(), fused);
        assert_eq!(bits(&on_cpu(&past, work())), bits(&expected), "the CPU");
        let expected = by_definition(&past, &work(), sum);
        let segment = native.load(&past.bytes).unwrap();
        let found = attend(&mut native, segment, work()).unwrap();
        native.unload(segment);
        assert_eq!(bits(&found), bits(&expected), "{shape:?}, {case:?}");
    }
}

#[test]
fn the_probe_finds_how_a_device_attends() {
    let shapes = [[64, 64, 3], [32, 80, 1]];
    let heads = shapes.map(shape);
    let (kernels, mut clock) = (KernelTable::best(), wall_clock());
    let Some(mut driver) = open(&shapes, Arithmetic::Native) else {
        return;
    };
    let is_fused = driver.roundings(Arithmetic::Native, 256).unwrap().fused > 0;
    let before = driver.memory_bytes();
    match check_attention(&mut driver, &kernels, &heads, &mut clock) {
        Ok(()) => assert!(is_fused),
        Err(DeviceFault::WrongAttention { wrong, total }) => {
            assert!(!is_fused && wrong > total / 20, "{wrong} of {total}");
        }
        Err(other) => panic!("{other}"),
    }
    // The rest is buffers of jobs.
    assert!(driver.memory_bytes() - before < heads[0].head_dim as u64 * 40_000);
    let options = GpuOptions {
        formats: Vec::new(),
        heads: heads.to_vec(),
        ..GpuOptions::default()
    };
    let opened = GpuDriver::open(&adapter().unwrap(), &options, &kernels).unwrap();
    let expected = if is_fused {
        Arithmetic::Native
    } else {
        Arithmetic::Emulated
    };
    assert_eq!(opened.arithmetic(), expected);
    let impossible = [shape([66, 64, 1])];
    let fault = check_attention(&mut driver, &kernels, &impossible, &mut clock);
    assert!(matches!(fault, Err(DeviceFault::BadJob(_))), "{fault:?}");
}

/// The bytes from `at` on as a patch.
fn patch(work: &mut AttentionWork, past: &Past, at: usize, len: usize) {
    work.patches.push(Patch { at, len });
    work.patched.extend(&past.bytes[at..][..len]);
}

#[test]
fn patches_are_there_for_the_job_that_brings_them_and_all_later_ones() {
    let shape = SHAPES[0];
    let Some(mut driver) = open(&[shape], Arithmetic::Emulated) else {
        return;
    };
    let case = CASES[1];
    let past = case.past(shape);
    let other = Past::new(past.space, 128, 77);
    let segment = driver.reserve(past.space.bytes()).unwrap();
    let half = past.bytes.len() / 2;
    // Only patches.
    let mut nothing = Case {
        n_tokens: 0,
        ..case
    }
    .work(&past, shape);
    patch(&mut nothing, &past, 0, half);
    assert_eq!(attend(&mut driver, segment, nothing), Ok(Vec::new()));
    // The rest, and attention; behind it, at once, a job with other bytes.
    let mut rest = case.work(&past, shape);
    patch(&mut rest, &past, half, past.bytes.len() - half);
    let mut others = case.work(&other, shape);
    for start in [0, half] {
        patch(&mut others, &other, start, half);
    }
    driver.submit(job(segment, rest), 0).unwrap();
    driver.submit(job(segment, others), 0).unwrap();
    let (mut done, mut clock) = (Vec::new(), wall_clock());
    while done.len() < 2 {
        let now = clock();
        assert!(now < 20_000_000_000, "stuck");
        driver.poll(now, &mut done);
    }
    for (done, past) in done.into_iter().zip([&past, &other]) {
        assert_eq!(done.result, Ok(()));
        let expected = on_cpu(past, case.work(past, shape));
        assert_eq!(bits(&out(done.job.work)), bits(&expected));
    }
    // A job that the device cannot compute brings what it has all the same.
    let mut tiny = case.work(&past, shape);
    patch(&mut tiny, &past, 0, past.bytes.len());
    tiny.queries[5] = 1e-30;
    let refused = attend(&mut driver, segment, tiny);
    assert_eq!(refused, Err(DeviceFault::OutOfRange));
    // No patch.
    let found = attend(&mut driver, segment, case.work(&past, shape)).unwrap();
    let expected = on_cpu(&past, case.work(&past, shape));
    assert_eq!(bits(&found), bits(&expected));
}

#[test]
fn jobs_that_do_not_fit_are_refused() {
    let shape = SHAPES[0];
    let Some(mut driver) = open(&[shape], Arithmetic::Emulated) else {
        return;
    };
    let case = CASES[1];
    let past = case.past(shape);
    let segment = driver.load(&past.bytes).unwrap();
    let changes: [fn(&mut AttentionWork); 10] = [
        |work| work.kv.blocks += 1,
        |work| work.kv.head_dim = 62,
        |work| work.blocks.truncate(1),
        |work| work.blocks[1] = 9,
        |work| work.queries.truncate(9),
        |work| work.out.push(0.0),
        |work| work.sinks.truncate(1),
        |work| work.window = 0,
        |work| work.group = 1,
        |work| work.patches.push(Patch { at: 2, len: 4 }),
    ];
    for change in changes {
        let mut work = case.work(&past, shape);
        change(&mut work);
        let found = attend(&mut driver, segment, work);
        assert!(matches!(found, Err(DeviceFault::BadJob(_))), "{found:?}");
    }
    let unknown = attend(&mut driver, SegmentId::NONE, case.work(&past, shape));
    assert!(
        matches!(unknown, Err(DeviceFault::BadJob(_))),
        "{unknown:?}"
    );
    // The segment is large enough for larger values, but their shader is not there.
    let wide = [8, 100, 4];
    let past = case.past(wide);
    let segment = driver.load(&past.bytes).unwrap();
    let fault = attend(&mut driver, segment, case.work(&past, wide)).unwrap_err();
    assert!(
        fault.to_string().contains("without values of 100"),
        "{fault}"
    );
}
