//! How fast a device attends, with queries and results on their way.

use forebay_devices::gpu::{Adapter, DeviceKind, GpuDriver};
use forebay_devices::probe::HeadShape;
use forebay_devices::{
    AttentionWork, DeviceDriver, DeviceFault, DeviceJob, KvSpace, SegmentId, Work,
};
use forebay_stages::kernels::Activations;
use forebay_stages::kernels::kv::BLOCK;

use super::device_jobs::seconds_per_job;
use super::{ATTENDING, GROUP, HEAD_DIM, KernelBound, KernelReport, POSITIONS, Spread, ramp};

/// The heads that attend.
pub(crate) const MEASURED_HEADS: HeadShape = HeadShape {
    head_dim: HEAD_DIM,
    value_dim: HEAD_DIM,
    group: GROUP,
};
/// Key/value heads of a job: what a core of a few has.
const KV_HEADS: usize = 4;
/// Every byte of keys and values: as f16 it is 0.06.
const NUMBER: u8 = 0x2c;

/// The last tokens of a sequence, and what was measured.
pub(crate) struct Attention {
    segment: SegmentId,
    kv: KvSpace,
    n_tokens: usize,
    microseconds: Vec<f64>,
    /// Billions of additions and multiplications per second that the device could do.
    bounds: Vec<f64>,
}

impl Attention {
    /// Gives the device keys and values.
    ///
    /// # Errors
    /// It has no room for them, or fails.
    pub fn new(adapter: &Adapter, driver: &mut GpuDriver) -> Result<Self, DeviceFault> {
        // Software takes long.
        let (heads, n_tokens) = match adapter.kind() {
            DeviceKind::Software => (1, 8),
            _ => (KV_HEADS, ATTENDING),
        };
        let kv = KvSpace {
            heads,
            blocks: POSITIONS.div_ceil(BLOCK),
            head_dim: HEAD_DIM,
            value_dim: HEAD_DIM,
        };
        Ok(Self {
            segment: driver.load(&vec![NUMBER; kv.bytes() as usize])?,
            kv,
            n_tokens,
            microseconds: Vec::new(),
            bounds: Vec::new(),
        })
    }

    fn job(&self) -> DeviceJob {
        let (n_tokens, heads) = (self.n_tokens, self.kv.heads * GROUP);
        let work = AttentionWork {
            kv: self.kv,
            patches: Vec::new(),
            patched: Vec::new(),
            n_tokens,
            heads,
            group: GROUP,
            first: 0,
            queries: ramp(n_tokens * heads * HEAD_DIM),
            blocks: (0..self.kv.blocks as u32).collect(),
            position: POSITIONS - n_tokens,
            window: usize::MAX,
            scale: 0.09,
            sinks: Vec::new(),
            out: vec![0.0; n_tokens * heads * HEAD_DIM],
        };
        DeviceJob {
            id: 0,
            segment: self.segment,
            tokens: Activations::new(0, 0),
            work: Work::Attention(Box::new(work)),
        }
    }

    /// Measures once.
    ///
    /// # Errors
    /// The device was opened without [`MEASURED_HEADS`], or fails.
    pub fn measure(&mut self, driver: &mut GpuDriver) -> Result<(), DeviceFault> {
        let seconds = seconds_per_job(driver, [self.job(), self.job()])?;
        self.microseconds.push(seconds * 1e6);
        Ok(())
    }

    /// A bound that was measured right before.
    pub fn add_bound(&mut self, per_second: f64) {
        self.bounds.push(per_second / 1e9);
    }

    /// Additions and multiplications of a job: of scores, and of the weighted sum.
    fn operations(&self) -> f64 {
        let pairs: usize = (POSITIONS + 1 - self.n_tokens..=POSITIONS).sum();
        (2 * 2 * self.kv.heads * GROUP * pairs * HEAD_DIM) as f64
    }

    /// Billions of them per second.
    pub fn gops(&self) -> f64 {
        self.operations() / Spread::of(&self.microseconds).median / 1e3
    }

    /// What was measured, beside the bound.
    pub fn report(&self) -> KernelReport {
        let time = Spread::of(&self.microseconds);
        let value = Spread::of(&self.bounds).median;
        let heads = self.kv.heads * GROUP;
        KernelReport {
            kernel: "device attend prefill",
            format: Some("f16"),
            shape: format!(
                "{heads} heads x {POSITIONS} x {HEAD_DIM} x {}",
                self.n_tokens
            ),
            microseconds_per_call: time,
            gb_per_second: self.kv.bytes() as f64 / time.median / 1e3,
            gops: self.gops(),
            bound: Some(KernelBound {
                what: "device f32",
                value,
            }),
            fraction_of_bound: Some(self.gops() / value),
        }
    }
}
