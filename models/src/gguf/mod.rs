//! GGUF v2 and v3 (magic `GGUF`, and PowerInfer's `PWRI`): the container ([`Gguf`]), its metadata
//! ([`Metadata`]), and models in it ([`GgufSource`]).

mod beginning;
mod config;
mod container;
mod encoded;
mod header;
mod imatrix;
mod parts;
mod source;
mod value;
mod writer;

pub(crate) use config::{model_name, predictor_threshold, vocab_size};
pub(crate) use container::CONSUMED;
pub use container::{Gguf, TensorInfo};
pub use imatrix::{read_imatrix, write_imatrix};
pub(crate) use parts::files;
pub use source::GgufSource;
pub use value::{Array, Metadata, Value};
pub use writer::write_gguf;
