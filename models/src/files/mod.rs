//! Files as the rest of the workspace reads and writes them: regular ones of a plausible size, whole or not at all.

mod partial;
mod regular;
mod written;

pub use partial::{Partial, folder_of, remove_stale_partials, withdraw_partials};
pub(crate) use regular::read_at_most;
pub use regular::{open_regular, read_regular};
pub use written::{write_output, write_whole};
