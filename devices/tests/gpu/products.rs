//! Products of every format on odd shapes.

use forebay_devices::gpu::{Arithmetic, GpuDriver, GpuOptions};
use forebay_devices::probe::{self, wall_clock};
use forebay_devices::{DeviceDriver, DeviceJob, FORMATS, PanelRange, Work};
use forebay_kernels::{Activations, KernelTable, WeightPanels};

use super::definition::{fused, product, unfused};
use super::{Matrix, adapter, bits, tokens};

/// Rows that do and do not fill panels.
const ROWS: [usize; 4] = [1, 16, 40, 83];
const TOKENS: [usize; 4] = [1, 2, 5, 16];

/// Rows and tokens that do and do not fill the tiles of large batches: 64 rows and 64 tokens, of which a lane has every
/// 16th.
const TILES: [(usize, usize); 6] = [(16, 17), (83, 33), (40, 49), (1, 64), (130, 70), (24, 130)];

/// Columns: one block, fewer blocks than a stretch of 16, whole stretches, more.
fn columns(block_len: usize) -> &'static [usize] {
    match block_len {
        32 => &[32, 96, 512, 1056],
        _ => &[256, 512, 1280],
    }
}

fn run(driver: &mut GpuDriver, matrix: &Matrix, tokens: Activations) -> Vec<f32> {
    // The panels begin after other bytes.
    let mut bytes = vec![0xff; 48];
    bytes.extend(&matrix.panels);
    let segment = driver.load(&bytes).unwrap();
    let (out, width) = (
        vec![f32::NAN; tokens.n_tokens() * matrix.n_rows],
        matrix.n_rows,
    );
    // In two ranges, if there are two panels.
    let first = width.min(16);
    let panel = matrix.panels.len() / width.div_ceil(16);
    let range = |at, n_rows| PanelRange {
        block: matrix.block,
        at,
        n_rows,
        cols: matrix.cols,
    };
    let panels = vec![range(48, first), range(48 + panel, width - first)];
    let job = DeviceJob {
        id: 7,
        segment,
        tokens,
        work: Work::Rows { panels, out },
    };
    let done = probe::run(driver, job, &mut wall_clock()).unwrap();
    driver.unload(segment);
    assert_eq!((done.result, done.job.id), (Ok(()), 7));
    match done.job.work {
        Work::Rows { out, .. } => out,
        _ => unreachable!("another job"),
    }
}

/// Every format on every shape.
fn shapes() -> impl Iterator<Item = (Matrix, usize)> {
    FORMATS.into_iter().flat_map(|block| {
        let columns = columns(block.block_len());
        let small = columns
            .iter()
            .flat_map(|&cols| ROWS.map(|n_rows| (cols, n_rows)))
            .flat_map(|(cols, n_rows)| TOKENS.map(|n_tokens| (cols, n_rows, n_tokens)));
        // An odd number of blocks, if the format has one.
        let large = TILES.map(|(n_rows, n_tokens)| (columns[1], n_rows, n_tokens));
        small.chain(large).map(move |(cols, n_rows, n_tokens)| {
            let seed = (n_rows + cols + n_tokens) as u64;
            (Matrix::random(block, n_rows, cols, seed), n_tokens)
        })
    })
}

#[test]
fn an_opened_device_has_the_bits_of_the_cpu() {
    let Some(adapter) = adapter() else { return };
    let kernels = KernelTable::best();
    let mut driver = GpuDriver::open(&adapter, &GpuOptions::default(), &kernels).unwrap();
    eprintln!("{}: {}", adapter.name(), driver.arithmetic().name());
    for (matrix, n_tokens) in shapes() {
        let x = tokens(&kernels, n_tokens, matrix.cols, 3);
        let mut expected = vec![0.0; n_tokens * matrix.n_rows];
        let panels = WeightPanels {
            block: matrix.block,
            bytes: &matrix.panels,
            n_rows: matrix.n_rows,
        };
        kernels.panels(panels, &x, &mut expected, matrix.n_rows);
        assert_eq!(
            bits(&product(&matrix, &x, fused)),
            bits(&expected),
            "the definition"
        );
        let found = run(&mut driver, &matrix, x);
        assert_eq!(
            bits(&found),
            bits(&expected),
            "{} {} x {}, {n_tokens} tokens",
            matrix.block,
            matrix.n_rows,
            matrix.cols
        );
    }
}

#[test]
fn the_native_text_is_right_but_for_the_rounding_of_sums() {
    let Some(adapter) = adapter() else { return };
    let kernels = KernelTable::best();
    let options = GpuOptions::default();
    let mut driver = GpuDriver::with_arithmetic(&adapter, &options, Arithmetic::Native).unwrap();
    let roundings = driver.roundings(Arithmetic::Native, 256).unwrap();
    let sum = if roundings.fused > 0 { fused } else { unfused };
    for (matrix, n_tokens) in shapes().step_by(3) {
        let x = tokens(&kernels, n_tokens, matrix.cols, 4);
        let expected = product(&matrix, &x, sum);
        let found = run(&mut driver, &matrix, x);
        assert_eq!(bits(&found), bits(&expected), "{}", matrix.block);
    }
}

/// Run with `cargo test --release -p forebay-devices --features gpu speed -- --ignored --nocapture`.
#[test]
#[ignore = "measures speed"]
fn speed_of_both_arithmetics() {
    let Some(adapter) = adapter() else { return };
    let kernels = KernelTable::best();
    for arithmetic in [Arithmetic::Native, Arithmetic::Emulated] {
        let options = GpuOptions::default();
        let mut driver = GpuDriver::with_arithmetic(&adapter, &options, arithmetic).unwrap();
        for block in FORMATS {
            for (n_rows, n_tokens) in [(4096, 1), (256, 64)] {
                let matrix = Matrix::random(block, n_rows, 1536, 1);
                let best = (0..5).map(|_| {
                    let x = tokens(&kernels, n_tokens, 1536, 1);
                    let start = std::time::Instant::now();
                    run(&mut driver, &matrix, x);
                    start.elapsed()
                });
                let best = best.min().unwrap_or_default();
                let products = (n_rows * n_tokens * 1536) as f64 / best.as_secs_f64() / 1e9;
                let name = arithmetic.name();
                println!("{name:>8} {block:>5} x {n_tokens:<3} {products:6.2} G products/s");
            }
        }
    }
}
