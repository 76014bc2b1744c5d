//! How fast a device's kernels are, each against the device's own bound. They are measured as jobs, so that taking
//! tokens there and results back counts.

use forebay_devices::gpu::{Adapter, DeviceKind, GpuDriver, GpuOptions, Meter, adapters, choose};
use forebay_devices::{
    DeviceDriver, DeviceFault, DeviceJob, FORMATS, FfnCluster, PanelRange, Routing, SegmentId, Work,
};
use forebay_models::block::BlockType;
use forebay_models::network::Activation;
use forebay_models::panel::{PANEL_ROWS, panel_bytes, panels_bytes};
use forebay_stages::kernels::{Activations, Form, KernelTable};

use super::device_attention::{Attention, MEASURED_HEADS};
use super::device_jobs::{TIME, seconds_per_job};
use super::{COLS, KernelBound, KernelReport, Spread, TOKENS, ramp};

/// The value of every byte of the weights: as f16 it is 2^-11; and that for scales that are powers of two, 2^-16. Sums
/// stay in the devices' exact range.
const WEIGHT: u8 = 0x10;
const POWER: u8 = 0x70;
/// Neurons of a cluster.
const NEURONS: usize = 256;
/// Bytes of weights of a job with one token: what a phase of a large model has. Two of them take turns.
const BYTES: usize = 64 << 20;
/// The same for software, which takes longer.
const SOFTWARE_BYTES: usize = 4 << 20;
/// Rows of a job with many tokens.
const ROWS: usize = 4096;
const SOFTWARE_ROWS: usize = 64;

/// Results of [`measure_device_kernels`].
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceKernels {
    /// The device's name.
    pub device: String,
    /// `native` or `emulated`: how it gets the CPU's bits.
    pub arithmetic: &'static str,
    /// All kernels.
    pub kernels: Vec<KernelReport>,
}

/// What jobs reach, tokens and results on their way included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobRates {
    /// Bytes of weights per second, with one token.
    pub read: f64,
    /// Additions and multiplications of 8-bit numbers per second of an FFN, with a prompt's tokens.
    pub int8: f64,
}

/// Measures jobs with weights in the format `block` on an open device.
///
/// # Errors
/// It was opened without that format, or fails.
pub(crate) fn job_rates(
    adapter: &Adapter,
    driver: &mut GpuDriver,
    block: BlockType,
) -> Result<JobRates, DeviceFault> {
    let (kernels, bytes) = (KernelTable::best(), bytes_of(adapter));
    let weights = driver.load(&vec![WEIGHT; 2 * bytes])?;
    let mut measured = |kind| {
        let mut case = Case::new(adapter, (kind, block), weights, bytes)?;
        let seconds = case.seconds_per_job(driver, &kernels)?;
        case.microseconds.push(seconds * 1e6);
        Ok(case.rates())
    };
    let ((read, _), (_, int8)) = (measured(Kind::Gemv)?, measured(Kind::FfnOfPrompt)?);
    Ok(JobRates {
        read: read * 1e9,
        int8: int8 * 1e9,
    })
}

/// Measures every kernel of device `index`, or of the first one that is not software: `repetitions` rounds of all of
/// them, at least one, the bound of each right before it.
///
/// # Errors
/// There is no such device, or it fails.
pub fn measure_device_kernels(
    index: Option<usize>,
    repetitions: usize,
) -> Result<DeviceKernels, DeviceFault> {
    let adapter = choose(adapters(), index)?;
    let kernels = KernelTable::best();
    let options = GpuOptions {
        heads: vec![MEASURED_HEADS],
        ..GpuOptions::default()
    };
    let mut driver = GpuDriver::open(&adapter, &options, &kernels)?;
    let bytes = bytes_of(&adapter);
    let mut meter = Meter::open(&adapter, 4 * bytes as u64)?;
    let segments = [WEIGHT, POWER].map(|value| driver.load(&vec![value; 2 * bytes]));
    let [weights, powers] = segments;
    let (weights, powers) = (weights?, powers?);
    let mut attention = Attention::new(&adapter, &mut driver)?;
    let mut cases = Vec::new();
    for kind in [Kind::Gemv, Kind::Gemm, Kind::Ffn, Kind::FfnOfPrompt] {
        for block in FORMATS {
            let segment = match block {
                BlockType::MXFP4 => powers,
                _ => weights,
            };
            cases.push(Case::new(&adapter, (kind, block), segment, bytes)?);
        }
    }
    for _ in 0..repetitions.max(1) {
        for case in &mut cases {
            let bound = match case.kind.n_tokens() {
                1 => meter.read_rate(TIME)?,
                _ => meter.int8_rate(TIME)?,
            };
            case.bounds.push(bound / 1e9);
            let seconds = case.seconds_per_job(&mut driver, &kernels)?;
            case.microseconds.push(seconds * 1e6);
        }
        attention.add_bound(meter.f32_rate(TIME)?);
        attention.measure(&mut driver)?;
    }
    Ok(DeviceKernels {
        device: adapter.name().to_owned(),
        arithmetic: driver.arithmetic().name(),
        kernels: cases
            .iter()
            .map(Case::report)
            .chain([attention.report()])
            .collect(),
    })
}

fn bytes_of(adapter: &Adapter) -> usize {
    let wanted = match adapter.kind() {
        DeviceKind::Software => SOFTWARE_BYTES,
        _ => BYTES,
    };
    let allowed = adapter.limits().segment_bytes / 4;
    wanted.min(usize::try_from(allowed).unwrap_or(wanted))
}

