//! How the cores spent their time: recorder, exact accounting, Chrome trace files and their analysis.
//!
//! - While tokens are generated: [`lane::TraceLane`] keeps [`record::Record`]s, [`ledger::Ledger`] adds up states; both
//!   belong to one thread and touch neither locks nor the allocator.
//! - Afterwards: [`chrome`] writes the trace lanes to a file that Perfetto and `chrome://tracing` show.
//! - Any time later: [`events`] reads such a file back; [`tokens`] finds the tokens in it, [`path`] what each of
//!   them waited for, and [`report`] shows where the time went, and why, in tables or as JSON; [`page`]
//!   draws it.
#![forbid(unsafe_code)]

pub mod chrome;
pub mod clock;
pub mod events;
pub mod headline;
pub mod lane;
pub mod ledger;
pub mod page;
pub mod path;
pub mod record;
pub mod report;
pub mod timeline;
pub mod tokens;

mod summary;
mod table;
