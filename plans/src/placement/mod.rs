//! What to compute on the CPU and what on a device: OATO's operators with their costs, and shares of clusters instead
//! of whole operators.
//!
//! ```text
//! t_cpu    = max(bytes / B_cpu, operations / P_cpu)
//! t_device = max(bytes / B_device, operations / P_device, [not resident] bytes / B_link) + submit + boards / B_link
//! t(f)     = max(t_device(f), t_cpu(1 - f)) + join
//! ```
//!
//! `f` is the device's share of an operator's clusters, in sixteenths. While both work, memory is read at the rates
//! that were measured together; when one has finished, the other goes on alone. Weights that are not resident are
//! copied while those before them are computed, and take their part of the CPU's memory's rate. Every operator takes
//! its input from the CPU and brings its results back: norms, attention and the exchange are there, so what the
//! operators before and after it do does not matter.
//!
//! Where weights are streamed from flash, the disk may be slower than both. A device gets its part of them by copying,
//! even if it shares the memory; copies and jobs take turns on it, and the cores copy, too.
//!
//! A device that shares the CPU's memory needs no place for weights, so every operator is planned for itself. Otherwise
//! weights compete for the device's memory: a price per byte is raised until those fit that gain most per byte.
//!
//! `docs/devices.md` has the table that the tests keep true.

#[cfg(test)]
mod baselines;
mod choice;
mod cost;
mod hot;
mod machine;
mod operators;
mod plan;

pub use choice::Choice;
pub use hot::{Border, NeuronWants, best_border};
#[cfg(test)]
use machine::published;
pub use machine::{Device, MachineKind, Memory, PlacementMachine, Processor, Together};
pub use operators::{Operator, Streaming};
pub use plan::{Explanation, Placement, break_even};

/// Parts of an operator's clusters: shares are counted in these.
pub const PARTS: u8 = 16;

#[cfg(test)]
mod tests;
