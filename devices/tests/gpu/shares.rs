//! Shares of FFNs: Gate, Up, the activation, quantising, Down and sums in fixed point.

use forebay_devices::gpu::{Arithmetic, GpuDriver, GpuOptions};
use forebay_devices::probe::{self, wall_clock};
use forebay_devices::{
    Activated, DeviceDriver, DeviceFault, DeviceJob, FORMATS, FfnCluster, Group, PanelRange,
    Routing, Work, on_cpu,
};
use forebay_kernels::{Activations, Form, KernelTable};
use forebay_numbers::activation::Activation;
use forebay_numbers::block::{BlockType, quantize};

use super::{Matrix, Random, adapter};

/// Weights of an FFN in one segment.
struct Ffn {
    clusters: Vec<FfnCluster>,
    bytes: Vec<u8>,
    d_model: usize,
}

impl Ffn {
    /// Clusters with these numbers of neurons, and weights of about these sizes.
    fn new(formats: [BlockType; 3], d_model: usize, neurons: &[usize], scales: [f32; 3]) -> Self {
        let mut random = Random(neurons.len() as u64 + d_model as u64);
        let mut bytes = Vec::new();
        let mut add = |which: usize, n_rows, cols: usize| {
            let block = formats[which];
            let values: Vec<f32> = (0..n_rows * cols)
                .map(|_| random.unit() * scales[which])
                .collect();
            let rows: Vec<u8> = values
                .chunks(cols)
                .flat_map(|row| encoded(block, row))
                .collect();
            let matrix = Matrix::new(block, n_rows, cols, &rows);
            let at = bytes.len();
            bytes.extend(&matrix.panels);
            PanelRange {
                block,
                at,
                n_rows,
                cols,
            }
        };
        let clusters = neurons.iter().map(|&n| FfnCluster {
            gate: add(0, n, d_model),
            up: add(1, n, d_model),
            down: add(2, d_model, n),
        });
        let clusters = clusters.collect();
        Self {
            clusters,
            bytes,
            d_model,
        }
    }

    /// Gives the job biases, and every cluster some of its tokens in any order, one with weight 0: of three clusters in
    /// a row, two have the same ones, and the third has none or all.
    fn with_extras(&self, mut job: DeviceJob) -> DeviceJob {
        let mut random = Random(3);
        let mut numbers = |n| (0..n).map(|_| random.unit()).collect::<Vec<f32>>();
        let n_tokens = job.tokens.n_tokens();
        let neurons = self.clusters.iter().map(|c| c.gate.n_rows).sum();
        let Work::Share {
            biases, routing, ..
        } = &mut job.work
        else {
            return job;
        };
        *biases = [numbers(neurons), numbers(neurons)];
        let all = 0..n_tokens as u32;
        for (number, clusters) in self.clusters.chunks(3).enumerate() {
            let (two, third) = (clusters.len().min(2), clusters.len() > 2);
            let some = all.clone().rev().filter(|t| (t + number as u32) % 3 != 1);
            let rest = all.clone().filter(|_| number % 2 == 1);
            for (clusters, tokens) in [
                (two, some.collect::<Vec<u32>>()),
                (usize::from(third), rest.collect()),
            ] {
                if clusters == 0 {
                    continue;
                }
                routing.groups.push(Group {
                    clusters,
                    tokens: tokens.len(),
                });
                routing.tokens.extend(tokens);
            }
        }
        routing.weights = numbers(routing.tokens.len());
        if let Some(first) = routing.weights.first_mut() {
            *first = 0.0;
        }
        job
    }

    fn job(
        &self,
        segment: forebay_devices::SegmentId,
        tokens: Activations,
        activation: Activation,
    ) -> DeviceJob {
        DeviceJob {
            id: 1,
            segment,
            work: Work::Share {
                clusters: self.clusters.clone(),
                activation,
                biases: Default::default(),
                routing: Routing::default(),
                out: vec![-1; tokens.n_tokens() * self.d_model],
            },
            tokens,
        }
    }
}

fn encoded(block: BlockType, row: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; block.row_bytes(row.len()).expect("whole blocks")];
    quantize(block, row, &mut bytes);
    bytes
}

fn tokens(n_tokens: usize, cols: usize, scale: f32) -> Activations {
    let mut random = Random(9);
    let values: Vec<f32> = (0..n_tokens * cols)
        .map(|_| random.unit() * scale)
        .collect();
    let mut tokens = Activations::new(n_tokens, cols);
    tokens.load(&KernelTable::best(), Form::Panels, n_tokens, cols, &values);
    tokens
}

fn share(work: &Work) -> &[i64] {
    match work {
        Work::Share { out, .. } => out,
        _ => unreachable!("another job"),
    }
}

