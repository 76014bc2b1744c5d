//! A device beside the cores: it computes clusters of a phase while they compute the others.
//!
//! ```text
//!   core 0 ── DeviceJob ──▶ the device actor ──▶ driver
//!     ▲  the phase's quantised input, room for results    │
//!     └───────────── DeviceDone, doorbell ◀───────────────┘
//! ```
//!
//! Core 0 submits one job per phase when the phase begins, and before it arrives at the exchange it writes the results to
//! their board or adds the share to its own, so the other cores need not know. Where anything fails, core 0 computes the
//! very same clusters: their weights are in memory as well. Jobs travel by value with the memory for their results; there
//! are two, made at start-up. Streamed clusters of prompts go through a window, from every core ([`Uploader`]). Between two
//! steps, core 0 has weights given back, or copied again, when the budget changes.

mod account;
mod actor;
mod errand;
mod fill;
mod job_number;
mod link;
mod parts;
mod room;
mod thread;
mod uploader;

pub use account::{Account, DeviceCounters};
pub use actor::{DeviceActor, DeviceLanes};
pub(crate) use errand::Errand;
pub(crate) use link::{DeviceLink, Moving, Outcome, device_lanes};
pub use parts::{DeviceParts, PhasePart, Window};
pub(crate) use parts::{Move, gather};
pub(crate) use room::JobRoom;
pub use room::{boards_bytes, job_memory, upload_costs};
pub(crate) use thread::DeviceThread;
pub use uploader::Uploader;
