//! Models as Hugging Face folders: `config.json`, safetensors and `tokenizer.json`.

mod checkpoint;
mod source;

pub use source::HfSource;
