//! Profiles of neurons: what plans are made from, and what ordinary runs count in the background.

mod misses;
mod profile;
mod tally;

pub use misses::MissPoint;
pub(crate) use misses::{Wants, of_token};
pub use profile::Profile;
pub(crate) use profile::profile_path;
pub(crate) use tally::Tally;
