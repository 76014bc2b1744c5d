//! Bounds on what tokenizers are read from: well above any model's, well below what exhausts memory.

/// Most tokens beside the model's own; the most known are 6,415.
pub(crate) const MAX_ADDED: usize = 1 << 16;

/// Longest `tokenizer.json`; the longest known have 33 MB.
pub(super) const MAX_TOKENIZER_JSON: u64 = 64 << 20;
