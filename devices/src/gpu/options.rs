//! What a Vulkan device is opened for.

use forebay_numbers::block::BlockType;

use crate::FORMATS;
use crate::probe::HeadShape;

/// What a device is opened for.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// Formats of the weights; each takes some time to compile.
    pub formats: Vec<BlockType>,
    /// Bytes of the device's memory that may be used.
    pub memory_bytes: u64,
    /// Whether it may compute with weights where the CPU has them.
    pub imports: bool,
    /// Heads that attend; each size of values takes some time to compile.
    pub heads: Vec<HeadShape>,
}

impl Default for GpuOptions {
    /// All formats, all memory, and the CPU's, without attention.
    fn default() -> Self {
        Self {
            formats: FORMATS.to_vec(),
            memory_bytes: u64::MAX,
            imports: true,
            heads: Vec::new(),
        }
    }
}
