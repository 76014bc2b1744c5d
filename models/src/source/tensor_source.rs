//! The one trait every source of a model implements.

use std::borrow::Cow;
use std::path::Path;

use crate::block::dequantize;
use crate::chat_templates::ChatTemplates;
use crate::error::{ModelError, Result};
use crate::network::Network;
use crate::tensor::{LayerTensor, Stored, TensorId, TensorMeta};
use crate::tokenizer::TokenizerSpec;

/// What a converter needs from a source model of any file format. Opening validates every shape
/// against the description, so that later reads can only fail for I/O reasons.
pub trait TensorSource: Send {
    /// The file or folder this source was opened from.
    fn path(&self) -> &Path;

    /// What the model computes.
    fn network(&self) -> &Network;

    /// Everything needed to build the tokenizer. It is large, so a source may make it each time.
    fn tokenizer(&self) -> Cow<'_, TokenizerSpec>;

    /// How conversations are written for the model.
    fn chat_templates(&self) -> &ChatTemplates {
        ChatTemplates::NONE
    }

    /// Shape and type of a tensor, `None` if the model has no such tensor. If the file stores several tensors as one,
    /// these are the rows of this one.
    fn meta(&self, id: TensorId) -> Option<&TensorMeta>;

    /// Reads `out.len()` bytes of the tensor from byte `offset`. The bytes are read from the file
    /// (not mapped), so packing a model needs no memory except the caller's buffers.
    ///
    /// # Errors
    /// An unknown tensor, a range outside it, or a failed read.
    fn read(&self, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()>;

    /// Whether neurons are in another order than in the file.
    fn is_sorted(&self) -> bool {
        false
    }

    /// Names that a matrix may have in GGUF files of this model, the most usual first. If a file stores several as one,
    /// that one's is among them; none where there are no such files.
    fn gguf_names(&self, _id: TensorId) -> Vec<String> {
        Vec::new()
    }

    /// Whether the model comes with activation predictors.
    fn has_predictors(&self) -> bool {
        let fc1 = TensorId::Layer(0, LayerTensor::PredictorFc1);
        self.meta(fc1).is_some()
    }

    /// How the elements of a vector are stored.
    fn stored(&self, _id: TensorId) -> Stored {
        Stored::AsIs
    }
}

/// Reads all of a norm, a bias, another vector, the table of positions or a router as the network uses it.
///
/// # Errors
/// An unknown tensor, or a failed read.
pub fn read_vector(source: &dyn TensorSource, id: TensorId) -> Result<Vec<f32>> {
    let missing = || ModelError::damaged(source.path(), format!("{id:?}"), "the tensor is missing");
    let meta = source.meta(id).ok_or_else(missing)?;
    let mut bytes = vec![0; meta.bytes()];
    source.read(id, 0, &mut bytes)?;
    let mut values = vec![0.0; meta.rows * meta.cols];
    dequantize(meta.block, &bytes, &mut values);
    let stored = source.stored(id);
    values.iter_mut().for_each(|v| *v = stored.value(*v));
    match id {
        TensorId::Layer(_, LayerTensor::ConvTaps) => Ok(by_tap(&values, meta.cols)),
        _ => Ok(values),
    }
}

/// Weights of a convolution, `[channels, kernel]`, as `[kernel, channels]`.
fn by_tap(weights: &[f32], kernel: usize) -> Vec<f32> {
    let taps = (0..kernel).flat_map(|tap| weights.iter().skip(tap).step_by(kernel));
    taps.copied().collect()
}
