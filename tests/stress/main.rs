//! Memory pressure: budgets down to the least in real control groups, a neighbour that takes memory, two sessions at
//! once, a budget that changes while tokens are generated or that the engine itself shrinks, a device that shares the
//! memory, and hundreds of engines one after the other.
//!
//! `FOREBAY_STRESS=N` makes everything N times as long.

#[path = "../beside/device.rs"]
mod device;
#[path = "../support/group.rs"]
mod group;
#[path = "../support/measured.rs"]
mod measured;
#[path = "../support/mod.rs"]
mod support;

mod budgets;
mod curve;
mod cycles;
mod devices;
mod hog;
mod holdings;
mod lent;
mod little_room;
mod measuring;
mod pressure;
mod prompts;
mod resize;
mod role;
mod sessions;
mod subject;
