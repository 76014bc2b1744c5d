//! Where the choices of an engine come from, and what a plan is made for.

use std::path::PathBuf;

/// Where the choices come from.
#[derive(Clone, Debug, Default)]
pub(super) enum Planning {
    /// The planner, if the machine's profile is known; else the defaults.
    #[default]
    Automatic,
    /// The defaults.
    Off,
    /// This file.
    File(PathBuf),
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum PlanGoal {
    /// The best speed within the memory.
    #[default]
    Fastest,
    /// The minimum memory that gives nearly the best speed.
    Enough,
    /// The minimum memory with which this many tokens per second are generated.
    Speed(f64),
}
