//! Whatever goes wrong, the program says what and what to do, and the engine stays usable.

#[path = "../../models/tests/gguf_writer/mod.rs"]
mod gguf_writer;
#[path = "../mount/mod.rs"]
mod mount;
#[path = "../program/mod.rs"]
mod program;
#[path = "../scratch/mod.rs"]
mod scratch;
#[path = "../watchdog/mod.rs"]
mod watchdog;

mod anatomy;
mod callbacks;
mod cancel;
mod drafts;
mod early;
mod experts;
mod flags;
mod forged;
mod io_death;
mod limits;
mod oversized;
mod packs;
mod panics;
mod pipes;
mod places;
mod recurrent;
mod refusal;
mod shapes;
mod sources;
mod stage;
mod streaming;
