//! A device beside the cores: it computes clusters of a phase while they compute the others.
//!
//! ```text
//!   core 0 ── DeviceJob ──▶ the device actor ──▶ driver
//!     ▲  the phase's quantised input, room for results    │
//!     └───────────── DeviceDone, doorbell ◀───────────────┘
//! ```
//!
//! Core 0 submits one job per phase when the phase begins, and before it arrives at the exchange it writes the results
//! to their board or adds the share to its own, so the other cores need not know. Where anything fails, core 0 computes
//! the very same clusters: their weights are in memory as well. Jobs travel by value with the memory for their results;
//! there are two, made at start-up. Streamed clusters of prompts go through a window, from every core ([`Uploader`]),
//! and so do queries of prompts over a copy of the core's keys and values ([`KvCopies`]). Between two steps, core 0 has
//! memory of the device given back, or filled again, when the budget changes.

mod account;
mod actor;
mod attender;
mod attention_room;
mod balance;
mod errand;
mod fill;
mod job_number;
mod kv_copies;
mod link;
mod parts;
mod room;
mod segment_cell;
mod thread;
mod trip;
mod uploader;

pub use account::{Account, DeviceCounters};
pub use actor::{DeviceActor, DeviceLanes};
pub(crate) use attender::Attender;
pub use attention_room::AttentionCosts;
pub(crate) use attention_room::OwnAttention;
pub(crate) use errand::Errand;
pub use kv_copies::KvCopies;
pub(crate) use link::{DeviceEnds, DeviceLink, Moving, Outcome, device_lanes};
pub use parts::{DeviceParts, PhasePart, Window};
pub(crate) use parts::{Move, gather};
pub(crate) use room::JobRoom;
pub use room::{boards_bytes, job_memory, upload_costs};
pub(crate) use thread::DeviceThread;
pub use uploader::Uploader;