/// A kernel. With one token the weights are the bound, with many the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Rows times one token.
    Gemv,
    /// Rows times many tokens.
    Gemm,
    /// A share of an FFN for one token.
    Ffn,
    /// A share of an FFN for many tokens.
    FfnOfPrompt,
}

impl Kind {
    fn n_tokens(self) -> usize {
        match self {
            Self::Gemm | Self::FfnOfPrompt => TOKENS,
            Self::Gemv | Self::Ffn => 1,
        }
    }

    /// Matrices of the neurons, or one.
    fn matrices(self) -> usize {
        match self {
            Self::Gemv | Self::Gemm => 1,
            Self::Ffn | Self::FfnOfPrompt => 3,
        }
    }
}

/// A kernel and a format, and what was measured.
struct Case {
    kind: Kind,
    block: BlockType,
    segment: SegmentId,
    /// Rows of the matrix, or neurons.
    n_rows: usize,
    /// Bytes from one job's weights to the other's.
    bytes: usize,
    microseconds: Vec<f64>,
    bounds: Vec<f64>,
}

impl Case {
    fn new(
        adapter: &Adapter,
        (kind, block): (Kind, BlockType),
        segment: SegmentId,
        bytes: usize,
    ) -> Result<Self, DeviceFault> {
        let (Some(panel), Some(cluster)) = (panel_bytes(block, COLS), cluster_bytes(block)) else {
            let problem = format!("{COLS} columns are not whole blocks of {block}");
            return Err(DeviceFault::BadJob(problem));
        };
        let rows = match adapter.kind() {
            DeviceKind::Software => SOFTWARE_ROWS,
            _ => ROWS,
        };
        let most = bytes / panel * PANEL_ROWS;
        let n_rows = match kind {
            Kind::Gemv => most,
            Kind::Gemm => rows.min(most),
            Kind::Ffn => bytes / cluster * NEURONS,
            Kind::FfnOfPrompt => rows.div_ceil(NEURONS).min(bytes / cluster) * NEURONS,
        };
        Ok(Self {
            kind,
            block,
            segment,
            n_rows,
            bytes,
            microseconds: Vec::new(),
            bounds: Vec::new(),
        })
    }

    /// A job with the first or the second half of the weights.
    fn job(&self, which: usize, kernels: &KernelTable) -> DeviceJob {
        let n_tokens = self.kind.n_tokens();
        let mut tokens = Activations::new(n_tokens, COLS);
        let values = ramp(n_tokens * COLS);
        tokens.load(kernels, Form::Panels, n_tokens, COLS, &values);
        let mut at = which * self.bytes;
        let mut range = |n_rows, cols| {
            let block = self.block;
            let first = at;
            at += panels_bytes(block, n_rows, cols).unwrap_or_default();
            PanelRange {
                block,
                at: first,
                n_rows,
                cols,
            }
        };
        let work = match self.kind {
            Kind::Gemv | Kind::Gemm => Work::Rows {
                panels: vec![range(self.n_rows, COLS)],
                out: vec![0.0; n_tokens * self.n_rows],
            },
            Kind::Ffn | Kind::FfnOfPrompt => {
                let cluster = |_| FfnCluster {
                    gate: range(NEURONS, COLS),
                    up: range(NEURONS, COLS),
                    down: range(COLS, NEURONS),
                };
                Work::Share {
                    clusters: (0..self.n_rows / NEURONS).map(cluster).collect(),
                    activation: Activation::Silu,
                    biases: Default::default(),
                    routing: Routing::default(),
                    out: vec![0; n_tokens * COLS],
                }
            }
        };
        DeviceJob {
            id: which as u64,
            segment: self.segment,
            tokens,
            work,
        }
    }

    fn seconds_per_job(
        &self,
        driver: &mut GpuDriver,
        kernels: &KernelTable,
    ) -> Result<f64, DeviceFault> {
        seconds_per_job(driver, [0, 1].map(|which| self.job(which, kernels)))
    }

    /// Bytes and operations in billions per second.
    fn rates(&self) -> (f64, f64) {
        let (n_rows, n_tokens) = (self.n_rows, self.kind.n_tokens());
        let matrices = self.kind.matrices();
        let time = Spread::of(&self.microseconds);
        let rate = |amount: usize| amount as f64 / time.median / 1e3;
        let row_bytes = self.block.row_bytes(COLS).unwrap_or_default();
        (
            rate(matrices * row_bytes * n_rows),
            rate(2 * matrices * n_rows * COLS * n_tokens),
        )
    }

    fn report(&self) -> KernelReport {
        let (n_rows, n_tokens) = (self.n_rows, self.kind.n_tokens());
        let (gb_per_second, gops) = self.rates();
        let (kernel, what, achieved) = match self.kind {
            Kind::Gemv => ("device gemv", "device read", gb_per_second),
            Kind::Gemm => ("device gemm", "device int8", gops),
            Kind::Ffn => ("device ffn", "device read", gb_per_second),
            Kind::FfnOfPrompt => ("device ffn of prompt", "device int8", gops),
        };
        let value = Spread::of(&self.bounds).median;
        KernelReport {
            kernel,
            format: Some(self.block.name()),
            shape: format!("{n_rows} x {COLS} x {n_tokens}"),
            microseconds_per_call: Spread::of(&self.microseconds),
            gb_per_second,
            gops,
            bound: Some(KernelBound { what, value }),
            fraction_of_bound: Some(achieved / value),
        }
    }
}

/// Bytes of a cluster.
fn cluster_bytes(block: BlockType) -> Option<usize> {
    let gate = panels_bytes(block, NEURONS, COLS)?;
    Some(2 * gate + panels_bytes(block, COLS, NEURONS)?)
}
