//! GGUF v2 and v3 (magic `GGUF`, and PowerInfer's `PWRI`): the container ([`Gguf`]), its metadata
//! ([`Metadata`]), and models in it ([`GgufSource`]).

mod config;
mod container;
mod header;
mod keys;
mod names;
mod source;
mod value;
mod writer;

pub use container::{Gguf, TensorInfo};
pub(crate) use names::name_of;
pub use source::GgufSource;
pub use value::{Array, Metadata, Value};
pub use writer::write_gguf;
