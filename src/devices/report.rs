//! What is known about a device, as data.

use forebay_devices::gpu::{Adapter, Arithmetic};
use forebay_plans::placement::Together;
use serde::{Deserialize, Serialize};

/// Whether a device has the CPU's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BitIdentical {
    /// With its own arithmetic.
    Native,
    /// With sums in integers: products with many tokens are slower.
    Emulated,
    /// Neither; it is not used.
    No,
}

impl From<Arithmetic> for BitIdentical {
    fn from(arithmetic: Arithmetic) -> Self {
        match arithmetic {
            Arithmetic::Native => Self::Native,
            Arithmetic::Emulated => Self::Emulated,
        }
    }
}

/// How fast a device is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSpeed {
    /// What all compute cores read from memory while the device is idle.
    pub cpu_gb_per_second: f64,
    /// What the device reads from its memory while the CPU is idle.
    pub device_gb_per_second: f64,
    /// Both at once.
    pub together: Together,
    /// Billions of 8-bit additions and multiplications per second of all compute cores.
    pub cpu_int8_gops: f64,
    /// The same of the device.
    pub device_int8_gops: f64,
    /// What all compute cores reach of them in products of a prompt.
    pub cpu_products_gops: f64,
    /// The same of the device, with tokens and results on their way.
    pub device_products_gops: f64,
    /// Billions of additions and multiplications of 32-bit numbers per second of all compute cores in a prompt's
    /// attention.
    pub cpu_attention_gops: f64,
    /// The same of the device, with queries and results on their way.
    pub device_attention_gops: f64,
    /// What the device reaches of its reading in products of one token, likewise.
    pub device_weights_gb_per_second: f64,
    /// Submitting the smallest job, waiting for it and reading its result, microseconds: half of them take at most
    /// this.
    pub submit_and_wait_us: f64,
    /// 99 of 100 take at most this.
    pub submit_and_wait_p99_us: f64,
    /// What the CPU reads of results that the device has written.
    pub readback_gb_per_second: f64,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceReport {
    /// Its number: `gpu:N`.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its driver and version.
    pub driver: String,
    /// `unified memory`, `discrete`, `virtual`, `software` or `unknown`.
    pub kind: &'static str,
    /// Largest piece of memory, bytes.
    pub segment_bytes: u64,
    /// Memory that the lanes of a workgroup share, bytes.
    pub workgroup_bytes: u32,
    /// Lanes of a workgroup.
    pub workgroup_lanes: u32,
    /// Least and most lanes of a subgroup, on which nothing depends.
    pub subgroup_lanes: [u32; 2],
    /// Whether it can compute with weights where the CPU has them, without a copy.
    pub imports: bool,
    /// Whether it has the CPU's bits; `None` if that was not examined.
    pub bit_identical: Option<BitIdentical>,
    /// Time to open it: compiling its shaders and comparing its results, milliseconds.
    pub open_ms: Option<f64>,
    /// Its speed, if it was measured.
    pub speed: Option<DeviceSpeed>,
    /// Why something is missing here.
    pub problem: Option<String>,
}

impl DeviceReport {
    /// What a device says about itself.
    pub(super) fn of(index: usize, adapter: &Adapter) -> Self {
        let limits = adapter.limits();
        Self {
            index,
            name: adapter.name().to_owned(),
            driver: adapter.driver(),
            kind: adapter.kind().name(),
            segment_bytes: limits.segment_bytes,
            workgroup_bytes: limits.workgroup_bytes,
            workgroup_lanes: limits.workgroup_lanes,
            subgroup_lanes: limits.subgroup_lanes,
            imports: adapter.imports(),
            bit_identical: None,
            open_ms: None,
            speed: None,
            problem: None,
        }
    }
}
