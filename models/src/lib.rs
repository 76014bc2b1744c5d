//! Model formats and numbers: architectures and the networks they describe, GGUF, safetensors, the packed file,
//! tokenizers, samplers and the naive oracle. Nothing here knows about threads, queues or devices.
#![forbid(unsafe_code)]

mod arch;
pub mod bundle;
pub mod chat_templates;
pub mod error;
pub mod export;
pub mod files;
pub mod gguf;
pub mod importance;
mod limits;
pub mod network;
pub mod oracle;
pub mod sampler;
pub mod sorted;
pub mod source;
pub mod synth;
pub mod tensor;
pub mod tokenizer;

/// How numbers are stored: a separate crate, since the kernels need nothing else of models.
pub use forebay_numbers::{block, kv_type, lanes, panel, random};
