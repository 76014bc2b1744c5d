//! Models as Hugging Face folders: `config.json`, safetensors and `tokenizer.json`.

mod checkpoint;
mod config;
mod fields;
mod names;
mod source;

pub use source::HfSource;
