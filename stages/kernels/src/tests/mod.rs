//! What only this crate sees: single instructions and jobs. Kernels are tested as others see them, in `tests/kernels`,
//! which also spares their being compiled twice.

mod blocks;
mod integer;
pub(crate) mod random;
mod tiles;
