//! How fast a device's kernels are, each against the device's own bound. They are measured as jobs, so that taking
//! tokens there and results back counts.

use std::time::{Duration, Instant};

use forebay_devices::gpu::{Adapter, DeviceKind, GpuDriver, GpuOptions, Meter, adapters, choose};
use forebay_devices::probe::wall_clock;
use forebay_devices::{DeviceDriver, DeviceFault, DeviceJob, FORMATS, PanelRange, SegmentId, Work};
use forebay_models::block::BlockType;
use forebay_models::panel::{PANEL_ROWS, panel_bytes};
use forebay_stages::kernels::{Activations, Form, KernelTable};

use super::{COLS, KernelBound, KernelReport, Spread, TOKENS, ramp};

/// The value of every byte of the weights: as f16 it is 4528, as a power of two 2^-20, both in the devices' exact range.
const WEIGHT: u8 = 0x6c;
/// Bytes of weights of a job with one token: what a phase of a large model has. Two of them take turns.
const BYTES: usize = 64 << 20;
/// The same for software, which takes longer.
const SOFTWARE_BYTES: usize = 4 << 20;
/// Rows of a job with many tokens.
const ROWS: usize = 4096;
const SOFTWARE_ROWS: usize = 64;
/// Time of a measurement of a kernel and of a bound.
const TIME: Duration = Duration::from_millis(100);
/// A device that takes longer for this is stuck.
const LONGEST: Duration = Duration::from_secs(60);

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

/// Measures every kernel of device `index`, or of the first one that is not software: `repetitions` rounds of all of
/// them, the bound of each right before it.
///
/// # Errors
/// There is no such device, or it fails.
pub fn measure_device_kernels(
    index: Option<usize>,
    repetitions: usize,
) -> Result<DeviceKernels, DeviceFault> {
    let adapter = choose(adapters(), index)?;
    let kernels = KernelTable::best();
    let mut driver = GpuDriver::open(&adapter, &GpuOptions::default(), &kernels)?;
    let bytes = bytes_of(&adapter);
    let mut meter = Meter::open(&adapter, 4 * bytes as u64)?;
    let segment = driver.load(&vec![WEIGHT; 2 * bytes])?;
    let mut cases = Vec::new();
    for n_tokens in [1, TOKENS] {
        for block in FORMATS {
            cases.push(Case::new(&adapter, block, n_tokens, bytes)?);
        }
    }
    for _ in 0..repetitions {
        for case in &mut cases {
            let bound = match case.n_tokens {
                1 => meter.read_rate(TIME)?,
                _ => meter.int8_rate(TIME)?,
            };
            case.bounds.push(bound / 1e9);
            let seconds = case.seconds_per_job(&mut driver, segment, &kernels)?;
            case.microseconds.push(seconds * 1e6);
        }
    }
    Ok(DeviceKernels {
        device: adapter.name().to_owned(),
        arithmetic: driver.arithmetic().name(),
        kernels: cases.iter().map(Case::report).collect(),
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

/// A format and a shape, and what was measured.
struct Case {
    panels: [PanelRange; 2],
    n_tokens: usize,
    microseconds: Vec<f64>,
    bounds: Vec<f64>,
}

impl Case {
    /// With one token the weights are the bound, with many the products.
    fn new(
        adapter: &Adapter,
        block: BlockType,
        n_tokens: usize,
        bytes: usize,
    ) -> Result<Self, DeviceFault> {
        let Some(panel) = panel_bytes(block, COLS) else {
            let problem = format!("{COLS} columns are not whole blocks of {block}");
            return Err(DeviceFault::BadJob(problem));
        };
        let rows = match adapter.kind() {
            DeviceKind::Software => SOFTWARE_ROWS,
            _ => ROWS,
        };
        let most = bytes / panel * PANEL_ROWS;
        let n_rows = if n_tokens == 1 { most } else { rows.min(most) };
        let half = |at| PanelRange {
            block,
            at,
            n_rows,
            cols: COLS,
        };
        Ok(Self {
            panels: [half(0), half(bytes)],
            n_tokens,
            microseconds: Vec::new(),
            bounds: Vec::new(),
        })
    }

    fn job(&self, which: usize, segment: SegmentId, kernels: &KernelTable) -> DeviceJob {
        let mut tokens = Activations::new(self.n_tokens, COLS);
        let values = ramp(self.n_tokens * COLS);
        tokens.load(kernels, Form::Panels, self.n_tokens, COLS, &values);
        let range = self.panels[which];
        DeviceJob {
            id: which as u64,
            segment,
            tokens,
            work: Work::Rows {
                panels: vec![range],
                out: vec![0.0; self.n_tokens * range.n_rows],
            },
        }
    }

    /// Seconds per job while there are always two in flight.
    fn seconds_per_job(
        &self,
        driver: &mut GpuDriver,
        segment: SegmentId,
        kernels: &KernelTable,
    ) -> Result<f64, DeviceFault> {
        let busy = |_| DeviceFault::BadJob("the device is busy".into());
        let mut clock = wall_clock();
        for which in [0, 1] {
            let job = self.job(which, segment, kernels);
            driver.submit(job, 0).map_err(busy)?;
        }
        let (mut done, mut ends) = (Vec::new(), Vec::<Instant>::new());
        while driver.in_flight() > 0 {
            let now = clock();
            if now > LONGEST.as_nanos() as u64 {
                let seconds = LONGEST.as_secs();
                return Err(DeviceFault::Stuck { seconds });
            }
            driver.poll(now, &mut done);
            for done in done.drain(..) {
                done.result?;
                ends.push(Instant::now());
                // The first jobs are not counted: the device may have been asleep.
                if ends.len() < 3 || ends[0].elapsed() < TIME {
                    driver.submit(done.job, now).map_err(busy)?;
                }
            }
        }
        let took = ends[ends.len() - 1] - ends[0];
        Ok(took.as_secs_f64() / (ends.len() - 1) as f64)
    }

    fn report(&self) -> KernelReport {
        let PanelRange {
            block,
            n_rows,
            cols,
            ..
        } = self.panels[0];
        let time = Spread::of(&self.microseconds);
        // In billions per second.
        let rate = |amount: usize| amount as f64 / time.median / 1e3;
        let gb_per_second = rate(block.row_bytes(cols).unwrap_or_default() * n_rows);
        let gops = rate(2 * n_rows * cols * self.n_tokens);
        let (kernel, what, achieved) = match self.n_tokens {
            1 => ("device gemv", "device read", gb_per_second),
            _ => ("device gemm", "device int8", gops),
        };
        let value = Spread::of(&self.bounds).median;
        KernelReport {
            kernel,
            format: Some(block.name()),
            shape: format!("{n_rows} x {cols} x {}", self.n_tokens),
            microseconds_per_call: time,
            gb_per_second,
            gops,
            bound: Some(KernelBound { what, value }),
            fraction_of_bound: Some(achieved / value),
        }
    }
}
