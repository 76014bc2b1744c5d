//! Compute kernels.
//!
//! Three layers, after memchr: what a block format is (`formats`), each algorithm once, over an
//! abstract vector unit (`matmul`, `lanes`, `axpy`, `attention`, …), and one file per instruction set
//! (`scalar`, `avx2`, `avx512`, `amx`, `neon`). [`KernelTable`] chooses one at run time.
//!
//! Two properties hold for every kernel and are tested: the result of a row and a token has the same bits regardless of
//! what else is in the call, and every instruction set gives the same bits as plain Rust.
//!
//! Weights are used as they are in the file, at any alignment.
#![deny(unsafe_code)]

mod activations;
mod aligned;
mod attention;
mod axpy;
mod blocks;
mod detect;
mod dispatch;
mod elementwise;
mod exp;
mod fixed;
mod float_panels;
mod formats;
mod isa;
pub mod kv;
mod lanes;
mod load;
mod looked_up;
mod matmul;
mod numbers;
mod panel_formats;
mod panels;
mod prefetch;
mod probe;
mod quantised_panels;
mod recurrent;
mod rows;
mod scalar;
mod simd;
mod spread;
mod table;
mod tokens;
mod weights;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

// Only x86 has CPUs with a tile unit; the tests have one in plain Rust.
#[cfg(any(target_arch = "x86_64", test))]
mod tiles;

#[cfg(test)]
mod tests;

pub use activations::{Activations, Form};
pub use aligned::Aligned;
pub use attention::{AttendScratch, KeyOrigin, Queries, Turns};
pub use blocks::{BLOCK_WORDS, TokenBlock};
pub use isa::{Isa, UnknownIsa};
pub use recurrent::DeltaRule;
pub use rows::Gather;
pub use table::KernelTable;
pub use weights::{WeightPanels, WeightRows};
