//! Tensors by role instead of by name, and the one trait every model source implements.

use std::path::Path;

use crate::block::BlockType;
use crate::config::ModelConfig;
use crate::error::Result;
use crate::tokenizer::TokenizerSpec;

/// A tensor of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerTensor {
    /// RMSNorm before attention, `[d_model]`.
    AttnNorm,
    /// Query projection, `[n_heads * head_dim, d_model]`.
    Q,
    /// Key projection, `[n_kv_heads * head_dim, d_model]`.
    K,
    /// Value projection, `[n_kv_heads * head_dim, d_model]`.
    V,
    /// Attention output projection, `[d_model, n_heads * head_dim]`.
    O,
    /// Query bias, `[n_heads * head_dim]`.
    QBias,
    /// Key bias, `[n_kv_heads * head_dim]`.
    KBias,
    /// Value bias, `[n_kv_heads * head_dim]`.
    VBias,
    /// RMSNorm before the FFN, `[d_model]`.
    FfnNorm,
    /// Gate projection, `[d_ff, d_model]`.
    Gate,
    /// Up projection, `[d_ff, d_model]`.
    Up,
    /// Down projection, `[d_model, d_ff]`.
    Down,
    /// Down projection stored transposed (PowerInfer), `[d_ff, d_model]`.
    DownT,
    /// Predictor's first matrix, `[rank, d_model]`.
    PredictorFc1,
    /// Predictor's second matrix, `[d_ff, rank]`.
    PredictorFc2,
}

/// A tensor of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorId {
    /// Token embedding, `[vocab_size, d_model]`.
    TokenEmbedding,
    /// Final RMSNorm, `[d_model]`.
    OutputNorm,
    /// Output head, `[vocab_size, d_model]`; absent where the head is tied.
    OutputHead,
    /// A tensor of layer `.0`.
    Layer(usize, LayerTensor),
}

/// Shape and type of a tensor. Rows are contiguous: `rows` rows of `cols` elements, row-major;
/// a vector has one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMeta {
    /// Name in the source, for messages.
    pub name: String,
    /// Block format of each row.
    pub block: BlockType,
    /// Number of rows (GGUF's last dimension, safetensors' first).
    pub rows: usize,
    /// Elements per row; a multiple of the block length.
    pub cols: usize,
}

impl TensorMeta {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.block.block_len() * self.block.block_bytes()
    }

    /// Bytes of the tensor.
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }
}

/// What a converter needs of a source model, whatever its file format. Opening validates every
/// shape against the configuration, so that later reads can only fail for I/O reasons.
pub trait TensorSource: Send {
    /// The file or folder this source was opened from.
    fn path(&self) -> &Path;

    /// Architecture and constants.
    fn config(&self) -> &ModelConfig;

    /// Everything needed to build the tokenizer.
    fn tokenizer(&self) -> &TokenizerSpec;

    /// Shape and type of a tensor, `None` where the model has no such tensor.
    fn meta(&self, id: TensorId) -> Option<&TensorMeta>;

    /// Reads `out.len()` bytes of the tensor from byte `offset`. The bytes are read from the file
    /// (not mapped), so packing a model needs no memory but the caller's buffers.
    ///
    /// # Errors
    /// An unknown tensor, a range outside it, or a failing read.
    fn read(&self, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()>;
}
