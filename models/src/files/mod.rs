//! Files as the rest of the workspace reads and writes them: regular ones of a plausible size, whole or not at all.

mod holes;
mod partial;
mod regular;
mod written;

pub(crate) use holes::{give_back, may_give_back};
pub(crate) use partial::beside;
pub use partial::{Partial, folder_of, remove_stale_partials, withdraw_partials};
pub(crate) use regular::read_at_most;
pub use regular::{open_regular, read_regular};
pub use written::{check_output, side_file, write_output, write_whole};
