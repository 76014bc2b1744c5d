//! A mutation fuzzer for everything that reads what others wrote: model files, packed files, tokenizers, texts,
//! plans, machine profiles, traces and sizes. It runs on stable Rust and without instrumentation.
//!
//! Inputs are small valid files made at start-up and mutations of them, by the bytes and by the structure of the
//! format, with right checksums where there are any. An input that is refused in a way not seen before joins the
//! ones to mutate: messages stand in for coverage. What counts as a failure: a panic, an execution longer than the
//! time limit, more memory than the limit.
#![forbid(unsafe_code)]

mod guard;
pub mod mutate;
pub mod random;
pub mod session;
mod spelling;
pub mod target;
pub mod targets;
pub mod watchdog;
