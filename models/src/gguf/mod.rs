//! GGUF v2 and v3 (magic `GGUF`, and PowerInfer's `PWRI`) as a container: its metadata ([`Metadata`]) and where its
//! tensors are ([`Gguf`]).

mod beginning;
mod container;
pub(crate) mod encoded;
mod header;
mod parts;
mod value;

pub(crate) use container::CONSUMED;
pub use container::{Gguf, TensorInfo};
pub(crate) use parts::files;
pub use value::{Array, Metadata, Value};