/// Compares a job's results with the CPU's, with biases and weights and without, and returns those without.
fn compare(
    driver: &mut GpuDriver,
    ffn: &Ffn,
    tokens: &Activations,
    activation: Activation,
) -> Vec<i64> {
    let segment = driver.load(&ffn.bytes).unwrap();
    let job = || ffn.job(segment, tokens.clone(), activation);
    let mut results = Vec::new();
    for with_extras in [true, false] {
        let job = || match with_extras {
            true => ffn.with_extras(job()),
            false => job(),
        };
        let mut expected = job();
        on_cpu::compute(&KernelTable::best(), &ffn.bytes, &mut expected).unwrap();
        let done = probe::run(driver, job(), &mut wall_clock()).unwrap();
        let what = format!(
            "{:?}, {} tokens, {activation:?}, extras {with_extras}",
            ffn.clusters,
            tokens.n_tokens()
        );
        assert_eq!(done.result, Ok(()), "{what}");
        let (found, wanted) = (share(&done.job.work), share(&expected.work));
        let wrong = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
        assert_eq!(wrong, 0, "of {}: {what}", wanted.len());
        results = share(&expected.work).to_vec();
    }
    driver.unload(segment);
    results
}

fn open(formats: &[BlockType]) -> Option<GpuDriver> {
    let adapter = adapter()?;
    let options = GpuOptions {
        formats: formats.to_vec(),
        ..GpuOptions::default()
    };
    Some(GpuDriver::open(&adapter, &options, &KernelTable::best()).unwrap())
}

#[test]
fn shares_of_all_formats_and_shapes_have_the_bits_of_the_cpu() {
    let Some(mut driver) = open(&FORMATS) else {
        return;
    };
    for block in FORMATS {
        let len = block.block_len();
        for (neurons, n_tokens) in [
            (vec![len], 1),
            (vec![2 * len, len, 3 * len], 2),
            (vec![len; 5], 16),
            (vec![len, 2 * len], 17),
            (vec![len], 70),
        ] {
            let ffn = Ffn::new([block; 3], 3 * len, &neurons, [0.3; 3]);
            // An activation has one shader, whatever the number of tokens.
            let n = if n_tokens == 2 { usize::MAX } else { 1 };
            for activation in activations().take(n) {
                let tokens = tokens(n_tokens, ffn.d_model, 1.0);
                let out = compare(&mut driver, &ffn, &tokens, activation);
                assert!(
                    out.iter().any(|v| *v > 0) && out.iter().any(|v| *v < 0),
                    "{block}"
                );
            }
        }
    }
}

#[test]
fn formats_may_differ_from_matrix_to_matrix() {
    let formats = [BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K];
    let Some(mut driver) = open(&formats) else {
        return;
    };
    let ffn = Ffn::new(formats, 512, &[256, 512], [0.1; 3]);
    for n_tokens in [5, 33] {
        let tokens = tokens(n_tokens, 512, 1.0);
        compare(&mut driver, &ffn, &tokens, Activation::Silu);
    }
}

#[test]
fn clusters_are_divided_among_workgroups_in_any_way() {
    let Some(mut driver) = open(&[BlockType::Q8_0]) else {
        return;
    };
    // More than the parts of Down, so that a workgroup goes on from a cluster to the next.
    let neurons: Vec<usize> = (0..24).map(|i| 32 + i % 3 / 2 * 32).collect();
    let ffn = Ffn::new([BlockType::Q8_0; 3], 1024, &neurons, [0.1; 3]);
    for n_tokens in [1, 6, 40] {
        let tokens = tokens(n_tokens, ffn.d_model, 1.0);
        compare(&mut driver, &ffn, &tokens, Activation::Silu);
    }
}

#[test]
fn a_token_has_the_same_bits_in_a_batch_of_any_size() {
    let Some(adapter) = adapter() else { return };
    let formats = vec![BlockType::Q8_0, BlockType::Q4_K, BlockType::Q6_K];
    let options = GpuOptions {
        formats: formats.clone(),
        ..GpuOptions::default()
    };
    // However this rounds, it rounds alike everywhere.
    let mut driver = GpuDriver::with_arithmetic(&adapter, &options, Arithmetic::Native).unwrap();
    for block in formats {
        let ffn = Ffn::new([block; 3], 256, &[512, 256], [0.1; 3]);
        let segment = driver.load(&ffn.bytes).unwrap();
        let mut result_of = |n_tokens| {
            let job = ffn.job(segment, tokens(n_tokens, 256, 1.0), Activation::Silu);
            let done = probe::run(&mut driver, job, &mut wall_clock()).unwrap();
            assert_eq!(done.result, Ok(()));
            share(&done.job.work).to_vec()
        };
        let most = result_of(130);
        for n_tokens in [1, 8, 17, 33, 64, 70] {
            assert_eq!(
                result_of(n_tokens),
                most[..n_tokens * 256],
                "{block}, {n_tokens} tokens"
            );
        }
    }
}

