//! Profiles of neurons and experts: what plans are made from, and what ordinary runs count in the background.

mod belady;
mod expert_cache;
mod experts;
mod misses;
mod profile;
mod routes;
mod tally;

pub use expert_cache::ExpertMisses;
pub(crate) use expert_cache::ExpertWants;
pub use experts::ExpertProfile;
pub use misses::MissPoint;
pub(crate) use misses::{Wants, of_token};
pub use profile::Profile;
pub(crate) use profile::profile_path;
pub(crate) use routes::{LayerRoutes, Routes};
pub(crate) use tally::Tally;
