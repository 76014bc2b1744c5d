//! What a conversion is asked for.

use std::sync::Arc;

use crate::block::BlockType;
use crate::importance::Importance;
use crate::tensor::{LayerTensor, TensorId};

/// Choices of a conversion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackOptions {
    /// Format for matrices that are stored as F32, F16 or BF16; `None` keeps what the source has.
    /// Matrices that are quantised already are never touched, nor are routers.
    pub quant: Option<BlockType>,
    /// Stores FFNs neuron by neuron even where Down is quantised along the neurons: its columns are then
    /// quantised again, as [`COLUMN_FORMAT`], which changes the model a little.
    pub neurons: bool,
    /// By which errors are weighed where `quant` is searched for; see [`Weighing`](super::Weighing) for what it leaves
    /// out.
    pub importance: Option<Arc<Importance>>,
}

impl PackOptions {
    /// The format in which rows of `cols` elements of `id`, stored as `block`, are written.
    pub(super) fn target(&self, id: TensorId, block: BlockType, cols: usize) -> BlockType {
        // They are small, and a small error chooses other experts. llama.cpp keeps them, too.
        let is_choice = matches!(
            id,
            TensorId::Layer(_, LayerTensor::Router | LayerTensor::SharedGate)
        );
        let quantised = self.quant.filter(|_| block.block_len() == 1 && !is_choice);
        let Some(quant) = quantised else {
            return block;
        };
        let formats = [quant, for_narrow_rows(quant)];
        let fits = |f: &BlockType| cols.is_multiple_of(f.block_len());
        formats.into_iter().find(fits).unwrap_or(block)
    }
}

/// The format that rows get which are not whole blocks of 256: it has blocks of 32 and no larger errors.
pub fn for_narrow_rows(quant: BlockType) -> BlockType {
    match quant {
        BlockType::Q2_K | BlockType::Q3_K | BlockType::IQ4_XS => BlockType::IQ4_NL,
        BlockType::Q4_K => BlockType::Q5_0,
        BlockType::Q5_K => BlockType::Q5_1,
        BlockType::Q6_K => BlockType::Q8_0,
        _ => quant,
    }
}

/// Format of Down's columns where they had to be quantised again: its error is far below that of the formats
/// with fewer bits that they come from.
pub const COLUMN_FORMAT: BlockType = BlockType::Q8_0;
