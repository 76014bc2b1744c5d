//! Jobs that come again use what was made for them, and only what is theirs.

use forebay_devices::gpu::{Arithmetic, GpuDriver, GpuOptions, UPLOAD_BYTES};
use forebay_devices::probe::wall_clock;
use forebay_devices::{DeviceDriver, DeviceJob, PanelRange, SegmentId, Work};
use forebay_kernels::{KernelTable, WeightPanels};
use forebay_numbers::block::BlockType;

use super::{Matrix, adapter, bits, tokens};

const COLS: usize = 64;
/// Ranges of rows of which jobs are made: more than are kept.
const RANGES: usize = 20;

/// The job for the 16 rows of panel `first`; the number of tokens is their seed.
fn job(segment: SegmentId, matrix: &Matrix, first: usize, n_tokens: usize) -> DeviceJob {
    let panel = matrix.panels.len() / (matrix.n_rows / 16);
    let range = PanelRange {
        block: matrix.block,
        at: first * panel,
        n_rows: 16,
        cols: COLS,
    };
    DeviceJob {
        id: first as u64,
        segment,
        tokens: tokens(&KernelTable::best(), n_tokens, COLS, n_tokens as u64),
        work: Work::Rows {
            panels: vec![range],
            out: vec![0.0; 16 * n_tokens],
        },
    }
}

fn expected(matrix: &Matrix, first: usize, n_tokens: usize) -> Vec<u32> {
    let kernels = KernelTable::best();
    let panel = matrix.panels.len() / (matrix.n_rows / 16);
    let panels = WeightPanels {
        block: matrix.block,
        bytes: &matrix.panels[first * panel..][..panel],
        n_rows: 16,
    };
    let tokens = tokens(&kernels, n_tokens, COLS, n_tokens as u64);
    let mut out = vec![0.0; 16 * n_tokens];
    kernels.panels(panels, &tokens, &mut out, 16);
    bits(&out)
}

/// Two jobs at once, one in each slot.
fn run_two(driver: &mut GpuDriver, matrix: &Matrix, jobs: [DeviceJob; 2]) {
    for job in jobs {
        driver.submit(job, 0).unwrap();
    }
    let (mut done, mut clock) = (Vec::new(), wall_clock());
    while done.len() < 2 {
        let now = clock();
        assert!(now < 20_000_000_000, "stuck");
        driver.poll(now, &mut done);
    }
    for done in done {
        assert_eq!(done.result, Ok(()));
        let Work::Rows { out, .. } = &done.job.work else {
            unreachable!("another job")
        };
        let (first, n_tokens) = (done.job.id as usize, done.job.tokens.n_tokens());
        assert_eq!(
            bits(out),
            expected(matrix, first, n_tokens),
            "panel {first}"
        );
    }
}

#[test]
fn jobs_that_come_again_have_their_own_weights_and_tokens() {
    let Some(adapter) = adapter() else { return };
    let options = GpuOptions {
        formats: vec![BlockType::Q8_0],
        ..GpuOptions::default()
    };
    let mut driver = GpuDriver::with_arithmetic(&adapter, &options, Arithmetic::Emulated).unwrap();
    let [one, other] = [1, 2].map(|n| Matrix::random(BlockType::Q8_0, 16 * RANGES, COLS, n));
    let [of_one, of_other] = [&one, &other].map(|m| driver.load(&m.panels).unwrap());
    // Buffers grow in between, and batches have other shaders.
    for n_tokens in [1, 3, 20, 1, 70, 2] {
        for first in (0..RANGES).chain([19, 19, 18, 0]) {
            let jobs = [first, RANGES - 1 - first].map(|i| job(of_one, &one, i, n_tokens));
            run_two(&mut driver, &one, jobs);
        }
        let jobs = [3, 3].map(|i| job(of_other, &other, i, n_tokens));
        run_two(&mut driver, &other, jobs);
    }
    // What is kept of a segment goes with it.
    let segment_bytes = one.panels.len() as u64;
    let before = driver.memory_bytes();
    driver.unload(of_other);
    let between = driver.memory_bytes();
    driver.unload(of_one);
    let after = driver.memory_bytes();
    assert!(before - between > segment_bytes && between - after > before - between);
    // A new segment has new tables, and jobs find nothing of the old one.
    let segment = driver.load(&other.panels).unwrap();
    let jobs = [4, 5].map(|i| job(segment, &other, i, 3));
    run_two(&mut driver, &other, jobs);
    driver.unload(segment);
    assert_eq!(driver.memory_bytes(), after);
}

/// Each part begins with a word, however many are copied at once.
#[test]
fn weights_in_parts_lie_one_behind_the_other() {
    let Some(adapter) = adapter() else { return };
    let options = GpuOptions {
        formats: vec![BlockType::Q8_0],
        ..GpuOptions::default()
    };
    let mut driver = GpuDriver::with_arithmetic(&adapter, &options, Arithmetic::Emulated).unwrap();
    let matrix = Matrix::random(BlockType::Q8_0, 16 * RANGES, COLS, 1);
    let other = vec![0; UPLOAD_BYTES / 2 - 1];
    let panels = &matrix.panels[..];
    let parts = [panels, &other, &other, panels, &other, panels];
    let segment = driver.load_parts(&parts).unwrap();
    let mut at = 0;
    for part in parts {
        if part == panels {
            let jobs = [0, RANGES - 1].map(|first| {
                let mut job = job(segment, &matrix, first, 3);
                if let Work::Rows { panels, .. } = &mut job.work {
                    panels[0].at += at;
                }
                job
            });
            run_two(&mut driver, &matrix, jobs);
        }
        at += part.len().next_multiple_of(4);
    }
    assert!(driver.memory_bytes() >= at as u64);
}
