//! GGUF v2 and v3 (magic `GGUF`, and PowerInfer's `PWRI`).

mod value;

pub use value::{Array, Metadata, Value};
