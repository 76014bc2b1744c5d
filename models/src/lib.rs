//! Model formats and numbers: GGUF, safetensors, the bundle file, architectures, tokenizers,
//! samplers and the naive oracle. Nothing here knows about threads, queues or devices.
#![forbid(unsafe_code)]

pub mod block;
pub mod bundle;
pub mod config;
pub mod error;
pub mod gguf;
pub mod hf;
pub mod kv_cache;
pub mod lanes;
pub mod oracle;
pub mod panel;
pub mod sampler;
pub mod sorted;
pub mod source;
pub mod synth;
pub mod tensor;
pub mod tokenizer;
