//! Machines as the placement sees them.

use serde::{Deserialize, Serialize};

/// How a device is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineKind {
    /// There is none.
    Cpu,
    /// It shares the CPU's memory.
    Unified,
    /// It has its own.
    Discrete,
}

/// A processor's speed with weights in its memory, while it works alone.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Processor {
    /// What it reads of weights, GB/s.
    pub gb_per_second: f64,
    /// 8-bit additions and multiplications that its kernels reach, 10^12 per second.
    pub tops: f64,
    /// Additions and multiplications of 32-bit numbers that its attention reaches, 10^12 per second.
    pub attention_tops: f64,
}

/// A device's memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Memory {
    /// Its size as far as it may be used, GB.
    #[serde(rename = "memory_gb")]
    pub gb: f64,
    /// How fast weights get there, GB/s.
    pub link_gb_per_second: f64,
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Device {
    /// Its speed.
    #[serde(flatten)]
    pub processor: Processor,
    /// Submitting a job, waiting for it and reading its results, microseconds.
    pub submit_us: f64,
    /// Its own memory; `None` if it shares the CPU's.
    #[serde(flatten)]
    pub memory: Option<Memory>,
}

/// What both processors read while both do, GB/s.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Together {
    /// The CPU.
    pub cpu_gb_per_second: f64,
    /// The device.
    pub device_gb_per_second: f64,
}

/// A CPU and perhaps a device.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PlacementMachine {
    /// Its name.
    pub name: String,
    /// How the device is connected.
    pub kind: MachineKind,
    /// All cores.
    pub cpu: Processor,
    /// The device.
    pub device: Option<Device>,
    /// What both read at once.
    pub together: Option<Together>,
    /// The CPU's part of its arithmetic speed while the device works, since they share power.
    #[serde(default = "one")]
    pub derate: f64,
    /// Where the figures are from.
    pub sources: String,
    /// Which figures nobody has published.
    pub assumed: String,
}

impl PlacementMachine {
    /// How fast inputs, results and copied weights go to and from the device, bytes per second: what is in the CPU's
    /// memory is read at its rate.
    pub(super) fn link(&self) -> f64 {
        let memory = self.device.and_then(|device| device.memory);
        memory.map_or(self.cpu.gb_per_second, |m| m.link_gb_per_second) * 1e9
    }
}

fn one() -> f64 {
    1.0
}

/// Machines with published figures.
///
/// # Errors
/// The built-in data are damaged, which a test excludes.
#[cfg(test)]
pub(super) fn published() -> Result<Vec<PlacementMachine>, serde_json::Error> {
    serde_json::from_str(include_str!("machines.json"))
}