/// All that devices compute; a shader may have several.
fn activations() -> impl Iterator<Item = Activation> {
    let relu = [
        Activation::DoubleRelu,
        Activation::FatRelu { threshold: 0.01 },
    ];
    Activated::ALL
        .map(Activated::example)
        .into_iter()
        .chain(relu)
}

#[test]
fn gates_of_any_size_are_activated_as_on_the_cpu() {
    let Some(mut driver) = open(&[BlockType::Q8_0]) else {
        return;
    };
    // From gates near 0 to gates whose exponential is clamped on either side.
    for gate in [1e-9, 1e-4, 0.05, 1.0, 20.0, 300.0] {
        let ffn = Ffn::new([BlockType::Q8_0; 3], 64, &[64, 32], [gate, 0.2, 0.2]);
        for activation in activations() {
            compare(&mut driver, &ffn, &tokens(8, 64, 2.0), activation);
        }
    }
}

#[test]
fn a_share_of_no_clusters_is_zero() {
    let Some(mut driver) = open(&[BlockType::Q8_0]) else {
        return;
    };
    let mut ffn = Ffn::new([BlockType::Q8_0; 3], 64, &[32], [1.0; 3]);
    let tokens = tokens(3, 64, 1.0);
    compare(&mut driver, &ffn, &tokens, Activation::Silu);
    ffn.clusters.clear();
    assert_eq!(
        compare(&mut driver, &ffn, &tokens, Activation::Silu),
        [0; 3 * 64]
    );
}

#[test]
fn sums_beyond_fixed_point_and_tiny_hidden_values_are_left_to_the_cpu() {
    let Some(mut driver) = open(&[BlockType::Q8_0]) else {
        return;
    };
    let mut result_of = |scales: [f32; 3], size| {
        let ffn = Ffn::new([BlockType::Q8_0; 3], 64, &[32], scales);
        let segment = driver.load(&ffn.bytes).unwrap();
        let job = ffn.job(segment, tokens(2, 64, size), Activation::Relu);
        let done = probe::run(&mut driver, job, &mut wall_clock());
        done.unwrap().result
    };
    assert_eq!(result_of([1.0; 3], 1.0), Ok(()));
    // Results of more than 2^30.
    assert_eq!(
        result_of([1e4, 1e4, 1e5], 1.0),
        Err(DeviceFault::OutOfRange)
    );
    // Gates and ups of 1e-10 each: their product is too small for a scale.
    assert_eq!(result_of([1.0; 3], 1e-10), Err(DeviceFault::OutOfRange));
}

#[test]
fn jobs_without_tokens_or_rows_are_over_at_once() {
    let Some(mut driver) = open(&[BlockType::Q8_0]) else {
        return;
    };
    let ffn = Ffn::new([BlockType::Q8_0; 3], 64, &[32], [1.0; 3]);
    let segment = driver.load(&ffn.bytes).unwrap();
    let share = ffn.job(segment, tokens(0, 64, 1.0), Activation::Silu);
    let rows = |n_tokens, panels| DeviceJob {
        work: Work::Rows {
            panels,
            out: Vec::new(),
        },
        ..ffn.job(segment, tokens(n_tokens, 64, 1.0), Activation::Silu)
    };
    let no_tokens = rows(0, vec![ffn.clusters[0].gate]);
    for job in [share, no_tokens, rows(2, Vec::new())] {
        let done = probe::run(&mut driver, job, &mut wall_clock()).unwrap();
        assert_eq!(done.result, Ok(()));
    }
    compare(&mut driver, &ffn, &tokens(1, 64, 1.0), Activation::Silu);
}

/// More results than workgroups in one dimension could have lanes for, of which one token has any.
#[test]
fn the_largest_batches_have_all_results() {
    let Some(mut driver) = open(&[BlockType::Q8_0]) else {
        return;
    };
    let ffn = Ffn::new([BlockType::Q8_0; 3], 4096, &[32], [0.1; 3]);
    let segment = driver.load(&ffn.bytes).unwrap();
    let job = || {
        let mut job = ffn.job(segment, tokens(1024, ffn.d_model, 1.0), Activation::Silu);
        if let Work::Share { routing, .. } = &mut job.work {
            routing.groups.push(Group {
                clusters: 1,
                tokens: 1,
            });
            routing.tokens.push(0);
            routing.weights.push(0.5);
        }
        job
    };
    let mut expected = job();
    on_cpu::compute(&KernelTable::best(), &ffn.bytes, &mut expected).unwrap();
    let done = probe::run(&mut driver, job(), &mut wall_clock()).unwrap();
    assert_eq!(done.result, Ok(()));
    let (found, wanted) = (share(&done.job.work), share(&expected.work));
    assert!(wanted[..4096].iter().any(|&v| v != 0));
    let wrong = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
    assert_eq!(wrong, 0, "of {}", wanted.len());
}
