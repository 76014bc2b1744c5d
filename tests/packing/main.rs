//! A packed model is whole or not there, and it is the model's present state.

#[path = "../../models/tests/gguf_writer/mod.rs"]
mod gguf_writer;
#[path = "../mount/mod.rs"]
mod mount;
#[path = "../program/mod.rs"]
mod program;
#[path = "../scratch/mod.rs"]
mod scratch;

mod cache_folder;
mod changed;
mod consumed;
mod full;
mod killed;
mod namespaces;
mod owners;
mod planted;
mod quantised;
mod signals;
mod together;
mod waiting;
