//! The offline planner (PowerInfer-2 v2, section 5): measures the machine, takes the model's facts, decides, explains.
//!
//! Data and arithmetic are in [`forebay_plans`]. Here they are combined with kernels, drivers and the engine's own
//! memory plan, so that what is predicted is laid out exactly as it will be run.

mod choose;
mod measure;
mod outlook;
mod survey;

pub(crate) use choose::{Decision, Fixed, Wish, fastest, least_memory};
pub(crate) use measure::{disk_of, identity};
pub(crate) use outlook::{Outlook, kernel_cases};
pub(crate) use survey::{Known, Survey};
pub use survey::{Measure, survey};

#[cfg(test)]
mod tests;
